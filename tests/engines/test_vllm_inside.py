"""vLLM in this process: whose weights sample, when it sleeps, what it is told, and what it may not do."""

import os
import random
import sys
from pathlib import Path

import pytest
import torch

from fake_vllm import POLICIES, adapted, flat, gap, moved, prompts, sampling
from fake_vllm_inside import Vllm, install
from muster.algo.ratios import truncate
from muster.config import Config
from muster.dist import exchange, joined
from muster.engine_setup import about_engine, engine_options, is_vllm, make_engine
from muster.engines.options import InsideOptions
from muster.engines.sampler import seed_of
from muster.engines.vllm_core import require_vllm, start
from muster.engines.vllm_inside import VllmInside
from muster.errors import ConfigError, EngineError
from muster.loop import train
from muster.policy import Policy
from muster.records import Prompt, StreamKey
from muster.vllm_needs import with_head_of_its_own
from ranks_of import on_ranks
from tiny import save_tiny_model, tiny_policy
from toy_rewards import low_bytes
from toy_run import number, toy_config, toy_run

SETTINGS: dict[str, object] = {
    "dtype": "float32",
    "max_model_len": 256,
    "seed": 0,
    "generation_config": "vllm",
    "logprobs_mode": "processed_logprobs",
    "max_num_seqs": 8,
}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    """vLLM, as far as an import can tell."""
    return install(monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What vLLM loads: the policy's start, its head a tensor of its own."""
    folder = save_tiny_model(tmp_path_factory.mktemp("inside") / "model")
    return with_head_of_its_own(str(folder), lambda _: None)


def engine_of(policy: Policy, model: str, *, sleeps: bool = False) -> VllmInside:
    settings = {**SETTINGS, "enable_lora": policy.model is not policy.base, "enable_sleep_mode": sleeps}
    return VllmInside(policy, start(model, settings), sleeps=sleeps)


@pytest.mark.parametrize("sleeps", [False, True], ids=["awake", "sleeping"])
@pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES)
def test_it_samples_by_the_weights_of_the_newest_load(make_policy, sleeps, fake, model):
    policy, asked = make_policy(), prompts()
    engine = engine_of(policy, model, sleeps=sleeps)
    before = engine.generate(asked, sampling())
    assert gap(policy, asked, before) < 1e-4
    moved(policy)
    assert gap(policy, asked, before) > 0.1
    engine.load_weights(policy.trainable(), 1)
    after = engine.generate(asked, sampling())
    assert gap(policy, asked, after) < 1e-4
    assert [{done.version for done in flat(groups)} for groups in (before, after)] == [{0}, {1}]
    # A policy that lags is sampled by as it was, and the newest again afterwards.
    kept = policy.snapshot()
    moved(policy)
    engine.load_weights(kept.items(), 2)
    lagging = engine.generate(asked, sampling())
    with policy.using(kept):
        assert gap(policy, asked, lagging) < 1e-4
    engine.load_weights(policy.trainable(), 3)
    assert gap(policy, asked, engine.generate(asked, sampling())) < 1e-4
    engine.close()
    assert fake.living == 0


def test_what_it_holds_asleep_is_brought_in_order(fake, model):
    policy = tiny_policy()
    engine = engine_of(policy, model, sleeps=True)
    for _ in range(2):
        engine.generate(prompts(), sampling())
    # Full weights are thrown away in its sleep: the same ones are given again.
    brought = ["wake weights", "name loading", "load", "forget", "name weights", "wake kv_cache"]
    assert fake.calls == ["sleep 2", *2 * [*brought, "sample", "sleep 2"]]

    fake.calls.clear()
    policy = adapted()
    engine = engine_of(policy, model, sleeps=True)
    engine.generate(prompts(), sampling())
    engine.generate(prompts(), sampling())
    engine.load_weights(policy.trainable(), 1)
    engine.generate(prompts(), sampling())
    assert fake.calls == [
        "sleep 1",
        *["wake weights", "add 1", "wake kv_cache", "sample", "sleep 1"],
        *["wake weights", "wake kv_cache", "sample", "sleep 1"],
        *["wake weights", "add 2", "remove 1", "wake kv_cache", "sample", "sleep 1"],
    ]


def test_awake_it_is_given_weights_once(fake, model):
    policy = tiny_policy()
    engine = engine_of(policy, model)
    for version in (0, 0, 1):
        engine.load_weights(policy.trainable(), version)
        engine.generate(prompts(), sampling())
    assert fake.calls.count("load") == 2
    assert not any(call.startswith(("sleep", "wake")) for call in fake.calls)


