"""Whole runs with what has kernels or processes of its own on a GPU: few bits, ahead, several ranks."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from muster.config import Config, to_toml
from muster.policy import Policy
from muster.quantized import quantize
from muster.run import run
from muster.store import read_meta, read_metrics
from naive import make_batch
from ranks_of import near, rollouts_of
from tiny import tiny_model, tiny_tokenizer
from toy_run import config_for, number

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

LOGPROBS = 1e-4
"""Nats by which logprobs of tiny models may differ in float32."""
STEP = 3e-4
"""Of a weight after three steps at a rate of 1e-3: a tenth of what AdamW moves it."""


def three_steps(place: Path, folder: Path, **sections: dict[str, Any]) -> Config:
    return config_for(place, folder, **{"run": {"steps": 3, "save_every": 1, "keep": 9}, **sections})


def assert_close(one: Path, other: Path) -> None:
    """The exported weights of two runs are the same, but for rounding."""
    weights, others = (load_file(folder / "toy" / "final" / "model.safetensors") for folder in (one, other))
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        assert float((value - others[name]).abs().max()) < STEP, name


@pytest.mark.parametrize("name", ["adamw_8bit", "paged_adamw_8bit"])
def test_8_bit_optimizers_go_on_from_a_checkpoint_there(place: Path, tmp_path: Path, name: str):
    list(run(three_steps(place, tmp_path / "whole", optim={"name": name})))
    halves = three_steps(place, tmp_path / "halves", optim={"name": name})
    half = run(halves)
    assert next(half).step == 1
    half.close()
    assert [report.step for report in run(halves, resume=True)] == [2, 3]
    assert_close(tmp_path / "whole", tmp_path / "halves")


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_base_in_few_bits_computes_what_it_does_on_the_cpu(kind: str):
    batch = make_batch([(7, [5, 1]), (3, [2, 3, 1])])
    scores = []
    for device in (torch.device("cpu"), torch.device("cuda", torch.cuda.current_device())):
        model = tiny_model()
        quantize(model, kind, device)
        torch.nn.Module.to(model, device)
        policy = Policy(model, tiny_tokenizer(), max_tokens=64)
        scores.append(policy.score(batch, temperature=1.0).logprobs.detach().cpu())
    assert float((scores[0] - scores[1]).abs().max()) < LOGPROBS


def test_a_second_process_samples_ahead_on_the_same_gpu(place: Path, tmp_path: Path):
    reports = list(run(three_steps(place, tmp_path, engine={"ahead": 1})))
    assert [number(report, "sampling/staleness/max") for report in reports] == [0, 1, 1]
    assert all(number(report, "sampling/mismatch") < LOGPROBS for report in reports)


@pytest.mark.parametrize("layout", ["replicate", "shard"])
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices here")
def test_two_ranks_train_what_one_does(place: Path, tmp_path: Path, layout: str):
    list(run(three_steps(place, tmp_path / "one")))
    both = three_steps(place, tmp_path / "two", run={"steps": 3, "layout": layout})
    (tmp_path / "run.toml").write_text(to_toml(both))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "-m", "muster", "train", "run.toml"],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = tmp_path / "one" / "toy", tmp_path / "two" / "toy"
    assert read_meta(two)["ranks"] == 2
    sampled = ([row["completion_ids"] for row in rollouts_of(folder)] for folder in (one, two))
    assert next(sampled) == next(sampled)
    for mine, other in zip(read_metrics(one), read_metrics(two), strict=True):
        assert near(mine["grad_norm"], other["grad_norm"], 1e-3)
    assert_close(tmp_path / "one", tmp_path / "two")
