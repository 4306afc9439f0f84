"""A warm start on several processes: the answers one process learns, the same updates, one folder."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.torch import load_file

from muster.config import Config, from_mapping
from muster.run import run
from muster.store import read_events, read_metrics, read_rollouts
from ranks_of import killed, train_on
from toy_run import content

ANSWERS = ["aaaa bb", "c", "dd dd dd", "e", "ffff", "gg", "hhhhhhhhhhhh"]


def warm(place: Path, folder: Path, **sections: Mapping[str, object]) -> Config:
    """4 steps of 3 answers of uneven length, the last row a conversation that is read between two answers."""
    rows: list[dict[str, object]] = [
        {"messages": [{"role": "user", "content": f"say {text[0]}"}, {"role": "assistant", "content": text}]}
        for text in ANSWERS
    ]
    talk = [("user", "say x"), ("assistant", "xxx"), ("user", "again, and longer"), ("assistant", "xx")]
    rows.append({"messages": [{"role": role, "content": text} for role, text in talk]})
    path, held_out = place / "answers.jsonl", place / "held.jsonl"
    for file in (path, held_out):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings: dict[str, dict[str, object]] = {
        "model": {"path": str(place / "model"), "max_tokens": 128},
        "data": {"path": str(path), "eval_path": str(held_out)},
        "algo": {"recipe": "sft"},
        "sampling": {"prompts_per_step": 3},
        "optim": {"lr": 1e-2},
        "eval": {"every": 2, "prompts": 3},
        "run": {"name": "warm", "dir": str(folder), "steps": 4, "seed": 7, "save_every": 1, "keep": 9},
    }
    for section, values in sections.items():
        settings[section] = {**settings.get(section, {}), **values}
    return from_mapping(settings)


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_learn_what_one_process_does(place: Path, tmp_path: Path, count: int):
    """Four ranks are more than a step has answers."""
    # Of plain descent a weight differs by what its gradient does; AdamW would blow rounding up to its rate.
    plain = {"optim": {"name": "sgd", "lr": 0.05}}
    list(run(warm(place, tmp_path / "one", **plain)))
    assert train_on(count, warm(place, tmp_path / "all", **plain), tmp_path / "log") == [0] * count
    one, every = tmp_path / "one" / "warm", tmp_path / "all" / "warm"
    for alone, together in zip(read_metrics(one), read_metrics(every), strict=True):
        assert alone.keys() == together.keys()
        for name, value in alone.items():
            assert together[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    assert len(read_metrics(one)) == 5
    for step in range(1, 5):
        first, second = read_rollouts(one, step), read_rollouts(every, step)
        for (mine,), (other,) in zip(first.traces, second.traces, strict=True):
            assert mine.mask == other.mask
            assert other.logprobs == pytest.approx(mine.logprobs, abs=1e-5)
    weights, others = (load_file(folder / "final" / "model.safetensors") for folder in (one, every))
    for name, value in weights.items():
        assert (value - others[name]).abs().max() <= 1e-6, name


def test_a_rank_that_is_killed_leaves_a_warm_start_that_goes_on_to_the_same_bytes(
    place: Path, tmp_path: Path
):
    half, whole = warm(place, tmp_path / "half"), warm(place, tmp_path / "whole")
    assert train_on(2, half, tmp_path / "log", each=killed) == [1, -signal.SIGKILL]
    assert read_events(tmp_path / "half" / "warm")[-1]["kind"] == "failure"
    assert train_on(2, half, tmp_path / "again", resume=True) == [0, 0]
    assert train_on(2, whole, tmp_path / "whole.log") == [0, 0]
    assert content(tmp_path / "half" / "warm") == content(tmp_path / "whole" / "warm")
