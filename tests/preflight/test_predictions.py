"""What a check predicts against what a run of the same configuration takes, each in a process of its own."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import toy_rewards
from muster.config import to_toml
from muster.store import read_timings
from tiny import save_tiny_model
from toy_run import config_for

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
"""18 million weights: with gradients and optimizer 280 MB, on a process of about 400 MB."""
PROGRAM = """
import resource, sys
from muster.cli import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
sys.exit(code)
"""


def outcome(*arguments: str) -> tuple[str, int]:
    """What the command prints, and the most memory that it held."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, int(done.stderr.splitlines()[-1])


def test_memory_is_predicted_within_a_fifth_and_time_to_its_order(tmp_path: Path):
    save_tiny_model(tmp_path / "model", "llama", **SIZES)
    config = config_for(
        tmp_path,
        tmp_path / "runs",
        reward={"use": [f"{toy_rewards.__file__}:low_bytes"]},
        sampling={"max_tokens": 16},
        run={"threads": 1, "budget_tokens": 2048},
        eval={"every": 0},
    )
    (tmp_path / "run.toml").write_text(to_toml(config), encoding="utf-8")
    printed, _ = outcome("check", str(tmp_path / "run.toml"), "--json")
    costs = json.loads(printed)["costs"]
    _, peak = outcome("train", str(tmp_path / "run.toml"), "--json")
    assert 0.8 < costs["peak_bytes"] / peak < 1.2
    steps = [line["seconds"] for line in read_timings(tmp_path / "runs" / "toy") if line["step"]]
    phases = ("sample", "score", "forward", "backward", "optimizer")
    seconds = statistics.median(sum(step.get(phase, 0.0) for phase in phases) for step in steps)
    # On a busy machine one of the two may wait; within 25 % is what quiet ones show (docs/verbs/check.md).
    assert 1 / 3 < costs["step_s"] / seconds < 3
