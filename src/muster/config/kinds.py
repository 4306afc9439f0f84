"""What sections are made of: their base, the kinds of numbers and texts, and a function chosen by name."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict

from muster.config.names import checked_name

Text = Annotated[str, MinLen(1)]
Count = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
Share = Annotated[float, Ge(0), Le(1)]
BelowOne = Annotated[float, Ge(0), Lt(1)]
NotNegative = Annotated[float, Ge(0)]
Options = Mapping[str, object]
_MINUTES = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?min(?:utes?)?")
_CONVENTIONS = ("completion", "batch", "answer", "verl")


class Section(BaseModel):
    """Frozen, strict, no unknown keys; what every section is."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class Choice(Section):
    """A function chosen by name, with the parameters that its signature types."""

    model_config = ConfigDict(extra="allow")

    use: Text

    @property
    def params(self) -> Mapping[str, object]:
        """What the table holds beside `use`."""
        return self.model_extra or {}


def _as_choice(value: object) -> object:
    """A name alone is a choice without parameters."""
    return {"use": value} if isinstance(value, str) else value


def _as_tuple(value: object) -> object:
    """One name alone is a list of one."""
    return (value,) if isinstance(value, str) else value


def _checked_convention(value: object) -> object:
    """The value, refused with the names that there are: a table's own refusal would say `a table`."""
    if value not in _CONVENTIONS:
        names = ", ".join(f'"{name}"' for name in _CONVENTIONS)
        raise ValueError(f"by the name of a reward, one of {names}")
    return value


def minutes_of(interval: int | str) -> float | None:
    """The minutes of an interval such as `10 min`; None of one in steps, and of what is neither."""
    match = _MINUTES.fullmatch(interval) if isinstance(interval, str) else None
    return float(match[1]) if match else None


def _checked_interval(value: object) -> object:
    """Steps as they are, and minutes as their text."""
    is_steps = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not is_steps and not (isinstance(value, str) and minutes_of(value)):
        raise ValueError('steps as a whole number, at least 0, or minutes as text such as "10 min"')
    return value


def _checked_warmup(value: object) -> object:
    """Steps as they are, and a share as its number."""
    is_steps = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not is_steps and not (isinstance(value, float) and 0 <= value < 1):
        raise ValueError("steps as a whole number, at least 0, or a share of the run from 0 to below 1")
    return value


OptionalChoice = Annotated[Choice | None, BeforeValidator(_as_choice)]
NoNames = Annotated[tuple[Text, ...], BeforeValidator(_as_tuple)]
ConventionName = Annotated[
    Literal["completion", "batch", "answer", "verl"], BeforeValidator(_checked_convention)
]
RunName = Annotated[str, MinLen(1), BeforeValidator(checked_name)]
Interval = Annotated[int | str, BeforeValidator(_checked_interval)]
Warmup = Annotated[int | float, Ge(0), BeforeValidator(_checked_warmup)]
