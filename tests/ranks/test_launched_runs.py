"""The command line under torchrun, which starts the ranks again when one dies."""

import os
import subprocess
import sys
from pathlib import Path

from muster.config import to_toml
from muster.store import read_events, read_meta, read_metrics
from toy_run import config_for

DYING = """
import os, signal
from pathlib import Path

def reward(completion, completion_ids, trainer_state):
    here = Path(__file__).with_name("died")
    if trainer_state.global_step == 3 and os.environ["RANK"] == "1" and not here.exists():
        here.write_text("once")
        os.kill(os.getpid(), signal.SIGKILL)
    return sum(i < 64 for i in completion_ids) / len(completion_ids)
"""


def launched(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """torchrun with two ranks and one more life."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, "--max-restarts", "1", "-m", "muster", "train", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_a_rank_that_is_killed_is_started_again_and_the_run_goes_on(place: Path, tmp_path: Path):
    (tmp_path / "grade.py").write_text(DYING)
    reward = {"use": [f"{tmp_path / 'grade.py'}:reward"], "in_process": ["reward"]}
    config = config_for(place, tmp_path / "runs", reward=reward, run={"save_every": 1, "name": "two"})
    (tmp_path / "run.toml").write_text(to_toml(config))
    done = launched(tmp_path, "run.toml", "--requeue")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "two"
    assert (tmp_path / "died").exists()
    assert [line["step"] for line in read_metrics(folder)] == [1, 2, 3, 4]
    kinds = [event["kind"] for event in read_events(folder)]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert "resume" in kinds
    assert read_meta(folder)["ranks"] == 2
    # One of them speaks.
    assert done.stdout.count("exported to") + done.stderr.count("exported to") == 1
