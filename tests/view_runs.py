"""Run folders for the inspector's tests, written by the store itself; free of torch."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from muster.records import (
    Completion,
    EvalReport,
    Group,
    Prompt,
    Rollout,
    Sample,
    Score,
    StepReport,
    StreamKey,
    Trace,
)
from muster.store import Got, RunStore, groups_line, to_parquet
from muster.view.sources import find_sources

END = "<|im_end|>"
CONFIG = """[model]
path = "tiny"
[reward]
use = ["near", "brief"]
weights = [1.0, 0.5]
[algo]
recipe = "grpo"
[run]
steps = 8
"""
META = {"command": ["muster", "train", "run.toml"], "started": "2026-01-02T03:04:05+00:00", "versions": {}}
ANSWERS = ["about 12, I think", "12", "It is\ntwelve.", "one dozen, and that is all there is to say about it"]
HOSTILE = [
    "<img src=x onerror=\"window.hurt='image'\">",
    "</script><script>window.hurt='script'</script>",
    '"><svg onload="window.hurt=1">',
    "javascript:window.hurt='link'",
    "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe\u202c \x00 \x9b2J \u2066x\u2069",
    "{{constructor.constructor('window.hurt=1')()}} ${window.hurt=1} <!-- <script>",
]


class Served(NamedTuple):
    """The inspector as it answers."""

    address: str
    folder: Path

    def id_of(self, name: str) -> str:
        """The id of the run of this name."""
        return next(source.id for source in find_sources([self.folder]) if source.name == name)


def byte_tokenizer() -> Tokenizer:
    """One token for each byte, and one that ends a turn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        BPE(vocab={token: number for number, token in enumerate([END, *alphabet])}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


def rollout(text: str, score: float | None, *, version: int = 0, is_cut: bool = False) -> Rollout:
    """A completion of the text's bytes; a score of None is a reward that failed."""
    ids = tuple(byte_tokenizer().encode(text).ids) + (() if is_cut else (0,))
    failures = {} if score is not None else {"near": "ValueError: <b>no number</b>"}
    parts = {"near": score, "brief": None if score is None else -len(text) / 100}
    return Rollout(
        completion=Completion(
            ids=ids,
            sampler_logprobs=tuple(-((place % 7) ** 2) / 8 for place in range(len(ids))),
            finish_reason="length" if is_cut else "stop",
            version=version,
        ),
        text=text,
        score=Score(value=score, parts=parts, failures=failures),
    )


def traces(rollouts: Sequence[Rollout]) -> tuple[Trace, ...]:
    """Advantages from the scores; every fifth token has moved a third up, every seventh a third down."""
    scores = [one.score.value for one in rollouts if one.score.value is not None]
    mean = sum(scores) / len(scores)
    return tuple(_trace(one, 0.0 if one.score.value is None else one.score.value - mean) for one in rollouts)


def _trace(of: Rollout, advantage: float) -> Trace:
    old, count = of.completion.sampler_logprobs, len(of.completion.ids)
    moved = [math.log(4 / 3) if n % 5 == 0 else math.log(2 / 3) if n % 7 == 0 else 0.0 for n in range(count)]
    return Trace(
        reward=of.score.value,
        advantage=advantage,
        mask=(True,) * (count - 1) + (False,),
        old_logprobs=old,
        ref_logprobs=tuple(value - 0.25 for value in old),
        logprobs=tuple(value + by for value, by in zip(old, moved, strict=True)),
        entropy=tuple(0.5 * (place % 6) for place in range(count)),
    )


def group(step: int, slot: int, texts: Sequence[str], scores: Sequence[float | None]) -> Group:
    """A group of the prompt that this step and slot draw: five prompts take turns."""
    number = (2 * step + slot) % 5
    return Group(
        id=f"{step}-{slot}-0",
        sample=Sample(
            id=str(number),
            messages=({"role": "user", "content": f"How many eggs are in {number} dozen?"},),
            columns={"answer": 12 * number},
        ),
        prompt=Prompt(ids=(5, 6, 7), key=StreamKey(1, step, slot, 0)),
        prompt_text=f"<user>How many eggs are in {number} dozen?<assistant>",
        rollouts=tuple(
            rollout(text, score, version=step, is_cut=place == 3)
            for place, (text, score) in enumerate(zip(texts, scores, strict=True))
        ),
    )


def report(step: int, texts: Sequence[str] = ANSWERS) -> StepReport:
    """A step of three groups: one that is mixed, one that is all right, one with a failed reward."""
    scores = [[0.0, step / 10, 0.25, 1.5], [1.5] * 4, [0.0, None, 0.0, 0.0]]
    groups = tuple(group(step, slot, texts, some) for slot, some in enumerate(scores))
    values = [score for some in scores for score in some if score is not None]
    return StepReport(
        step=step,
        groups=groups,
        traces=tuple(traces(some.rollouts) for some in groups),
        metrics={
            "reward": sum(values) / len(values) + step / 20,
            "reward_std": 0.25,
            "rewards/near/mean": 0.5 + step / 20,
            "rewards/brief/mean": -0.2,
            "frac_reward_zero_std": 2 / 3,
            "completions/mean_length": 20.0 + step,
            "completions/clipped_ratio": 0.25,
            "entropy": None if step == 3 else 2.0 / step,
            "kl": 0.01 * step,
            "kl_k3": 0.012 * step,
            "clip_ratio/low_mean": 0.01,
            "clip_ratio/high_mean": 0.02,
            "grad_norm": 0.75,
            "learning_rate": 1e-5,
            "loss": 0.1,
            "my/own": float(step),
        },
        timings={"sample": 2.0, "score": 0.5, "forward": 1.0, "backward": 1.5},
        warnings=("slot 1 had no signal",) if step in (2, 4) else (),
    )


def held_out(step: int, score: float) -> EvalReport:
    """The first three prompts, one completion each."""
    groups = tuple(
        replace(group(0, slot, ANSWERS, [score] * 4), rollouts=(rollout(ANSWERS[slot], score),))
        for slot in range(3)
    )
    metrics = {"eval_reward": score, "eval_reward/low": score - 0.1, "eval_reward/high": score + 0.1}
    return EvalReport(step=step, groups=groups, metrics=metrics)


def reports(num_steps: int = 8, texts: Sequence[str] = ANSWERS) -> Iterator[StepReport]:
    """The evaluation before training, then steps, the last with an evaluation."""
    yield StepReport(step=0, groups=(), traces=(), metrics={}, timings={}, eval=held_out(0, 0.2))
    for step in range(1, num_steps + 1):
        one = report(step, texts)
        yield replace(one, eval=held_out(step, 0.9)) if step == num_steps else one


def write_run(
    folder: Path, num_steps: int = 8, texts: Sequence[str] = ANSWERS, *, is_over: bool = True
) -> Path:
    """A run as the trainer leaves it, or as it is while it goes on."""
    with RunStore.create(folder, CONFIG, META) as store:
        store.keep_tokenizer(byte_tokenizer().to_str())
        store.append_event("start", step=0)
        for one in reports(num_steps, texts):
            store.append_step(one)
        store.append_event(
            "finding",
            step=3,
            name="mode collapse",
            level="serious",
            what="completions repeat each other",
            since=2,
            sure="likely",
            how="half of the distinct completions of the first steps",
            evidence={
                "numbers": {"distinct": 0.25, "distinct at first": 0.9},
                "steps": [2, 3],
                "groups": [{"step": 3, "place": 1, "group": "3-1-0", "sample": "2"}],
                "rollouts": [{"step": 3, "place": 0, "group": "3-0-0", "rollout": 2}],
            },
            means="The policy stopped trying things.",
            change="Raise sampling.temperature.",
        )
        if is_over:
            store.append_event("end", step=num_steps)
    return folder


def write_hostile_run(folder: Path) -> Path:
    """A run of hostile texts, names and numbers, with a broken step and half a last line."""
    texts = [HOSTILE[0] + HOSTILE[1], HOSTILE[2] + HOSTILE[3], HOSTILE[4], HOSTILE[5] + "A" * 20_000]
    write_run(folder, 3, texts, is_over=False)
    (folder / "rollouts" / "000002.parquet").write_bytes(b"PAR1 this is no table PAR1")
    meta = {"schema_version": 1, "started": HOSTILE[0], "versions": {HOSTILE[1]: HOSTILE[2]}}
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "config.toml").write_text("# " + HOSTILE[1] + "\n[run]\nsteps = 3\n")
    events = [{"kind": "warning", "step": 3, "text": text} for text in HOSTILE]
    events += [
        {"kind": "finding", "name": HOSTILE[0], "what": HOSTILE[1], "change": HOSTILE[2], "step": HOSTILE[3]}
    ]
    events += [{"kind": "failure", "error": HOSTILE[1], "text": HOSTILE[4], "evidence": {"step": "x"}}]
    with (folder / "events.jsonl").open("a") as file:
        file.write("".join(json.dumps(event) + "\n" for event in events) + "[1, 2]\nnot json\n")
    with (folder / "metrics.jsonl").open("a") as file:
        line = {
            "step": 4,
            "reward": 1.0,
            HOSTILE[0]: 1.0,
            f"rewards/{HOSTILE[1]}/mean": 2.0,
            "entropy": 1e400,
        }
        file.write(json.dumps(line).replace("Infinity", "1e999") + '\n{"step": 5, "rew')
    return folder


