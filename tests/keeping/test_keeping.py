"""When a run is saved, what is kept of it, and what a full disk does."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from muster import checkpoint
from muster.cli import main
from muster.errors import ConfigError, DiskFullError
from muster.files import Operation, watched
from muster.keeping import Keeper, Schedule, standing
from muster.loop import train
from muster.records import EvalReport, StepReport
from muster.run import Watchers, run
from muster.snapshot import snapshot
from muster.store import RunStore, read_events, read_metrics
from muster.using import locate, run_around
from tiny import save_tiny_model
from toy_run import config_for, toy_run

PLAIN = {"options": {"products": "linear"}}


def report(step: int, held_out: float | None = None) -> StepReport:
    held = None
    if held_out is not None:
        held = EvalReport(step=step, groups=(), metrics={"eval_reward": held_out})
    return StepReport(step=step, groups=(), traces=(), metrics={}, timings={}, eval=held)


class Kept:
    """A keeper over a toy run whose steps are only counted."""

    def __init__(self, folder: Path, num_steps: int = 99, **schedule: object) -> None:
        self.time, self.said = 0.0, []
        self.run = toy_run(num_steps=num_steps)
        next(train(self.run))  # so that the optimizer has a state
        self.store = RunStore.create(folder, "", {})
        plan = Schedule(**{"keep": 2, **schedule})
        self.keeper = Keeper(self.run, self.store, plan, self.said.append, lambda: self.time)

    def after(self, step: int, held_out: float | None = None, *, is_asked: bool = False) -> bool:
        self.run.state.step = step
        return self.keeper.after(report(step, held_out), is_asked=is_asked)

    @property
    def steps(self) -> list[int]:
        return sorted(int(path.name) for path in self.keeper.folder.iterdir())


def test_checkpoints_go_by_steps(tmp_path: Path):
    kept = Kept(tmp_path / "r", num_steps=7, every_steps=3)
    assert [step for step in range(8) if kept.after(step)] == [3, 6, 7]
    assert kept.steps == [6, 7]


def test_checkpoints_go_by_minutes_since_the_last_one(tmp_path: Path):
    kept = Kept(tmp_path / "r", every_s=60.0)
    saved = []
    for step, seconds in enumerate((0, 30, 61, 100, 120.9, 121, 400, 401)):
        kept.time = seconds
        if kept.after(step):
            saved.append(step)
    assert saved == [2, 5, 6]


def test_one_that_is_asked_for_is_saved_and_nothing_is_saved_before_a_step(tmp_path: Path):
    kept = Kept(tmp_path / "r")
    assert not kept.after(0, is_asked=True)
    assert not kept.after(1)
    assert kept.after(2, is_asked=True)
    assert kept.steps == [2]


def test_the_best_by_held_out_reward_is_saved_and_stays_beside_the_newest(tmp_path: Path):  # P6
    kept = Kept(tmp_path / "r", every_steps=10, keep=1)
    rewards = {0: 0.9, 2: 0.3, 4: 0.5, 6: 0.4, 8: 0.5}
    saved = [step for step in range(31) if kept.after(step, rewards.get(step))]
    # What was there before any update is no checkpoint, and an equal one is not better.
    assert saved == [2, 4, 10, 20, 30]
    assert kept.steps == [4, 30]
    (kept.keeper.folder / "000004" / "state.json").unlink()
    kept.after(40)
    assert kept.steps == [4, 40], "what is damaged is left for its owner"


def test_without_checkpoints_in_between_the_best_is_none_of_them(tmp_path: Path):
    kept = Kept(tmp_path / "r", num_steps=3)
    assert [step for step in range(4) if kept.after(step, held_out=1.0 - 0.1 * step)] == [3]


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path):
    kept = Kept(tmp_path / "r", every_steps=1)
    for step in (1, 2):
        kept.after(step)
    left = [".000003.partial", ".000001.4711.tmp"]
    mine = [".hidden", "notes.partial", "x.tmp", ".keep.tmp"]
    for name in left + mine:
        (kept.keeper.folder / name).mkdir()
        (kept.keeper.folder / name / "file").write_text("x")
    Keeper(kept.run, kept.store, Schedule(keep=2), kept.said.append)
    assert sorted(path.name for path in kept.keeper.folder.iterdir()) == sorted([*mine, "000001", "000002"])


def test_retention_that_was_cut_off_is_made_up_for(tmp_path: Path):
    kept = Kept(tmp_path / "r", every_steps=1, keep=9)
    for step in (1, 2, 3):
        kept.after(step)
    Keeper(kept.run, kept.store, Schedule(keep=1), kept.said.append)
    assert kept.steps == [3]


def full(operation: Operation) -> None:
    """No checkpoint has room, while everything else has."""
    if "checkpoints" in operation.path.parts and operation.kind == "write":
        raise OSError(28, "No space left on device")


def test_a_full_disk_stops_the_run_with_what_is_needed_and_what_stands(tmp_path: Path):  # P5
    kept = Kept(tmp_path / "r", every_steps=1, keep=1)
    kept.after(1)
    with watched(full), pytest.raises(DiskFullError) as caught:
        kept.after(2)
    for part in ("bytes and", "bytes are free", "Checkpoint 000001 stands: --resume", "run.on_full_disk"):
        assert part in str(caught.value)
    assert kept.steps == [1]
    assert checkpoint.damage(kept.keeper.folder / "000001") is None


def test_a_run_that_may_goes_on_with_a_warning_at_each_miss(tmp_path: Path):  # P5
    kept = Kept(tmp_path / "r", every_steps=1, keep=1, goes_on_when_full=True)
    kept.after(1)
    with watched(full):
        assert [kept.after(step) for step in (2, 3)] == [False, False]
    assert kept.after(4)
    texts = [event["text"] for event in read_events(kept.store.folder)]
    assert [text.split(":")[0] for text in texts] == ["no checkpoint of step 2", "no checkpoint of step 3"]
    assert kept.said == texts
    assert kept.steps == [4]


def test_a_disk_that_will_not_hold_it_is_found_before_the_first_byte(tmp_path: Path):  # P5
    # As many bytes as no disk has, of one number in memory.
    huge = {"w": torch.ones(1).expand(2**50)}
    told = checkpoint.Checkpoint(weights=huge, optimizer={}, old=None, state={})
    operations: list[Operation] = []
    with watched(operations.append), pytest.raises(DiskFullError, match=r"needs 4,503,599,627,[\d,]+ bytes"):
        checkpoint.save(tmp_path / "c", 1, told)
    assert operations == []


def test_what_a_checkpoint_needs_is_told_closely(tmp_path: Path):
    kept = Kept(tmp_path / "r", every_steps=1)
    kept.after(1)
    saved = kept.keeper.folder / "000001"
    size = sum(path.stat().st_size for path in saved.iterdir() if path.name != "manifest.json")
    assert size <= checkpoint.num_bytes(snapshot(kept.run)) < 1.3 * size


def test_a_disk_that_really_fills_up_leaves_the_last_checkpoint_and_a_clear_message(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):  # P5
    save_tiny_model(tmp_path / "model")
    config = config_for(
        tmp_path, small_disk, engine=PLAIN, run={"steps": 30, "save_every": 1, "keep": 20, "threads": 1}
    )
    said: list[str] = []
    with pytest.raises(DiskFullError) as caught:
        list(run(config, watchers=Watchers(say=said.append)))
    folder = small_disk / "toy"
    found, skipped = checkpoint.find(folder / "checkpoints")
    assert found is not None
    assert skipped == []
    assert f"Checkpoint {found.name} stands" in str(caught.value)
    assert not any("stands" in line for line in said), "once is enough"
    last = read_metrics(folder)[-1]["step"]
    # Now the logs have no room either.
    fill = small_disk / "fill"
    with suppress(OSError), fill.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
    with pytest.raises(DiskFullError, match="bytes are free"):
        list(run(config, resume=True))
    fill.unlink()
    kept = config.model_copy(update={"run": config.run.model_copy(update={"keep": 1})})
    steps = [step.step for step in run(kept, resume=True, watchers=Watchers(should_stop=lambda: True))]
    assert steps == [int(found.name) + 1]
    assert read_metrics(folder)[-1]["step"] <= last + 1


def test_the_best_checkpoint_is_exported_and_evaluated_by_that_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    save_tiny_model(tmp_path / "model")
    config = config_for(
        tmp_path,
        tmp_path / "runs",
        engine=PLAIN,
        eval={"every": 1},
        run={"steps": 3, "save_every": 1, "keep": 9},
    )
    list(run(config))
    folder = tmp_path / "runs" / "toy"
    rewards = {line["step"]: line["eval_reward"] for line in read_metrics(folder) if line["step"]}
    best = max(rewards, key=lambda step: (rewards[step], -step))
    named = folder / "checkpoints" / "best"
    assert locate(named, config).checkpoint == folder / "checkpoints" / f"{best:06d}"
    assert run_around(named) == folder
    assert main(["export", str(named), "--to", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match="holds no checkpoint of a step that was evaluated"):
        locate(named, config)


def test_what_stands_is_said_where_nothing_does(tmp_path: Path):
    assert standing(tmp_path / "none") == "There is no checkpoint yet: --resume starts the run over."