def test_each_completion_has_its_own_seed_and_ends_as_it_would_here(fake, model):
    policy, asked = tiny_policy(), prompts()
    engine = engine_of(policy, model)
    done = engine.generate(asked, sampling())
    assert [(params.seed, params.n) for params in fake.asked] == [(seed_of(p.stream), 4) for p in asked]
    assert len({completion.ids for completion in flat(done)}) == 8
    # What else is sampled, and in which order, makes no difference.
    assert engine.generate(asked[::-1], sampling()) == done[::-1]
    assert {completion.finish_reason for completion in flat(done)} == {"stop", "length"}
    assert all((c.ids[-1] < 40) == (c.finish_reason == "stop") for c in flat(done))
    fixed = flat(engine.generate(asked, sampling(ignore_eos=True)))
    assert {(len(completion.ids), completion.finish_reason) for completion in fixed} == {(8, "length")}
    few = engine.generate(asked, sampling(top_k=7, top_p=0.9, min_p=0.01, temperature=0.8))
    assert all(len(kept) <= 7 for c in flat(few) for kept in c.kept or ())
    assert gap(policy, asked, few, temperature=0.8) < 1e-4
    greedy = engine.generate(asked, sampling(temperature=0.0))
    assert all(group == [group[0]] * 4 for group in greedy)
    assert engine.generate([], sampling()) == []


def test_progress_counts_the_groups_that_are_done(fake, model):
    engine, told = engine_of(tiny_policy(), model), []
    engine.progress = lambda done, total: told.append((done, total))
    engine.generate(prompts(3), sampling())
    assert told == [(32, 96), (64, 96), (96, 96)]


@pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES)
def test_a_run_learns_and_is_proven_at_every_step(make_policy, fake, model):
    policy = make_policy()
    engine = engine_of(policy, model, sleeps=True)
    run = toy_run(policy, low_bytes, engine=engine, lr=3e-3, num_steps=3, num_held_out=2, sync_every=2)
    reports = [report for report in train(run) if report.step]
    assert max(number(report, "sampling/mismatch") for report in reports) < 1e-4
    assert max(number(report, "eval_sampling/mismatch") for report in reports) < 1e-4
    assert run.objective.recipe.correction is truncate


@pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES)
def test_stale_weights_are_found_out(make_policy, fake, model):
    fake.ignores_loads = True
    policy = make_policy()
    run = toy_run(policy, low_bytes, engine=engine_of(policy, model), lr=3e-2, num_steps=4)
    with pytest.raises(EngineError, match="sampler and trainer disagree"):
        list(train(run))


@pytest.mark.parametrize(
    ("form", "fault", "says"),
    [
        ("full", "nan", "a logprob is nan"),
        ("full", "short", "logprobs are of the tokens"),
        ("full", "fewer", "4 completions were asked for, and 3 came"),
        ("full", "abort", "ended with 'abort'"),
        ("full", "stale", "sampled by weights 'muster-old'"),
        ("lora", "stale", "completions are by 'muster-old'"),
        ("full", "broken", "could not sample: RuntimeError: CUDA error"),
    ],
)
def test_an_answer_that_is_wrong_is_refused_with_its_cause(form, fault, says, fake, model):
    engine = engine_of(POLICIES[form](), model, sleeps=True)
    expected = engine.generate(prompts(), sampling())
    fake.faults.append(fault)
    with pytest.raises(EngineError, match=says) as caught:
        engine.generate(prompts(), sampling())
    assert "vLLM in this process" in str(caught.value)
    # It is none the worse for it.
    assert engine.generate(prompts(), sampling()) == expected


def test_a_call_that_is_broken_off_leaves_nothing_for_the_next(fake, model):
    engine = engine_of(tiny_policy(), model)
    expected = engine.generate(prompts(), sampling())
    fake.faults.append("interrupt")
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts(3), sampling())
    assert "abort" in fake.calls
    assert engine.generate(prompts(), sampling()) == expected


def test_prompts_that_the_old_weights_computed_are_not_used(fake, model):
    policy = tiny_policy()
    engine = engine_of(policy, model)
    engine.generate(prompts(), sampling())
    fake.keeps_prompts = True
    engine.load_weights(policy.trainable(), 1)
    with pytest.raises(EngineError, match="could not empty its cache of prompts: some of it is in use"):
        engine.generate(prompts(), sampling())


def test_a_prompt_without_tokens_and_sets_that_are_not_told_are_refused(fake, model):
    engine = engine_of(tiny_policy(), model)
    with pytest.raises(EngineError, match="prompt 1 has no token"):
        engine.generate([prompts()[0], Prompt(ids=(), key=StreamKey(0, 0, 0, 0))], sampling())
    with pytest.raises(ConfigError, match=r"sampling\.top_k"):
        engine.generate(prompts(), sampling(min_p=0.1))


def config(folder: Path, *, engine: dict[str, object] | None = None, **sections: dict[str, object]) -> Config:
    return toy_config(folder, engine={"kind": "vllm_inside", **(engine or {})}, **sections)


