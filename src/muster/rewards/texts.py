"""Rewards that look for a piece of text: counted, or there at all."""

from typing import Annotated, Literal

from annotated_types import MinLen


def char_count(
    completion: str,
    prompt_text: str,
    *,
    character: Annotated[str, MinLen(1)] = ".",
    over: Literal["completion", "sample"] = "completion",
) -> float:
    """How often the character occurs in the completion, or in the whole sample (prompt and completion)."""
    return float((prompt_text + completion if over == "sample" else completion).count(character))


def contains_answer(completion: str, answer: object, *, ignore_case: bool = False) -> float | None:
    """1 where the answer's text occurs in the completion, else 0; None where the row has no answer.

    An empty answer is in every text, so it is no answer.
    """
    wanted = _answer_text(answer)
    if not wanted:
        return None
    if ignore_case:
        return float(wanted.casefold() in completion.casefold())
    return float(wanted in completion)


def _answer_text(answer: object) -> str:
    """The answer as it would be written; a whole number has no decimals, whatever the file's type."""
    match answer:
        case None:
            return ""
        case str():
            return answer.strip()
        case float() if answer.is_integer():
            return str(int(answer))
        case bool():
            return str(answer).lower()
        case int() | float():
            return str(answer)
        case _:
            raise TypeError(f"column `answer` holds {type(answer).__name__}; text or a number is expected")
