"""What a step's rollouts show: its groups, the rollouts of one, the tokens of one rollout."""

import json
import math
from collections.abc import Sequence
from itertools import groupby

from muster.store import Line
from muster.view.curves import number_of, signal_of

MAX_TEXT = 400_000
"""Characters of one text that are sent; what is beyond is counted."""
_BRIEF = 240


def grouped(rows: Sequence[Line]) -> list[list[tuple[int, Line]]]:
    """The rows with their numbers, group by group, in order."""
    numbered = enumerate(rows)
    return [list(some) for _, some in groupby(numbered, key=lambda pair: pair[1].get("group_id"))]


def group_list(rows: Sequence[Line], full: float, text: str = "") -> list[Line]:
    """A line per group of a step: pass rate, spread, length and what is remarkable; by text where asked."""
    wanted = text.casefold()
    groups = [[row for _, row in some] for some in grouped(rows)]
    replaced = _replaced([str(members[0].get("group_id")) for members in groups])
    lines: list[Line] = []
    for number, members in enumerate(groups):
        found = _matches(members, wanted)
        if found or not wanted:
            line = _group_line(members, full)
            line["flags"] += ["replaced"] if replaced[number] else []
            lines.append({"group": number, **line, "matches": found})
    return lines


def _replaced(ids: Sequence[str]) -> list[bool]:
    """For each group id, `step-slot-attempt`, whether dynamic sampling drew its slot again."""
    slots = [group.rpartition("-") for group in ids]
    last = {
        slot: max(int(n) for s, _, n in slots if s == slot and n.isdecimal())
        for slot, _, n in slots
        if n.isdecimal() and slot
    }
    return [slot in last and number.isdecimal() and int(number) < last[slot] for slot, _, number in slots]


def _matches(members: Sequence[Line], wanted: str) -> int:
    """Rollouts whose completion holds the text; all of them where the prompt does."""
    if not wanted:
        return 0
    if wanted in _text(members[0].get("prompt_text")).casefold():
        return len(members)
    return sum(wanted in _text(row.get("completion_text")).casefold() for row in members)


def _group_line(members: Sequence[Line], full: float) -> Line:
    first = members[0]
    scores = [number for row in members if (number := number_of(row.get("score"))) is not None]
    mean = math.fsum(scores) / len(scores) if scores else None
    texts = [row.get("completion_text") for row in members]
    lengths = [length for row in members if (length := row.get("length")) is not None]
    return {
        "id": first.get("group_id"),
        "sample": first.get("sample_id"),
        "prompt": brief(question(first)),
        "size": len(members),
        "scores": [number_of(row.get("score")) for row in members],
        "mean": mean,
        "best": max(scores, default=None),
        "worst": min(scores, default=None),
        "spread": _spread(scores),
        "pass_rate": sum(score >= full for score in scores) / len(scores) if scores else None,
        "length": sum(lengths) / len(lengths) if lengths else None,
        "flags": _flags(members, scores, len(set(texts)), full),
    }


def _spread(scores: Sequence[float]) -> float | None:
    """Standard deviation (G - 1); None for fewer than two scores."""
    if len(scores) < 2:
        return None
    mean = math.fsum(scores) / len(scores)
    return math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1))


def _flags(members: Sequence[Line], scores: Sequence[float], distinct: int, full: float) -> list[str]:
    """What is remarkable about a group, in a word each."""
    signal = signal_of(scores, full)
    said = {
        signal or "": signal not in (None, "mixed"),
        "truncated": any(row.get("finish_reason") == "length" for row in members),
        "failed": any(row.get("failures") not in (None, "", "{}") for row in members),
        # An answer that was given has no parts either: there was nothing to score.
        "unscored": len(scores) < len(members) and any(row.get("parts") != "{}" for row in members),
        "alike": len(members) > 1 and distinct <= len(members) / 2,
    }
    return [flag for flag, is_so in said.items() if is_so]


def rollout_list(rows: Sequence[Line], group: int) -> list[Line] | None:
    """The rollouts of a group, without what there is per token; None where there is no such group."""
    groups = grouped(rows)
    if not 0 <= group < len(groups):
        return None
    return [_rollout_line(number, row) for number, row in groups[group]]


def _rollout_line(number: int, row: Line) -> Line:
    text = _text(row.get("completion_text"))
    return {
        "row": number,
        "index": row.get("index"),
        "text": text[:MAX_TEXT],
        "left_off": max(0, len(text) - MAX_TEXT),
        "score": number_of(row.get("score")),
        "reward": number_of(row.get("reward")),
        "advantage": number_of(row.get("advantage")),
        "parts": {name: number_of(value) for name, value in loaded(row.get("parts")).items()},
        "failures": {name: str(why) for name, why in loaded(row.get("failures")).items()},
        "finish": row.get("finish_reason"),
        "version": row.get("version"),
        "length": row.get("length"),
    } | _episode(row)


def _episode(row: Line) -> Line:
    """What an environment made of the rollout; nothing of a rollout without one."""
    episode = loaded(row.get("episode"))
    messages, parts = episode.get("messages"), episode.get("parts")
    if not isinstance(messages, list) or not isinstance(parts, dict):
        return {}
    own = [one for one in messages if isinstance(one, dict) and one.get("role") == "assistant"]
    given = {str(name): number_of(value) for name, value in parts.items()}
    return {"turns": len(own), "environment": given, "calls": number_of(episode.get("num_calls"))}


PER_TOKEN = ("sampler_logprobs", "old_logprobs", "logprobs", "ref_logprobs", "entropy")


def token_columns(row: Line) -> Line:
    """What there is per token of a rollout; a list that was not computed is None."""
    ids = row.get("completion_ids") or []
    columns: Line = {"ids": ids, "mask": _of_length(row.get("mask"), len(ids))}
    if (emitted := _of_length(row.get("emitted"), len(ids))) is not None:
        columns["emitted"] = emitted
    for name in PER_TOKEN:
        values = _of_length(row.get(name), len(ids))
        columns[name] = None if values is None else [_short(value) for value in values]
    return columns


def _of_length(values: object, length: int) -> list[object] | None:
    return values if isinstance(values, list) and length and len(values) == length else None


def _short(value: object) -> float | None:
    """The number with the digits that float32 has."""
    number = number_of(value)
    return None if number is None else float(f"{number:.6g}")


def loaded(text: object) -> dict[str, object]:
    """The JSON object in a cell; an empty one for anything else."""
    try:
        value = json.loads(text, parse_constant=lambda _: None) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def question(row: Line) -> str:
    """What was asked: the last message where the prompt is a chat, else the whole prompt."""
    messages = loaded(row.get("sample")).get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    return content if isinstance(content, str) and content else _text(row.get("prompt_text"))


def brief(text: str) -> str:
    """The text on one line, its middle left out where it is long: prompts differ at their end."""
    line = " ".join(text.split())
    return line if len(line) <= _BRIEF else f"{line[: _BRIEF // 3]} … {line[-2 * _BRIEF // 3 :]}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
