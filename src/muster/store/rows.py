"""Groups and traces as a table with one row per rollout, and back."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from muster.records import Completion, Episode, Group, Prompt, Rollout, Sample, Score, StreamKey, Trace
from muster.store.strict import to_json

_PER_TOKEN = ("old_logprobs", "ref_logprobs", "logprobs", "entropy")

SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("index", pa.int32()),  # of the rollout in its group
        ("sample_id", pa.string()),
        ("sample", pa.string()),  # messages, text and columns of the sample, as JSON
        ("key", pa.list_(pa.int64(), 4)),  # of the random stream: seed, step, slot, attempt
        ("prompt_ids", pa.list_(pa.int32())),
        ("prompt_text", pa.string()),
        ("completion_ids", pa.list_(pa.int32())),
        ("completion_text", pa.string()),
        ("finish_reason", pa.string()),
        ("version", pa.int32()),
        ("score", pa.float64()),
        ("parts", pa.string()),  # reward by reward, as JSON
        ("failures", pa.string()),  # why, by reward, as JSON
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
        ("mask", pa.list_(pa.bool_())),
        ("sampler_logprobs", pa.list_(pa.float32())),
        *((name, pa.list_(pa.float32())) for name in _PER_TOKEN),
    ]
)
"""Of a run without an environment, and the start of one with it."""

EPISODE_SCHEMA = pa.schema(
    [
        *SCHEMA,
        (
            "emitted",
            pa.list_(pa.bool_()),
        ),  # per token: the policy's own, not the template's or an environment's
        ("episode", pa.string()),  # messages, parts, failure and calls, as JSON
    ]
)
"""Of rollouts that an environment took part in."""


Row = dict[str, Any]
"""A row as pyarrow hands it out: its types are those of the schema."""


class Rollouts(NamedTuple):
    """What a file of rollouts holds."""

    groups: tuple[Group, ...]
    traces: tuple[tuple[Trace, ...], ...]
    """In the order of `groups` and their rollouts; empty where nothing was trained (evaluation)."""


class PromptScores(NamedTuple):
    """What a group says about its prompt."""

    sample: Sample
    prompt_text: str
    scores: tuple[float | None, ...]
    """One per rollout; None where it has none."""


def to_parquet(groups: Sequence[Group], traces: Sequence[Sequence[Trace]] = ()) -> bytes:
    """One row per rollout, in order; equal records give equal bytes."""
    has_episodes = any(rollout.episode is not None for group in groups for rollout in group.rollouts)
    schema = EPISODE_SCHEMA if has_episodes else SCHEMA
    table = pa.Table.from_pylist(list(_rows(groups, traces)), schema=schema)
    sink = pa.BufferOutputStream()
    # Checksums let a reader tell a flipped bit from a number.
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def from_parquet(data: bytes) -> Rollouts:
    """The groups, and the traces where there are any."""
    # Not a Python file: arrow would read it in threads of its own, and one that lets go of it
    # after the interpreter has ended aborts the process.
    rows = pq.read_table(
        pa.BufferReader(data), use_threads=False, page_checksum_verification=True
    ).to_pylist()
    by_group = [list(some) for _, some in groupby(rows, key=lambda row: row["group_id"])]
    has_traces = any(row["advantage"] is not None for row in rows)
    return Rollouts(
        groups=tuple(_group(some) for some in by_group),
        traces=tuple(tuple(_trace(row) for row in some) for some in by_group) if has_traces else (),
    )


def scores_from_parquet(data: bytes) -> tuple[PromptScores, ...]:
    """The scores of each group, in order, without what is large: its tokens and texts."""
    columns = ["group_id", "sample_id", "sample", "prompt_text", "score"]
    table = pq.read_table(
        pa.BufferReader(data), columns=columns, use_threads=False, page_checksum_verification=True
    )
    rows = table.to_pylist()
    by_group = [list(some) for _, some in groupby(rows, key=lambda row: row["group_id"])]
    return tuple(
        PromptScores(_sample(some[0]), some[0]["prompt_text"], tuple(row["score"] for row in some))
        for some in by_group
    )


def _rows(groups: Sequence[Group], traces: Sequence[Sequence[Trace]]) -> Iterator[Row]:
    for place, group in enumerate(groups):
        shared = _group_columns(group)
        for index, rollout in enumerate(group.rollouts):
            trace = traces[place][index] if traces else None
            yield {**shared, "index": index, **_rollout_columns(rollout), **_trace_columns(trace)}


def _group_columns(group: Group) -> Row:
    sample = group.sample
    return {
        "group_id": group.id,
        "sample_id": sample.id,
        "sample": to_json({"messages": sample.messages, "text": sample.text, "columns": sample.columns}),
        "key": list(group.prompt.key),
        "prompt_ids": group.prompt.ids,
        "prompt_text": _storable(group.prompt_text),
    }


def _rollout_columns(rollout: Rollout) -> Row:
    completion, score = rollout.completion, rollout.score
    return {
        "completion_ids": completion.ids,
        "completion_text": _storable(rollout.text),
        "finish_reason": completion.finish_reason,
        "version": completion.version,
        "score": score.value,
        "parts": to_json(score.parts),
        "failures": to_json(score.failures),
        "sampler_logprobs": completion.sampler_logprobs,
        "emitted": completion.emitted,
        "episode": None if rollout.episode is None else to_json(asdict(rollout.episode)),
    }


def _trace_columns(trace: Trace | None) -> Row:
    if trace is None:
        return {}
    lists = {name: getattr(trace, name) for name in _PER_TOKEN}
    return {"reward": trace.reward, "advantage": trace.advantage, "mask": trace.mask, **lists}


def _group(rows: Sequence[Row]) -> Group:
    """The group of these rows; what they share is read from the first."""
    first = rows[0]
    return Group(
        id=first["group_id"],
        sample=_sample(first),
        prompt=Prompt(ids=tuple(first["prompt_ids"]), key=StreamKey(*first["key"])),
        prompt_text=first["prompt_text"],
        rollouts=tuple(_rollout(row) for row in rows),
    )


def _sample(row: Row) -> Sample:
    content = json.loads(row["sample"])
    return Sample(
        id=row["sample_id"],
        messages=tuple(content["messages"]),
        text=content["text"],
        columns=content["columns"],
    )


def _rollout(row: Row) -> Rollout:
    return Rollout(
        completion=Completion(
            ids=tuple(row["completion_ids"]),
            sampler_logprobs=tuple(row["sampler_logprobs"]),
            finish_reason=row["finish_reason"],
            version=row["version"],
            emitted=None if row.get("emitted") is None else tuple(row["emitted"]),
        ),
        text=row["completion_text"],
        score=Score(value=row["score"], parts=json.loads(row["parts"]), failures=json.loads(row["failures"])),
        episode=_episode(row.get("episode")),
    )


def _episode(text: str | None) -> Episode | None:
    if text is None:
        return None
    read = json.loads(text)
    return Episode(**{**read, "messages": tuple(read["messages"])})


def _trace(row: Row) -> Trace:
    return Trace(
        reward=row["reward"],
        advantage=row["advantage"],
        mask=tuple(row["mask"]),
        **{name: tuple(row[name]) for name in _PER_TOKEN},
    )


def _storable(text: str) -> str:
    """The text; half of a surrogate pair, which no file can hold, as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
