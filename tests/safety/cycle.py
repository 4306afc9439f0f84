"""A run's whole life by the command line, in one process: run by tests as `python cycle.py FOLDER`.

What each call prints goes to `FOLDER/printed/NAME.out` and `.err`, its exit code to `FOLDER/codes.json`.
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from safety_rewards import HOSTILE

NAME = "safe \U0001f600 ünï"
HERE = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()


def write_inputs() -> None:
    """A tiny model, data of hostile texts, a configuration."""
    from tiny import save_tiny_model

    save_tiny_model(HERE / "mo*del_<b>`x`")
    rows = [{"prompt": text, "answer": text} for text in HOSTILE]
    (HERE / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (HERE / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:3]), encoding="utf-8")
    system = json.dumps("".join(HOSTILE[:12])).replace("\x7f", "\\u007f")
    (HERE / "run.toml").write_text(
        f"""
[model]
path = "mo*del_<b>`x`"
max_tokens = 512
lora = {{ rank = 2, targets = ["q_proj"] }}
[data]
path = "train.jsonl"
eval_path = "held.jsonl"
system = {system}
[reward]
use = ["safety_rewards:telling", "safety_rewards:noting"]
workers = 2
max_failed_share = 1.0
[sampling]
prompts_per_step = 3
group_size = 4
max_tokens = 6
[eval]
every = 1
prompts = 3
[run]
name = "{NAME}"
steps = 2
save_every = 1
budget_tokens = 512
threads = 1
""",
        encoding="utf-8",
    )


def calls() -> dict[str, Sequence[str]]:
    """Every verb that reads or writes a run, by a name for what it prints."""
    run = f"runs/{NAME}"
    secret = "--reward.options.telling.api_key"
    return {
        "train": ["train", "run.toml", "--table-every", "1"],
        "resume": ["train", "run.toml", "--resume", "--run.steps", "3"],
        "resume_json": ["train", "run.toml", "--resume", "--run.steps", "4", "--json"],
        "used": ["train", "run.toml"],
        "fails": ["train", "run.toml", "--run.name", "fails", "--reward.max_failed_share", "0.0"],
        "crashes": ["train", "run.toml", "--run.name", "crashes", "--data.map", "safety_rewards:odd"],
        "refused": ["train", "run.toml", "--run.name", "refused", secret, os.environ["LITERAL"]],
        "refused_again": ["train", "run.toml", f"{secret}={os.environ['LITERAL']}", f"{secret}=x"],
        "refused_address": ["train", "--model.path", f"https://u:{os.environ['LITERAL']}@h/m"],
        "export": ["export", run, "--to", "out"],
        "merged": ["export", run, "--to", "merged", "--merge"],
        "eval": ["eval", run],
        "eval_json": ["eval", run, "--json"],
        "generate": ["generate", run, HOSTILE[0], "--max-tokens", "6"],
        "show": ["show", run],
        "show_json": ["show", run, "--json"],
        "show_step": ["show", run, "--step", "1"],
        "show_group": ["show", run, "--step", "1", "--group", "0"],
        "show_group_json": ["show", run, "--step", "1", "--group", "0", "--json"],
        "show_prompts": ["show", run, "--prompts"],
        "show_prompts_json": ["show", run, "--prompts", "--json"],
        "show_failed": ["show", "runs/fails"],
        "check": ["check", "run.toml", "--groups", "3"],
        "check_json": ["check", "run.toml", "--groups", "3", "--json"],
        "reward_test": ["reward", "test", "run.toml"],
        "config": ["config", "run.toml"],
        **{f"names_{place}": ["show", text] for place, text in enumerate(HOSTILE)},
        **{f"values_{place}": ["config", "--optim.lr", text] for place, text in enumerate(HOSTILE)},
    }


def main() -> None:
    """Runs every call."""
    os.chdir(HERE)
    write_inputs()
    from muster.cli import main as muster

    (HERE / "printed").mkdir()
    codes: dict[str, int] = {}
    for name, arguments in calls().items():
        written = io.BytesIO(), io.BytesIO()
        out, err = (io.TextIOWrapper(one, "utf-8", "surrogateescape", "") for one in written)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            codes[name] = muster(arguments)
        out.flush()
        err.flush()
        for kind, one in zip(("out", "err"), written, strict=True):
            (HERE / "printed" / f"{name}.{kind}").write_bytes(one.getvalue())
    (HERE / "codes.json").write_text(json.dumps(codes), encoding="utf-8")


if __name__ == "__main__":
    main()
