"""A configuration in the making: settings, why each is what it is, and what was not carried over."""

import contextlib
from collections.abc import Mapping

from muster.fromtrl.reading import Unread
from muster.nearest import did_you_mean

MOST = 1e15
"""No setting is as large; infinity and what is no number are not below it."""


class Draft:
    """Settings by path with a comment each, and lines for whoever converts."""

    def __init__(self) -> None:
        self.settings: dict[str, object] = {}
        self.comments: dict[str, str] = {}
        self.report: list[str] = []

    def set(self, path: str, value: object, comment: str = "") -> None:
        """Gives a setting its value; the comment says where it comes from."""
        self.settings[path] = value
        self.comments[path] = comment

    def tell(self, line: str) -> None:
        """Adds a line to the report, once."""
        if line not in self.report:
            self.report.append(line)


class Arguments:
    """The arguments of one call; what nobody asked for is told at the end."""

    def __init__(
        self, draft: Draft, call: str, given: Mapping[str, object], options: Mapping[str, str]
    ) -> None:
        self.draft = draft
        self.call = call
        self.given = given
        self.options = options
        self._asked: set[str] = set()

    def has(self, name: str) -> bool:
        """The option is given, as a literal."""
        return self.get(name) is not None

    def get(self, name: str, default: object = None) -> object:
        """The literal that was given, else the default; a value that is no literal is told."""
        self._asked.add(name)
        value = self.given.get(name)
        if isinstance(value, Unread):
            place = self.options.get(name, "a setting")
            self.draft.tell(
                f"{self.call}({name}={value.text}) is computed there, so it was not read: set {place}"
            )
            return default
        return default if value is None else value

    def handled(self, *names: str) -> None:
        """These are spoken of elsewhere."""
        self._asked.update(names)

    def number(self, name: str, default: float) -> float:
        """The same for a number; a text of one is one, as in a JSON that command lines made."""
        value = self.get(name, default)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST:
            return value
        self.draft.tell(f"{self.call}({name}={value!r}) is no number; {default} is written")
        return default

    def whole(self, name: str, default: int, least: int = -1) -> int:
        """The same for a whole number, no less than the least that makes sense."""
        value = int(self.number(name, default))
        if value < least:
            self.draft.tell(f"{self.call}({name}={value}) is below {least}, which is written")
        return max(value, least)

    def flag(self, name: str, default: bool) -> bool:
        """The same for a switch."""
        return bool(self.get(name, default))

    def tell_rest(self, defaults: Mapping[str, object]) -> None:
        """A line for each option that was given and not asked for; those at their default say nothing."""
        for name, value in self.given.items():
            if name in self._asked:
                continue
            shown = value.text if isinstance(value, Unread) else repr(value)
            if name in self.options:
                if isinstance(value, Unread) or value != defaults.get(name):
                    self.draft.tell(f"{self.call}({name}={shown}): {self.options[name]}")
            else:
                hint = did_you_mean(name, self.options)
                self.draft.tell(f"{self.call}({name}={shown}) is no option that is known here.{hint}")
