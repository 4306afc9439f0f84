"""liger-kernel's own kernels on a GPU: run by `make test-gpu` where there is one, and the package."""

from importlib import util

import pytest
import torch

from muster.liger import fit
from real_liger import FAMILIES, check, compared, policy_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
    pytest.mark.skipif(util.find_spec("liger_kernel") is None, reason="liger-kernel is not installed here"),
]

GPU = torch.device("cuda")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("has_adapter", [False, True])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_kernels_compute_what_the_modules_do(family: str, has_adapter: bool, autocast: torch.dtype | None):
    check(compared(family, has_adapter, autocast, GPU, num_elements=2**22), family, autocast)


def test_a_run_on_a_gpu_takes_what_is_equal_and_faster_and_says_so():
    policy = policy_of("llama", False, None, GPU)
    pieces = fit(policy.backbone, policy.precision)
    assert pieces.trials.keys() == {"norm 192 float32", "gated 320 float32"}
    assert pieces.taken == {name for name, trial in pieces.trials.items() if trial.speed >= 1.1}
    assert all(trial.speed > 0 and not trial.refused for trial in pieces.trials.values())
    assert len(pieces.lines()) in (1, 2)
