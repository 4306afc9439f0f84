"""Text that others wrote, shown as text: it steers no terminal, and makes no markup of a page."""

import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Controls (C0, DEL, C1), halves of surrogate pairs, and what changes direction or can't be seen.

Those are bidirectional marks, line and paragraph separators, the zero-width space, the soft hyphen, fillers,
the byte order mark and tag characters.
"""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape_text(text: str) -> str:
    """The text on one line, with an escape for each character that would steer a terminal."""
    return _UNSAFE.sub(_escape, text)


def escape_block(text: str) -> str:
    """The text with its line breaks kept and everything else escaped."""
    return "\n".join(escape_text(line) for line in text.split("\n"))


def escape_toml(text: str) -> str:
    """A text that is TOML already, with the escapes of TOML for what can't be seen in it."""
    return _UNSAFE.sub(lambda match: _toml_escape(ord(match[0])), text)


def _escape(match: re.Match[str]) -> str:
    letter = match[0]
    code = ord(letter)
    if letter in _SHORT:
        return _SHORT[letter]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _toml_escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
