"""Secrets kept out of what is written and printed: the one place that knows what a secret looks like.

Three things count as one: the value of an environment variable whose name says so, a text of a form that only
keys have, and what stands under a name like `api_key`. A configuration may hold none of them.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence

HIDDEN = "***"
"""What is shown in a secret's place."""
SHORTEST = 8
"""Shorter values of the environment are no secrets: `1`, `true`, `none` stand in every text."""

_NAMES = (
    r"api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key|(?:client[_-]?)?secret|password|passwd|passphrase|"
    r"authorization|credentials?|(?:access|auth|bearer|refresh|session)[_-]?token"
)
_IS_NAME = re.compile(rf"(?:.*[_.-])?(?:x[_-])?(?:{_NAMES})", re.IGNORECASE)
_IS_VARIABLE = re.compile(
    r"(?:.*_)?(?:TOKEN|APIKEY|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(?:_.*)?", re.IGNORECASE
)
_KEYS = re.compile(
    r"""
      \b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}                     # OpenAI, Anthropic and those who copy them
    | \bhf_[A-Za-z0-9]{16,}                                 # Hugging Face
    | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}   # GitHub
    | \bglpat-[\w-]{16,}                                    # GitLab
    | \bAKIA[0-9A-Z]{16}\b                                  # Amazon
    | \bAIza[\w-]{30,}                                      # Google
    | \bxox[abposr]-[\w-]{10,}                              # Slack
    | (?<![\w-])eyJ[\w-]{10,}+\.[\w-]{10,}(?:\.[\w-]+)?      # a JSON web token
    | -----BEGIN[ A-Z]*PRIVATE[ ]KEY-----
    """,
    re.VERBOSE,
)
_BEARER = re.compile(r"\b(bearer|basic)(\s+)(?=\S*[0-9+/=_-])[\w.~+/=-]{8,}", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@'\"]+(?=@)")
_NAMED = re.compile(
    rf"\b((?:\w+[_-])?(?:{_NAMES}))(['\"]?\s*[=:]\s*['\"]?)(?!\*\*\*)(?:(?:bearer|basic|token)\s+)?[^\s'\"&,;}}\]]+",
    re.IGNORECASE,
)


def hidden(text: str, also: Iterable[str | None] = ()) -> str:
    """The text without what is certainly a secret, and without the values that `also` gives."""
    return _hidden(text, _values(also))


def _values(also: Iterable[str | None] = ()) -> list[str]:
    """The texts that are secrets as they stand, longest first: one may be part of another."""
    return sorted({*_of_environment(), *filter(None, also)}, key=len, reverse=True)


def _hidden(text: str, values: Iterable[str]) -> str:
    for value in values:
        text = text.replace(value, HIDDEN)
    text = _KEYS.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\1\2{HIDDEN}", text)
    return _IN_ADDRESS.sub(HIDDEN, text) if "://" in text else text


def redacted(text: str, also: Iterable[str | None] = ()) -> str:
    """The same, also without what stands behind a secret's name: for errors and lines of log."""
    return _redacted(text, _values(also))


def _redacted(text: str, values: Iterable[str]) -> str:
    return _NAMED.sub(rf"\1\2{HIDDEN}", _hidden(text, values))


def without_secrets(value: object) -> object:
    """A copy of plain data: texts redacted, and hidden as a whole under a secret's name."""
    return _clean(value, _values())


def _clean(value: object, values: Sequence[str]) -> object:
    match value:
        case str():
            return _redacted(value, values)
        case Mapping():
            return {
                key: HIDDEN if isinstance(item, str) and is_secret_name(str(key)) else _clean(item, values)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_clean(item, values) for item in value]
        case _:
            return value


def secrets_in(value: object, path: str) -> Iterable[str]:
    """The paths at which plain data holds a secret as a literal."""
    return _found(value, path, _values())


def _found(value: object, path: str, values: Sequence[str]) -> Iterable[str]:
    match value:
        case str():
            if (value and is_secret_name(path.rpartition(".")[2])) or _hidden(value, values) != value:
                yield path
        case Mapping():
            for key, item in value.items():
                yield from _found(item, f"{path}.{key}", values)
        case list() | tuple():
            for item in value:
                yield from _found(item, path, values)
        case _:
            pass


def is_secret_name(name: str) -> bool:
    """What stands under such a name is a secret: `api_key`, `X-Api-Key`, `Authorization`, `db_password`."""
    return _IS_NAME.fullmatch(name) is not None


def _of_environment() -> list[str]:
    """Values of the environment's variables that are named like secrets."""
    return [
        value
        for name, value in os.environ.items()
        if len(value) >= SHORTEST and _IS_VARIABLE.fullmatch(name) and not os.path.isabs(value)
    ]


def redacted_command(arguments: Iterable[str]) -> list[str]:
    """A command line's arguments, with the value of each flag that is named like a secret hidden."""
    shown: list[str] = []
    is_value = False
    for argument in arguments:
        shown.append(HIDDEN if is_value and not argument.startswith("-") else redacted(argument))
        is_value = argument.startswith("-") and is_secret_name(argument.lstrip("-").rpartition(".")[2])
    return shown