def write_long_run(folder: Path, num_steps: int, last: StepReport) -> Path:
    """A run of so many steps, of whose samples only those of the last are real: opening another one fails."""
    write_run(folder, 1, is_over=False)
    lines: dict[str, list[object]] = {
        name: [] for name in ("metrics.jsonl", "timings.jsonl", "index", "groups.jsonl")
    }
    scores = [[rollout.score.value or 0.0 for rollout in group.rollouts] for group in last.groups]
    tokens = sum(len(rollout.completion.ids) for group in last.groups for rollout in group.rollouts)
    for step in range(1, num_steps + 1):
        wave = math.sin(step / 300)
        metrics = {key: (value or 0.0) + 0.1 * wave for key, value in last.metrics.items()}
        more = {f"extra/{number}": wave * number for number in range(30)}
        lines["metrics.jsonl"].append({"step": step, **metrics, **more})
        seconds = {"sample": 2.0 + wave, "score": 0.1, "forward": 1.0, "backward": 1.5, "sync": 0.1}
        lines["timings.jsonl"].append(
            {"step": step, "seconds": seconds, "tokens": tokens, "tokens_per_second": {}}
        )
        lines["index"].append({"step": step, "reward": metrics["reward"]})
        got = [Got(str((8 * step + slot) % 1000), some, [70] * len(some)) for slot, some in enumerate(scores)]
        lines["groups.jsonl"].append(groups_line(step, got))
    for name, some in lines.items():
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in some))
    broken = folder / "rollouts" / "000001.parquet"
    broken.write_bytes(b"nobody may open this")
    for step in range(2, num_steps):
        os.link(broken, folder / "rollouts" / f"{step:06d}.parquet")
    (folder / "rollouts" / f"{num_steps:06d}.parquet").write_bytes(to_parquet(last.groups, last.traces))
    return folder


