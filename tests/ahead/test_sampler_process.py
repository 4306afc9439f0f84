"""The process that samples: the same tokens as here, on the weights it is given, and what becomes of it."""

import json
import os
import signal
import time
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch

from beside import forked, pids
from muster import pretrained
from muster.assemble import load_policy
from muster.config import LoraConfig, ModelConfig
from muster.engines.base import Sampling
from muster.engines.local import LocalEngine
from muster.engines.plain import as_groups, as_prompt, as_sampling, plain_groups, plain_prompt, plain_sampling
from muster.engines.process import SamplerProcess, Started, fresh, started_by
from muster.engines.products import Choice
from muster.errors import EngineError, EngineLostError
from muster.records import Completion, Prompt, StreamKey
from muster.rewards.pool.trees import wait_for
from muster.sampling_process import serve

PROMPTS = [Prompt(ids=(5, 6, 7, 8 + slot), key=StreamKey(3, 1, slot, 0)) for slot in range(2)]
SAMPLING = Sampling(group_size=3, max_tokens=6, top_k=20, top_p=0.9, stop_ids=frozenset({2}))
LORA = LoraConfig(rank=4, alpha=8.0)


def settings_of(place: Path, **settings: object) -> ModelConfig:
    return ModelConfig.model_validate({"path": str(place / "model"), "max_tokens": 128, **settings})


def begin(model: ModelConfig) -> dict[str, object]:
    numbers: dict[str, object] = {
        "seed": 1,
        "max_rows": 64,
        "num_rows": 6,
        "products": "linear",
        "threads": 1,
    }
    return {"model": model.model_dump_json(), **numbers}


def process_of(model: ModelConfig) -> SamplerProcess:
    return SamplerProcess(begin(model), room=2**20)


def policy_of(model: ModelConfig):
    return load_policy(model, pretrained.load_tokenizer(model.path), seed=1, say=lambda _: None)


def moved(policy):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, param in policy.trainable():
            param.add_(0.1 * torch.randn(param.shape, generator=generator))


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapter"])
def test_it_samples_by_the_weights_it_is_given_as_this_process_would(place, lora):
    model = settings_of(place, lora=lora)
    policy = policy_of(model)
    here = LocalEngine(policy)
    with closing(process_of(model)) as there:
        here.choice = there.choice
        first = there.put(policy.trainable(), 0)
        assert there.sample(first, PROMPTS, SAMPLING) == here.generate(PROMPTS, SAMPLING)
        moved(policy)
        second = there.put(policy.trainable(), 7)
        here.load_weights(policy.trainable(), 7)
        after = here.generate(PROMPTS, SAMPLING)
        assert there.sample(second, PROMPTS, SAMPLING) == after
        assert {completion.version for group in after for completion in group} == {7}
        # Those of before are still there, for whatever was asked for by them.
        assert there.sample(first, PROMPTS, SAMPLING) != after
        there.drop(first)
        assert not first.folder.exists()
        assert there.quantized is None
        assert there.threads == 1
        there.compute_as(Choice("turned", "turned"), 1)
        assert there.choice == Choice("turned", "turned")
    assert not second.folder.exists()


def test_a_base_in_few_bits_is_quantised_alike(place):
    model = settings_of(place, lora=LORA, quantize="nf4")
    policy = policy_of(model)
    with closing(process_of(model)) as there:
        assert there.quantized == policy.quantized is not None
        load = there.put(policy.trainable(), 0)
        here = LocalEngine(policy, choice=there.choice)
        assert there.sample(load, PROMPTS, SAMPLING) == here.generate(PROMPTS, SAMPLING)


def test_one_that_is_killed_says_so_and_what_to_do(place):
    with closing(process_of(settings_of(place))) as there:
        load = there.put(policy_of(settings_of(place)).trainable(), 0)
        os.kill(pids[-1], signal.SIGKILL)
        with pytest.raises(EngineLostError, match=r"killed by SIGKILL .*memory.*--resume"):
            there.sample(load, PROMPTS, SAMPLING)
        with pytest.raises(EngineLostError):
            there.sample(load, PROMPTS, SAMPLING)


