from typing import Any

import pytest
import torch
from transformers import GPT2Config

from muster.memory import activation_bytes, available_bytes, budget_tokens
from muster.policy import enable_gradient_checkpointing
from muster.scaling.memory import LARGEST_BUDGET
from naive import make_batch
from tiny import tiny_model, tiny_policy

CPU = torch.device("cpu")
GIB = 2**30


def _write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def _machine(tmp_path, *, free_gib=8, groups="0::/"):
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    _write(proc, meminfo=f"MemTotal:       99999999 kB\nMemAvailable:   {free_gib * 2**20} kB")
    _write(proc / "self", cgroup=groups)
    cgroup.mkdir()
    return {"proc": proc, "cgroup": cgroup}


def test_the_ranks_of_a_machine_share_its_memory(tmp_path, monkeypatch):
    machine = _machine(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert available_bytes(CPU, **machine) == 8 * GIB
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert available_bytes(CPU, **machine) == 2 * GIB


def test_what_torch_keeps_of_a_gpu_for_later_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 50 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 20 * GIB)
    assert available_bytes(torch.device("cuda")) == 33 * GIB


def test_without_limits_it_is_what_the_machine_has_free(tmp_path):
    machine = _machine(tmp_path)
    _write(machine["cgroup"], memory__max="max", memory__current=GIB)
    assert available_bytes(CPU, **machine) == 8 * GIB


def test_a_containers_limit_counts(tmp_path):
    machine = _machine(tmp_path)
    _write(machine["cgroup"], memory__max=3 * GIB, memory__current=GIB)
    assert available_bytes(CPU, **machine) == 2 * GIB


def test_file_pages_that_the_kernel_gives_back_do_not_count_as_used(tmp_path):
    # Reading a model's files fills a container's memory with pages that make room on demand.
    machine = _machine(tmp_path)
    stat = f"anon {GIB}\ninactive_file {GIB // 2}\nactive_file 5"
    _write(machine["cgroup"], memory__max=3 * GIB, memory__current=2 * GIB, memory__stat=stat)
    assert available_bytes(CPU, **machine) == int(1.5 * GIB)


def test_the_tightest_of_the_groups_above_a_process_counts(tmp_path):
    machine = _machine(tmp_path, groups="0::/user.slice/run-1.scope")
    _write(machine["cgroup"] / "user.slice", memory__max=2 * GIB, memory__current=GIB)
    _write(machine["cgroup"] / "user.slice" / "run-1.scope", memory__max=6 * GIB, memory__current=GIB)
    assert available_bytes(CPU, **machine) == GIB


@pytest.mark.parametrize("where", ["memory", "memory/job/7"])
def test_version_one_of_control_groups_is_read_too(tmp_path, where):
    machine = _machine(tmp_path, groups="5:cpu,cpuacct:/elsewhere\n4:memory:/job/7\n1:name=systemd:/job:x")
    limits = {"memory__limit_in_bytes": 4 * GIB, "memory__usage_in_bytes": 3 * GIB}
    _write(machine["cgroup"] / where, **limits, memory__stat=f"total_inactive_file {GIB}")
    assert available_bytes(CPU, **machine) == 2 * GIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path):
    machine = _machine(tmp_path)
    _write(machine["cgroup"], memory__max=GIB, memory__current=2 * GIB)
    assert available_bytes(CPU, **machine) == 0


def test_without_any_file_a_small_machine_is_assumed(tmp_path):
    assert available_bytes(CPU, proc=tmp_path / "no", cgroup=tmp_path / "none") == 4 * GIB


def _budget(free, reserved=0, checkpointing=False):
    return budget_tokens(
        tiny_model().config,
        free,
        reserved_bytes=reserved,
        gradient_checkpointing=checkpointing,
        itemsize=4,
    )


def test_more_memory_is_never_a_smaller_budget():
    budgets = [_budget(free * 2**20) for free in range(0, 400, 10)]
    assert budgets == sorted(budgets)
    assert budgets[0] == 256
    assert budgets[-1] == LARGEST_BUDGET
    assert 256 < budgets[3] < LARGEST_BUDGET


def test_what_the_optimizer_will_take_is_set_aside():
    assert _budget(40 * 2**20, reserved=20 * 2**20) == _budget(20 * 2**20)
    assert _budget(2**20, reserved=2**30) == 256
    assert _budget(40 * 2**20, checkpointing=True) > _budget(40 * 2**20)


def kept_per_token(policy):
    """Bytes of activations that a forward pass keeps for its backward pass."""
    batch = make_batch([(40, [30] * 6)])
    params = list(policy.base.parameters())
    weights = {param.untyped_storage().data_ptr() for param in params}
    # What weights are cast to under autocast is theirs as well.
    shapes = {shape for param in params if param.ndim == 2 for shape in (param.shape, param.shape[::-1])}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.shape not in shapes:
            # Held, so that no other tensor takes its place in memory.
            kept[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        policy.score(batch, temperature=1.0)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / (40 + 6 * 29)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_the_estimate_holds_for_what_modules_keep_by_their_own_code_as_on_a_gpu(family, autocast):
    policy = tiny_policy(family)
    policy.autocast = autocast
    for module in policy.base.modules():
        vars(module).pop("forward", None)
    itemsize = 4 if autocast is None else 2
    estimate = activation_bytes(policy.base.config, False, itemsize)
    assert 0.5 < estimate / kept_per_token(policy) < 2.0


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_the_estimate_is_within_a_factor_of_two_of_what_is_kept(family, checkpointing):
    size: dict[str, Any] = (
        {"n_layer": 8, "n_embd": 64} if family == "gpt2" else {"num_hidden_layers": 8, "hidden_size": 64}
    )
    policy = tiny_policy(family, **size)
    if checkpointing:
        enable_gradient_checkpointing(policy)
    per_token = kept_per_token(policy)
    estimate = activation_bytes(policy.base.config, checkpointing, itemsize=4)
    if checkpointing:
        # One layer's worth comes on top while it is recomputed; the hook sees the inputs alone.
        estimate -= activation_bytes(policy.base.config, False, itemsize=4) // 8
    assert 0.5 < estimate / per_token < 2.0


def test_a_configuration_without_an_inner_size_is_taken_at_four_times_the_hidden_one():
    config = GPT2Config(n_embd=32, n_layer=2)
    # 2 layers of 12 * 32 + 4 * 128 numbers.
    assert activation_bytes(config, False, 4) == 2 * (12 * 32 + 4 * 128) * 4
