r"""Where the answer is: the reference as text, the part after the thinking, and the marked answer.

An answer is marked by `\boxed{...}` (or `\fbox{...}`), by `<answer>...</answer>`, or by `####` in front
of it on a line, as GSM8K has it. Of several the last one is the answer, right or wrong: an earlier guess
earns nothing.
"""

import re
import sys
from collections import deque
from collections.abc import Iterable

_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
_TAG = re.compile(r"</?answer>", re.IGNORECASE)
_HASHES = re.compile(r"^[ \t]*####(?!#)[ \t]*(.*)$", re.MULTILINE)
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


def last_match(
    pattern: re.Pattern[str], text: str, start: int = 0, end: int = sys.maxsize
) -> re.Match[str] | None:
    """The match that starts last, of those that follow each other; None where there is none."""
    kept = deque(pattern.finditer(text, start, end), maxlen=1)
    return kept[0] if kept else None


def _last_box(text: str) -> tuple[int, str] | None:
    """Where the box that is closed last ends, and what is in it; braces are counted, escaped ones aren't."""
    last: tuple[int, str] | None = None
    opened: list[int | None] = []
    for match in _BRACE.finditer(text):
        if match["box"]:
            opened.append(match.end())
        elif match[0] == "{":
            opened.append(None)
        elif match[0] == "}" and opened and (start := opened.pop()) is not None:
            last = match.start(), text[start : match.start()]
    return last


def _last_tag(text: str) -> tuple[int, str] | None:
    """Where the last closed `<answer>` ends, and what is in it."""
    opened: re.Match[str] | None = None
    last: tuple[int, str] | None = None
    for tag in _TAG.finditer(text):
        if not tag[0].startswith("</"):
            opened = tag
        elif opened is not None:
            last, opened = (tag.start(), text[opened.end() : tag.start()]), None
    return last


def _last_hashes(text: str) -> tuple[int, str] | None:
    """Where the last line that starts with `####` ends, and what stands behind them."""
    last = last_match(_HASHES, text)
    return None if last is None else (last.end(), last[1])