def test_vllm_is_told_what_the_run_needs_and_leaves_the_process_as_it_was(fake, tmp_path, monkeypatch):
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "0")
    monkeypatch.setattr(torch, "set_num_threads", torch.set_num_threads)
    save_tiny_model(tmp_path / "model")
    chosen = config(tmp_path, model={"lora": {"rank": 12}}, sampling={"top_k": 40})
    set_threads, environment = torch.set_num_threads, dict(os.environ)
    engine = make_engine(chosen, adapted(), lambda done, total: None)
    assert is_vllm(engine)
    assert torch.set_num_threads is set_threads
    assert dict(os.environ) == environment
    assert fake.settings.pop("gpu_memory_utilization") == 0.92
    assert fake.settings == {
        "model": str(tmp_path / "model"),
        "dtype": "float32",
        "max_model_len": 128,
        "seed": 7,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": 40,
        "max_num_seqs": 128,
        "enforce_eager": True,
        "use_tqdm_on_load": False,
        "kv_cache_memory_bytes": 2**30,
        "enable_sleep_mode": False,
        "enable_lora": True,
        "max_lora_rank": 16,
        "max_loras": 1,
        "max_cpu_loras": 2,
    }
    engine.close()


def test_memory_and_rows_are_as_the_options_say(fake, tmp_path):
    save_tiny_model(tmp_path / "model")
    chosen = config(tmp_path, engine={"options": {"memory_share": 0.01, "max_rows": 4, "sleep": False}})
    engine = make_engine(chosen, tiny_policy(), lambda done, total: None)
    assert isinstance(engine, VllmInside)
    assert engine.max_rows == fake.settings["max_num_seqs"] == 4
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert fake.settings["kv_cache_memory_bytes"] == int(0.01 * total)
    # The head of a model without an adapter is a tensor of its own, so that it is given new weights too.
    assert Path(fake.settings["model"]).name.startswith("untied-")
    engine.close()


def test_a_share_that_is_more_than_what_is_free_is_refused(fake, tmp_path, monkeypatch):
    save_tiny_model(tmp_path / "model")
    monkeypatch.setattr("muster.engine_setup.available_bytes", lambda _: 2 * 10**9)
    with pytest.raises(
        ConfigError, match=r"memory_share = 0\.9 .* and 2\.0 GB are free\. Set a smaller share"
    ):
        make_engine(
            config(tmp_path, engine={"options": {"memory_share": 0.9}}), tiny_policy(), lambda *_: None
        )


def test_that_it_does_not_sleep_here_is_said_where_it_was_asked_to(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "on a GPU only" in (about_engine(InsideOptions()) or "")
    assert about_engine(InsideOptions(sleep=False)) is None


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"engine": {"ahead": 1}}, "engine.ahead is 1 and engine.kind is 'vllm_inside'"),
        ({"model": {"quantize": "nf4", "lora": {}}}, "model.quantize is 'nf4'"),
        ({"sampling": {"top_p": 0.5}}, "sampling.top_p is 0.5"),
        ({"engine": {"options": {"urls": "http://h"}}}, "engine.options.urls is not an option"),
        ({"engine": {"options": {"memory_share": 1.5}}}, "engine.options.memory_share is 1.5"),
        ({"engine": {"options": {"sleep": "yes"}}}, "engine.options.sleep is 'yes'"),
    ],
)
def test_what_it_can_not_do_is_refused_before_anything_is_loaded(sections, says, fake, tmp_path):
    with pytest.raises(ConfigError) as caught:
        engine_options(config(tmp_path, **sections))
    assert says in str(caught.value)
    assert fake.living == 0


def test_an_environment_without_vllm_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"not installed in this environment.*docs/engines\.md"):
        require_vllm()


def test_a_version_that_lacks_what_is_called_is_named(fake, model, monkeypatch):
    import vllm  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(vllm, "__version__", "0.9.1")
    monkeypatch.delattr(vllm.LLM, "enqueue")
    with pytest.raises(ConfigError, match=r"vLLM 0\.9\.1 lacks LLM\.enqueue.*Install vllm==0\.32\.0"):
        start(model, SETTINGS)


def test_a_start_that_fails_says_what_vllm_said(fake, model):
    fake.refuses_start = "Free memory on device cuda:0 (1.2/79.1 GiB) is less than desired."
    with pytest.raises(EngineError, match=r"1\.2/79\.1 GiB.*engine\.options\.memory_share"):
        start(model, SETTINGS)


def test_global_random_numbers_go_on_as_they_would_have(fake, model):
    random.seed(3)
    torch.manual_seed(3)
    expected = random.random(), torch.rand(1)
    random.seed(3)
    torch.manual_seed(3)
    start(model, SETTINGS)
    assert (random.random(), torch.rand(1)) == expected


def test_several_processes_are_refused_with_the_remedy(fake, tmp_path):
    chosen = config(tmp_path)

    def work(number: int) -> None:
        with joined():
            with pytest.raises(ConfigError, match=r"run of 2 processes.*sample on servers"):
                engine_options(chosen)
            # Whoever leaves first takes the others' meeting place along.
            exchange(lambda: number)

    assert on_ranks(2, tmp_path / "log", work) == [0, 0]
