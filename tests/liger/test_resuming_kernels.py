"""A run keeps the kernels that it began with, or says what computes otherwise."""

import json
from pathlib import Path

import pytest

from liger_like import VERSION, LigerGELUMulFunction, LigerRMSNormFunction, LigerSiLUMulFunction
from muster import checkpoint
from muster.errors import CheckpointError
from muster.liger import Kernels, Pieces, fit
from muster.loop import train
from muster.runstate import Run
from muster.snapshot import restore, snapshot
from tiny import tiny_policy
from toy_run import toy_run

KERNELS = Kernels(VERSION, LigerRMSNormFunction.apply, LigerSiLUMulFunction.apply, LigerGELUMulFunction.apply)
NORM, GATED = "norm 32 float32", "gated 48 float32"
DIFFERS = "from here on numbers differ by rounding from those of a run that was not interrupted"


def run_with(kernels: Kernels | None) -> Run:
    run = toy_run(tiny_policy(), num_steps=2)
    if kernels is not None:
        policy = run.policy
        policy.pieces = fit(
            policy.backbone, policy.precision, device_type="cpu", kernels=kernels, num_elements=4096
        )
    return run


def saved_after_a_step(folder: Path, taken: frozenset[str]) -> tuple[Run, Path]:
    """A whole run of two steps that computed so, and its checkpoint after the first."""
    run = run_with(KERNELS)
    run.policy.pieces.taken = taken
    steps = train(run)
    assert next(steps).step == 1
    path = checkpoint.save(folder, 1, snapshot(run))
    assert [report.step for report in steps] == [2]
    return run, path


def gone_on_from(path: Path, kernels: Kernels | None) -> Run:
    run = run_with(kernels)
    restore(run, path)
    assert [report.step for report in train(run)] == [2]
    return run


def differences(mine: Run, other: Run) -> list[float]:
    weights = other.policy.snapshot()
    return [float((param - weights[name]).abs().max()) for name, param in mine.policy.snapshot().items()]


def test_a_resumed_run_computes_by_the_kernels_it_took_to_the_last_bit(tmp_path: Path):
    whole, path = saved_after_a_step(tmp_path, frozenset({NORM}))
    assert json.loads((path / "state.json").read_text())["pieces"] == {"version": VERSION, "names": [NORM]}
    resumed = gone_on_from(path, KERNELS)
    assert resumed.policy.pieces.taken == {NORM}
    assert max(differences(resumed, whole)) == 0
    first, second = resumed.policy.pieces.lines()
    assert first.startswith(f"computed by liger-kernel {VERSION}: {NORM} (")
    assert second == f"not by liger-kernel, which is installed: {GATED} (as the run began)"


def test_a_run_that_began_without_kernels_goes_on_without_them(tmp_path: Path):
    whole, path = saved_after_a_step(tmp_path, frozenset())
    assert "pieces" not in json.loads((path / "state.json").read_text())
    resumed = gone_on_from(path, KERNELS)
    assert resumed.policy.pieces.taken == frozenset()
    assert max(differences(resumed, whole)) == 0
    assert gone_on_from(path, None).policy.pieces.lines() == []


def test_where_the_package_is_gone_the_run_goes_on_and_says_what_differs(tmp_path: Path):
    whole, path = saved_after_a_step(tmp_path, frozenset({NORM, GATED}))
    resumed = gone_on_from(path, None)
    assert 0 < max(differences(resumed, whole)) < 3e-4
    assert resumed.policy.pieces.lines() == [
        f"the run computed {GATED}, {NORM} by liger-kernel {VERSION}, which computes nothing here; the "
        f"model's own code does now: {DIFFERS}"
    ]
    # From here on that is how it computes.
    assert "pieces" not in snapshot(resumed).state


def test_of_another_version_what_is_still_equal_is_kept_and_said(tmp_path: Path):
    _, path = saved_after_a_step(tmp_path, frozenset({NORM, GATED}))
    wrong = KERNELS._replace(version="0.0.8", silu=lambda a, b: a * b)
    run = run_with(wrong)
    restore(run, path)
    pieces = run.policy.pieces
    assert pieces.taken == {NORM}
    assert [line for line in pieces.lines() if line.startswith("the run")] == [
        f"the run was saved under liger-kernel {VERSION}: {DIFFERS}",
        f"the run computed {GATED} by liger-kernel {VERSION}, which has no equal here; the model's own "
        f"code does now: {DIFFERS}",
    ]
    assert run.policy.pieces.recorded() == {"pieces": {"version": "0.0.8", "names": [NORM]}}


@pytest.mark.parametrize("saved", ["norm", {"version": 1, "names": []}, {"names": [NORM]}])
def test_a_checkpoint_that_says_it_otherwise_is_refused(saved: object):
    with pytest.raises(CheckpointError, match=r"holds pieces = .*Resume with the version that saved it"):
        Pieces().keep(saved)
