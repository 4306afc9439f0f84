"""Which names a run may have: a name is one folder on every platform, never a path."""

import re

MAX_NAME_LENGTH = 100

# Device names that Windows gives no file, whatever their ending.
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
# Separators, what shells and Windows read otherwise, and characters that aren't to be seen.
_FORBIDDEN = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]')

NAME_RULE = (
    f'a name of 1 to {MAX_NAME_LENGTH} characters without / \\ : * ? " < > | or control characters, '
    "that neither starts with a dot, a dash or a space nor ends with a dot or a space"
)


def is_name(text: str) -> bool:
    """The text can be the name of one folder, on every platform."""
    if not 1 <= len(text.encode("utf-8", "replace")) <= MAX_NAME_LENGTH:
        return False
    if text[0] in ".- " or text[-1] in ". ":
        return False
    return not _FORBIDDEN.search(text) and not _RESERVED.fullmatch(text)


def checked_name(value: object) -> object:
    """The value, refused where it is a text that can't be a name."""
    if isinstance(value, str) and not is_name(value):
        raise ValueError(NAME_RULE)
    return value