def test_an_order_that_fails_is_answered_with_the_reason(place):
    with closing(process_of(settings_of(place))) as there:
        load = there.put(policy_of(settings_of(place)).trainable(), 0)
        there.drop(load)
        with pytest.raises(EngineError, match=r"the process that samples failed: .*0\.safetensors"):
            there.sample(load, PROMPTS, SAMPLING)
        other = there.put([("nothing", torch.zeros(1))], 1)
        with pytest.raises(EngineError, match="differ in their trainable parameters"):
            there.sample(other, PROMPTS, SAMPLING)


def test_a_model_that_is_not_there_ends_it_at_once(place):
    with pytest.raises(EngineError, match="the process that samples failed"):
        process_of(ModelConfig(path=str(place / "nothing")))


def test_it_tells_how_far_it_is(place):
    told: list[tuple[int, int]] = []
    model = settings_of(place)
    process = SamplerProcess(begin(model), room=0, progress=lambda done, total: told.append((done, total)))
    with closing(process) as there:
        there.sample(there.put(policy_of(model).trainable(), 0), PROMPTS, SAMPLING)
    assert told
    assert all(0 <= done <= total == 36 for done, total in told)


def test_it_ends_with_its_orders():
    answers = BytesIO()
    serve(BytesIO(b""), answers)
    assert answers.getvalue() == b""
    serve(BytesIO(json.dumps({"do": "begin"}).encode() + b"\n"), answers)
    assert json.loads(answers.getvalue()) == {"failed": "KeyError: 'threads'"}


def test_a_run_that_is_gone_takes_it_along_with_the_weights_that_lie_ready(place, tmp_path):
    def abandoned() -> Started:
        started = forked()
        return started._replace(end=lambda patience_s: None)

    there = SamplerProcess(begin(settings_of(place)), room=2**20, start=abandoned)
    load = there.put(policy_of(settings_of(place)).trainable(), 0)
    endless = replace(SAMPLING, max_tokens=100, group_size=64, ignore_eos=True)
    order = {"do": "sample", "weights": str(load.folder), "version": 0, "sampling": plain_sampling(endless)}
    line = json.dumps({**order, "prompts": [plain_prompt(prompt) for prompt in PROMPTS]})
    process, lines = pids[-1], there._started  # pyright: ignore[reportPrivateUsage]
    lines.orders.write(line.encode() + b"\n")
    lines.orders.close()
    lines.answers.close()
    assert wait_for(process, 20.0) == 0
    assert not load.folder.parent.exists()


def test_one_in_an_interpreter_of_its_own_samples_the_same_and_leaves_nothing(place):
    model = settings_of(place)
    policy = policy_of(model)
    with started_by(fresh), closing(process_of(model)) as there:
        load = there.put(policy.trainable(), 0)
        here = LocalEngine(policy, choice=there.choice)
        assert there.sample(load, PROMPTS, SAMPLING) == here.generate(PROMPTS, SAMPLING)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not load.folder.parent.exists()


def test_what_crosses_comes_out_as_it_went_in():
    done = Completion(
        ids=(3, 4), sampler_logprobs=(-0.1, -1 / 3), finish_reason="stop", version=2, kept=((3,), (4, 5))
    )
    groups = [[done, Completion(ids=(), sampler_logprobs=(), finish_reason="length", version=0)]]
    assert as_groups(json.loads(json.dumps(plain_groups(groups)))) == groups
    sampling = Sampling(group_size=2, max_tokens=3, stop_ids=frozenset({9, 2}), stop_strings=("é", "\n"))
    assert as_sampling(json.loads(json.dumps(plain_sampling(sampling)))) == sampling
    assert as_prompt(json.loads(json.dumps(plain_prompt(PROMPTS[1])))) == PROMPTS[1]
