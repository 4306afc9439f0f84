"""Each rule on the run that was really trained to show it, and all of them on healthy ones."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from muster.doctor import KINDS, RULES, Course, Finding, Watch, course_of, examine, findings
from muster.records import EvalReport, StepReport
from muster.store import eval_steps, read_eval, read_metrics, read_rollouts, read_timings

HEALTHY = ("healthy-extraction", "healthy-graded", "healthy-binary")
SHOWN = tuple(kind.name for kind in RULES)
CourseIn = Callable[[str], Course]


def found_in(course: Course) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(course)}


@pytest.mark.parametrize("name", SHOWN)
def test_each_fault_is_found_in_the_run_that_was_trained_with_it(
    name: str, recorded_runs: Path, course_in: CourseIn
):
    found = found_in(course_in(name))[name]
    steps = [line["step"] for line in read_metrics(recorded_runs / name)]
    assert steps[0] <= found.since <= steps[-1]
    assert found.what
    assert found.how
    assert found.evidence.numbers


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_have_no_findings(name: str, course_in: CourseIn):
    assert [finding.what for finding in examine(course_in(name))] == []


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_are_worth_being_silent_about(name: str, course_in: CourseIn):
    rewards = course_in(name).shift("reward")
    assert rewards is not None
    assert rewards.rises


def test_the_evidence_can_be_looked_up(recorded_runs: Path, course_in: CourseIn):
    seen = 0
    for name in SHOWN:
        read = cache(partial(read_rollouts, recorded_runs / name))
        for finding in examine(course_in(name)):
            for ref in finding.evidence.rollouts:
                group = read(ref.step).groups[ref.place]
                assert group.id == ref.group
                assert ref.rollout < len(group.rollouts)
                seen += 1
            for ref in finding.evidence.groups:
                group = read(ref.step).groups[ref.place]
                assert (group.id, group.sample.id) == (ref.group, ref.sample)
                seen += 1
    assert seen > 50


def test_with_an_environment_truncation_speaks_of_each_limit(recorded_runs: Path, tmp_path: Path):
    folder = shutil.copytree(recorded_runs / "truncation", tmp_path / "run")
    text = (folder / "config.toml").read_text(encoding="utf-8")
    (folder / "config.toml").write_text(text.replace("[data]", '[data]\nenvironment = "guessing_game"'))
    found = found_in(course_of(folder))["truncation"]
    assert "are cut at sampling.max_tokens, at model.max_tokens, or within a turn, 14% at first" in found.what


def test_groups_without_signal_say_which_side_they_are_on(course_in: CourseIn):
    wrong = found_in(course_in("no-signal"))["no-signal"]
    right = found_in(course_in("no-signal-mastered"))["no-signal"]
    assert (wrong.level, wrong.evidence.numbers["all wrong"], wrong.evidence.numbers["all right"]) == (
        "warning", 12, 0,
    )  # fmt: skip
    assert right.level == "note"
    assert right.evidence.numbers["all right"] == right.evidence.numbers["equal"]


def test_a_collapse_points_at_completions_that_are_the_same(recorded_runs: Path, course_in: CourseIn):
    folder = recorded_runs / "few-tokens"
    refs = found_in(course_in("few-tokens"))["mode-collapse"].evidence.rollouts
    texts = {read_rollouts(folder, r.step).groups[r.place].rollouts[r.rollout].completion.ids for r in refs}
    assert len(refs) > 1
    assert len(texts) == 1


def test_a_failing_reward_is_quoted_and_its_rollouts_named(recorded_runs: Path, course_in: CourseIn):
    folder = recorded_runs / "reward-errors"
    found = found_in(course_in("reward-errors"))["reward-errors"]
    assert "unbalanced bracket" in found.what
    for ref in found.evidence.rollouts:
        assert read_rollouts(folder, ref.step).groups[ref.place].rollouts[ref.rollout].score.is_failure


def reports_of(folder: Path) -> list[StepReport]:
    """The run as it was handed out step by step."""
    seconds = {line["step"]: line["seconds"] for line in read_timings(folder)}
    reports = []
    for line in read_metrics(folder):
        step = line["step"]
        is_trained = "reward" in line
        stored = read_rollouts(folder, step) if is_trained else None
        held_out = read_eval(folder, step).groups if step in eval_steps(folder) else None
        reports.append(
            StepReport(
                step=step,
                groups=stored.groups if stored else (),
                traces=stored.traces if stored else (),
                metrics={key: value for key, value in line.items() if key != "step"},
                timings=seconds[step],
                eval=EvalReport(step=step, groups=held_out, metrics={}) if held_out else None,
            )
        )
    return reports


def empty_run(folder: Path, like: Path) -> Path:
    folder.mkdir()
    for name in ("config.toml", "meta.json"):
        (folder / name).write_bytes((like / name).read_bytes())
    return folder


@pytest.mark.parametrize("name", SHOWN)
def test_the_rules_tell_it_while_the_run_goes_on_and_once(name: str, recorded_runs: Path, tmp_path: Path):
    watch = Watch(empty_run(tmp_path / "new", recorded_runs / name))
    reports = reports_of(recorded_runs / name)
    told = [
        (report.step, finding)
        for report in reports
        for finding in watch.add(report, is_last=report is reports[-1])
    ]
    names = [(finding.name, finding.level) for _, finding in told]
    assert name in [finding.name for _, finding in told]
    assert len(names) == len(set(names))
    assert all(finding.since <= step for step, finding in told)


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_are_told_nothing_while_they_go_on(name: str, recorded_runs: Path, tmp_path: Path):
    watch = Watch(empty_run(tmp_path / "new", recorded_runs / name))
    assert [f.what for report in reports_of(recorded_runs / name) for f in watch.add(report)] == []


@pytest.mark.parametrize(("step", "is_known"), [(0, True), (32, False)])
def test_a_resumed_run_knows_what_was_told_at_steps_that_stay(
    step: int, is_known: bool, recorded_runs: Path, tmp_path: Path
):
    source = recorded_runs / "plateau"
    watch = Watch(empty_run(tmp_path / "new", source))
    first = [finding for report in reports_of(source) for finding in watch.add(report)]
    events = [json.dumps({"kind": "finding", "step": step, **finding.to_plain()}) for finding in first]
    resumed = tmp_path / "resumed"
    empty_run(resumed, source)
    (resumed / "events.jsonl").write_text("".join(f"{event}\n" for event in events))
    again = Watch(resumed)
    told = [finding.name for report in reports_of(source) for finding in again.add(report)]
    assert first
    assert told == ([] if is_known else [finding.name for finding in first])


def test_nothing_is_found_before_there_is_a_step(recorded_runs: Path, tmp_path: Path):
    assert findings(empty_run(tmp_path / "new", recorded_runs / "plateau")) == []


def test_a_finding_is_plain_data_in_the_order_in_which_it_is_told(recorded_runs: Path):
    for finding in findings(recorded_runs / "reward-hacking"):
        plain = json.loads(json.dumps(finding.to_plain()))
        assert list(plain) == ["name", "level", "what", "since", "sure", "how", "evidence", "means", "change"]


def test_the_doctor_runs_without_torch(recorded_runs: Path):
    program = (
        "import sys, pathlib, muster.doctor as d\n"
        f"found = d.findings(pathlib.Path({str(recorded_runs / 'plateau')!r}))\n"
        "sys.exit(not found or 'torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_are_those_of_files():
    assert all(name == name.lower() and " " not in name for name in KINDS)
