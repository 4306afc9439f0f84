"""Rules on what no run should be: numbers that are missing, not finite or constant, steps without groups."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli import main
from muster.doctor import Course, Settings, Watch, course_of, examine, findings
from muster.doctor.course import HeldOut
from muster.doctor.facts import StepFacts, facts_of
from muster.records import Score, Trace
from toy_run import completion_of, group_of

NAMES = (
    "reward", "reward_std", "frac_reward_zero_std", "rollouts/failed", "rewards/a/mean", "rewards/a/std",
    "rewards/b/mean", "rewards/b/std", "entropy", "grad_norm", "updates", "updates/skipped", "kl_k3",
    "clip_ratio/region_mean", "completions/mean_length", "completions/clipped_ratio", "num_completions",
    "sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max",
)  # fmt: skip
VALUES = st.one_of(st.none(), st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf]), st.floats(-1e6, 1e6))
LINE = st.dictionaries(st.sampled_from(NAMES), VALUES)
SCORES = st.lists(
    st.one_of(
        st.sampled_from([0.0, 1.0, None, Score(value=None, failures={"r": "broke"})]), st.floats(-5, 5)
    ),
    min_size=1,
    max_size=4,
)
STEP = st.lists(SCORES, max_size=3)


def facts(step: int, groups: Sequence[Sequence[Score | float | None]]) -> StepFacts:
    made = [
        group_of(scores, slot=slot, completions=[completion_of(range(n % 3, 9)) for n in range(len(scores))])
        for slot, scores in enumerate(groups)
    ]
    traces = [
        [Trace(reward=None, advantage=0.0, mask=(True,) * len(r.completion.ids)) for r in group.rollouts]
        for group in made
    ]
    return facts_of(step, made, traces)


@given(
    st.lists(LINE, min_size=1, max_size=14),
    st.lists(STEP, min_size=1, max_size=8),
    st.lists(st.fixed_dictionaries({"sample": st.floats(0, 9)}), max_size=14),
)
def test_no_rule_fails_on_odd_numbers(lines, steps, seconds):
    course = Course(
        settings=Settings(kl_coef=0.1, weights={"a": 1.0, "b": 0.0}),
        lines=[{"step": number, **line} for number, line in enumerate(lines, start=1)],
        held_out=[HeldOut(0, {"0": 0.5}), HeldOut(4, {})],
        timings=[{"step": n, "seconds": took, "tokens": 4} for n, took in enumerate(seconds, start=1)],
        facts=[facts(number, groups) for number, groups in enumerate(steps, start=1)],
    )
    for finding in examine(course):
        assert json.loads(json.dumps(finding.to_plain(), allow_nan=False))["name"] == finding.name


def test_a_damaged_file_of_rollouts_is_left_out_and_named(
    recorded_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "run"
    shutil.copytree(recorded_runs / "plateau", folder)
    (folder / "rollouts" / "000003.parquet").write_bytes(b"no parquet")
    Watch(folder)
    course, whole = course_of(folder), course_of(recorded_runs / "plateau")
    assert [facts.step for facts in course.facts] == [f.step for f in whole.facts if f.step != 3]
    assert main(["doctor", str(folder)]) == 0
    said = capsys.readouterr()
    assert "plateau" in said.out
    assert said.err.startswith("left out: ")
    assert "000003.parquet" in said.err


def test_another_trainers_metrics_are_read_without_a_configuration(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.6}\n')
    assert findings(tmp_path) == []