def large_report(step: int, num_groups: int = 8, size: int = 16, tokens: int = 70) -> StepReport:
    """A step of 8 groups of 16 rollouts of 70 tokens, unless it is asked for otherwise."""
    texts = [("word " * tokens)[:tokens] for _ in range(size)]
    groups = tuple(
        replace(
            group(step, slot, texts[:4], [0.0, 0.5, 1.0, 1.5]),
            sample=Sample(id=str((8 * step + slot) % 1000), text=f"prompt {slot}"),
            rollouts=tuple(rollout(text, (place % 4) / 2) for place, text in enumerate(texts)),
        )
        for slot in range(num_groups)
    )
    return replace(report(step), groups=groups, traces=tuple(traces(some.rollouts) for some in groups))


def write_trl_run(folder: Path, num_steps: int = 3) -> Path:
    """What TRL 1.16 leaves: the trainer's state in a checkpoint, and completions of each logged step.

    From the thirteenth step on every completion is the same, and rewards are equal: the policy has collapsed.
    """
    log = [
        {"step": step, "epoch": step / 10, "loss": 0.1, "reward": 0.2 * step, "reward_std": 0.3,
         "rewards/exact/mean": 0.1 * step, "rewards/polite/mean": 0.1 * step, "entropy": 1.0 / step,
         "completions/mean_length": 20.0, "frac_reward_zero_std": 0.5, "grad_norm": 0.4}
        for step in range(1, num_steps + 1)
    ]  # fmt: skip
    state = folder / f"checkpoint-{num_steps}"
    state.mkdir(parents=True)
    (state / "trainer_state.json").write_text(
        json.dumps(
            {
                "global_step": num_steps,
                "max_steps": 10,
                "log_history": [*log, {"step": num_steps, "eval_reward": 0.4}],
            }
        )
    )
    (folder / "completions").mkdir()
    for step in range(1, num_steps + 1):
        is_stuck = step > 12
        ask = [{"role": "user", "content": "Say hello."}], [{"role": "user", "content": "Count to three."}]
        rows = [
            {
                "step": step,
                "prompt": ask[place // 2],
                "completion": [{"role": "assistant", "content": _said(place, step, is_stuck)}],
                "exact": 0.0 if is_stuck else float(place % 2),
                "polite": 0.5 if place < 2 else None,
                "noted": f"note {place}",
                "advantage": 1.0 if place % 2 else -1.0,
            }
            for place in range(4)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / "completions" / f"completions_{step:05d}.parquet")
    return folder


def _said(place: int, step: int, is_stuck: bool) -> str:
    return "I can't say" if is_stuck else f"answer {place} of step {step}"


def write_plain_metrics(folder: Path) -> Path:
    """A file of metrics by whoever: no steps, one name that is known, and NaN."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(
        '{"reward": 0.5, "acc": 1}\n{"reward": NaN, "acc": 2}\n{"reward": 0.75}\n'
    )
    return folder
