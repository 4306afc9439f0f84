r"""Where the answer is: the reference as text, the part after the thinking, and the marked answer.

An answer is marked by `\boxed{...}` (or `\fbox{...}`), by `<answer>...</answer>`, or by `####` in front
of it on a line, as GSM8K has it. Of several the last one is the answer, right or wrong: an earlier guess
earns nothing.
"""

import re
from collections.abc import Iterable, Iterator

MAX_MARKS = 8
"""Marks of a kind that are tried, from the last backwards: the ones before are not the answer."""
MAX_ANSWER = 20_000
"""Characters of a marked answer; a box that isn't closed by then is left open."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,20}\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TEXT_COMMAND = re.compile(r"\\(?:boxed|fbox|text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")


def answer_text(answer: object) -> str:
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


def accepted(answer: object) -> list[str]:
    """The texts that each count as the answer: one, or those of a list; blank ones are left out."""
    answers: Iterable[object] = answer if isinstance(answer, list | tuple) else [answer]
    return [text for item in answers if (text := answer_text(item))]


def after_thinking(completion: str) -> str:
    """What follows the last `</think>`, up to a `<think>` that was left open."""
    rest = completion.rpartition("</think>")[2]
    return rest.partition("<think>")[0]


def marked_answer(text: str) -> str | None:
    """The content of the mark that ends last, stripped; None where no mark is complete."""
    ends = [found for found in (_last_box(text), _last_tag(text), _last_hashes(text)) if found is not None]
    return max(ends)[1].strip() if ends else None


def plain(content: str) -> str:
    r"""The content without the dollars, parentheses and `\text{...}` that only set it as mathematics."""
    inner = content.strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if len(inner) > len(opening + closing) and inner.startswith(opening) and inner.endswith(closing):
            inner = inner[len(opening) : -len(closing)].strip()
    return _TEXT_COMMAND.sub(r"\1", inner).strip()


def last_places(text: str, *needles: str) -> Iterator[int]:
    """Where the needles start, from the last place backwards, as many as may be tried."""
    end = len(text)
    for _ in range(MAX_MARKS):
        end = max(text.rfind(needle, 0, end) for needle in needles)
        if end < 0:
            return
        yield end


def _last_box(text: str) -> tuple[int, str] | None:
    """Where the box that opens last, of those that are closed, ends, and what is in it; braces count."""
    for place in last_places(text, r"\boxed", r"\fbox"):
        opened = _BOX.match(text, place)
        # Behind an odd number of backslashes the last two are a line break, and what follows is text.
        backslashes = place - len(text[:place].rstrip("\\"))
        if opened is None or backslashes % 2:
            continue
        closed = _closing_brace(text, opened.end())
        if closed is not None:
            return closed, text[opened.end() : closed]
    return None


def _closing_brace(text: str, start: int) -> int | None:
    """Where the brace that was opened before `start` is closed; an escaped brace is a character."""
    depth = 1
    for match in _BRACE.finditer(text, start, start + MAX_ANSWER):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None


def _last_tag(text: str) -> tuple[int, str] | None:
    """Where the last closed `<answer>` ends, and what is in it."""
    opened = text.rfind("<answer>", 0, max(0, text.rfind("</answer>")))
    if opened < 0:
        return None
    content = text[opened + len("<answer>") :].partition("</answer>")[0]
    return opened + len("<answer>") + len(content), content


def _last_hashes(text: str) -> tuple[int, str] | None:
    """Where the last line that starts with `####` ends, and what stands behind them."""
    for place in last_places(text, "####"):
        line = text[text.rfind("\n", 0, place) + 1 : place]
        content = text[place + 4 :].partition("\n")[0]
        if not line.strip(" \t") and not content.startswith("#"):
            return place + 4 + len(content), content
    return None
