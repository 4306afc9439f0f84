"""Answers to tasks of reasoning-gym, scored by each task's own rule."""

from muster.rewards.answers import after_thinking, marked_answer
from muster.rewards.numbers_in_text import last_number as find_last_number
from muster.tasks import score_answer


def reasoning_gym(
    completion: str, task: str | None, entry: str | None, *, last_number: bool = False
) -> float | None:
    """The score, from 0 to 1, of the marked answer, or of the whole text where nothing is marked.

    With `last_number`, where nothing is marked, the answer is the last whole number in the text.
    What stands before the last `</think>` is not read. Many rules give part of the score where the
    answer stands among other words. None where the row is no task's.
    """
    if not task or not entry:
        return None
    return score_answer(task, entry, _given(after_thinking(completion), last_number))


def _given(text: str, takes_number: bool) -> str:
    """The answer that the text gives."""
    marked = marked_answer(text)
    if marked is not None:
        return marked
    found = find_last_number(text) if takes_number else None
    is_whole = found is not None and found.value is not None and found.value.denominator == 1
    return str(found.value) if found and is_whole else text.strip()
