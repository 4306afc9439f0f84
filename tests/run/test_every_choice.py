"""Every value that the configuration offers takes a real step."""

import json

import pytest
from safetensors.torch import load_file

from muster.algo.recipes import RECIPES
from muster.run import run
from toy_run import config_for

CHOICES = [
    *({"algo": {"recipe": name}} for name in sorted(RECIPES)),
    {"algo": {"kl_coef": 0.1, "kl_in": "reward"}},
    {"algo": {"kl_coef": 0.1, "kl_in": "loss", "kl": "k1"}},
    {"algo": {"kl_coef": 0.1, "kl": {"use": "k3", "ratio": "differentiable"}}},
    {"algo": {"kl_coef": 0.1, "kl": "none"}},
    {"algo": {"truncated": "mask"}},
    {"algo": {"truncated": "penalize", "overlong_zone": 2}},
    {"algo": {"truncated": "score"}},
    {"algo": {"entropy_coef": 0.01}},
    *({"algo": {"gate": gate}} for gate in ("none", "top_entropy", "off_policy_sequence")),
    *({"algo": {"correction": name}} for name in ("none", "truncate", "mask_outside")),
    {"algo": {"correction": {"use": "truncate", "level": "sequence"}}},
    *(
        {"algo": {"advantage": name}}
        for name in ("zscore", "center", "leave_one_out", "batch_scaled", "batch_whitened")
    ),
    *({"algo": {"objective": name}} for name in ("reinforce", "clip", "gspo", "cispo", "sapo", "vespo")),
    *({"algo": {"weights": name}} for name in ("by_token", "by_sequence", "by_limit", "by_sum")),
    {"algo": {"resample": 2}},
    {"algo": {"minibatches": 8, "passes": 2}},
    {"reward": {"use": ["toy_rewards:low_bytes", "toy_rewards:noting_chars"], "weights": [1.0, -0.5]}},
    {
        "reward": {
            "use": ["toy_rewards:low_bytes", "toy_rewards:noting_chars"],
            "combine": "normalize_then_sum",
        }
    },
    *({"optim": {"schedule": name, "warmup": 0}} for name in ("constant", "linear", "cosine")),
    {"optim": {"warmup": 0.5, "schedule": "cosine", "final_fraction": 0.1}},
    {"sampling": {"top_k": 50}},
    {"sampling": {"top_p": 0.9, "min_p": 0.01}},
    {"sampling": {"temperature": 0.7}},
    {"sampling": {"ignore_eos": True}},
    {"sampling": {"stop": ["a", "b"]}},
    {"model": {"gradient_checkpointing": True}},
    {"model": {"dtype": "bfloat16"}, "engine": {"max_mismatch": 0.5}},
    {"data": {"raw": True}},
    {"data": {"system": "Be brief.", "draw": "in_order"}},
    {"data": {"overlong": "drop"}},
    {"data": {"draw": "by_signal"}},
    {"run": {"epochs": 1, "steps": None}},
    {"run": {"budget_tokens": 1}},
    {"run": {"threads": 1}},
    {"engine": {"options": {"max_rows": 3}}},
    *({"engine": {"options": {"products": kind}}} for kind in ("measured", "linear", "turned", "laid_out")),
]


@pytest.mark.parametrize("sections", CHOICES, ids=json.dumps)
def test_every_choice_of_the_configuration_takes_a_real_step(place, tmp_path, sections):  # B24
    merged = {name: dict(values) for name, values in sections.items()}
    merged["run"] = {"steps": 1, **merged.get("run", {})}
    reports = list(run(config_for(place, tmp_path, **merged)))
    assert reports
    assert all(report.metrics["updates/skipped"] == 0 for report in reports)
    assert any(report.metrics["updates"] for report in reports) or sections == {"algo": {"truncated": "mask"}}
    for report in reports:
        json.dumps(report.metrics, allow_nan=False)
    saved = load_file(next((tmp_path / "toy" / "checkpoints").glob("*/weights.safetensors")))
    assert all(tensor.isfinite().all() for tensor in saved.values())
