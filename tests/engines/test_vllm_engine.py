"""Sampling over HTTP: what is asked for, what comes back, and whose weights sampled it."""

import pytest
import torch
from safetensors.torch import load_file

from fake_vllm import POLICIES, FakeVllm, adapted, flat, gap, moved, policy_of, prompts, sampling, served
from muster.engines.options import LocalOptions, VllmOptions, read_options
from muster.engines.sampler import seed_of
from muster.engines.vllm import VllmEngine
from muster.errors import ConfigError, EngineError
from muster.loop import train
from muster.records import Prompt, StreamKey
from tiny import tiny_policy
from toy_rewards import low_bytes
from toy_run import number, toy_run


@pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES)
def test_the_servers_sample_with_the_weights_of_the_newest_load(make_policy):
    with served(make_policy) as (engine, [fake]):
        asked, policy = prompts(), policy_of(engine)
        before = engine.generate(asked, sampling())
        assert gap(policy, asked, before) < 1e-4
        moved(policy)
        assert gap(policy, asked, before) > 0.1
        engine.load_weights(policy.trainable(), 1)
        after = engine.generate(asked, sampling())
        assert gap(policy, asked, after) < 1e-4
        assert {done.version for done in flat(before)} == {0}
        assert {done.version for done in flat(after)} == {1}
        # An adapter is known by its name, and the one before is gone; full weights come with an empty cache.
        if make_policy is adapted:
            assert [name.rsplit("-", 1)[1] for name in fake.adapters] == ["1"]
        else:
            assert fake.version.endswith("-1")
            reset, named = fake.calls.index("/reset_prefix_cache"), fake.calls.index("/collective_rpc")
            assert named < reset < len(fake.calls) - 1 - fake.calls[::-1].index("/update_weight_version")


def test_completions_end_as_they_would_here_and_carry_what_truncation_kept():
    with served() as (engine, _):
        asked = prompts()
        done = flat(engine.generate(asked, sampling()))
        assert {completion.finish_reason for completion in done} == {"stop", "length"}
        assert all((completion.ids[-1] < 40) == (completion.finish_reason == "stop") for completion in done)
        fixed = flat(engine.generate(asked, sampling(ignore_eos=True)))
        assert {(len(completion.ids), completion.finish_reason) for completion in fixed} == {(8, "length")}
        few = sampling(top_k=7, top_p=0.9, min_p=0.01, temperature=0.8)
        groups = engine.generate(asked, few)
        assert all(len(kept) <= 7 for c in flat(groups) for kept in c.kept or ())
        assert all(
            token in kept for c in flat(groups) for token, kept in zip(c.ids, c.kept or (), strict=True)
        )
        assert gap(policy_of(engine), asked, groups, temperature=0.8) < 1e-4
        greedy = engine.generate(asked, sampling(temperature=0.0))
        assert all(group == [group[0]] * 4 for group in greedy)
        assert {value for done in flat(greedy) for value in done.sampler_logprobs} == {0.0}


def test_a_completion_is_the_same_on_one_server_and_on_three():
    with served(count=1) as (one, [alone]):
        expected = one.generate(prompts(), sampling())
        assert len(alone.bodies) == 2
    with served(count=3) as (three, fakes):
        assert [[c.ids for c in group] for group in three.generate(prompts(), sampling())] == [
            [c.ids for c in group] for group in expected
        ]
        bodies = [body for fake in fakes for body in fake.bodies]
        assert len(bodies) == 4
        seeds = sorted(body["sampling_params"]["seed"] for body in bodies)
        assert seeds == sorted(seed_of(prompt.key) + start for prompt in prompts() for start in (0, 2))
        assert all(fake.bodies for fake in fakes)


def test_seeds_differ_in_every_part_of_the_key_and_leave_room_for_the_index():
    keys = [
        StreamKey(*parts) for parts in ((1, 2, 3, 4), (2, 2, 3, 4), (1, 3, 3, 4), (1, 2, 4, 4), (1, 2, 3, 5))
    ]
    seeds = [seed_of(key) for key in keys]
    assert len(set(seeds)) == 5
    assert all(0 <= seed < 2**62 for seed in seeds)
    assert seed_of(keys[0]) == seeds[0]


@pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES)
def test_a_run_on_servers_learns_and_is_proven_at_every_step(make_policy):
    with served(make_policy, count=2) as (engine, fakes):
        run = toy_run(policy_of(engine), low_bytes, engine=engine, lr=3e-3, num_steps=4, num_held_out=2)
        reports = [report for report in train(run) if report.step]
        assert max(number(report, "sampling/mismatch") for report in reports) < 1e-4
        assert max(number(report, "eval_sampling/mismatch") for report in reports) < 1e-4
        versions = [{r.completion.version for g in report.groups for r in g.rollouts} for report in reports]
        assert versions == [{0}, {1}, {2}, {3}]
        assert number(reports[-1], "sampling/importance_sampling_ratio/mean") == pytest.approx(1, abs=1e-3)
        assert all(fake.bodies for fake in fakes)


def test_what_is_written_is_gone_at_the_end_and_only_the_newest_is_kept(tmp_path):
    with served(share=str(tmp_path / "share")) as (engine, _):
        for version in range(3):
            engine.load_weights(policy_of(engine).trainable(), version)
            [place] = (tmp_path / "share").iterdir()
            assert [folder.name.rsplit("-", 1)[1] for folder in place.iterdir()] == [str(version)]
    assert list((tmp_path / "share").iterdir()) == []


def test_a_tied_head_is_written_as_a_tensor_of_its_own_beside_the_model(tmp_path):
    with served(share=str(tmp_path)) as (engine, _):
        sampled = {name: tensor + 1.0 for name, tensor in policy_of(engine).snapshot().items()}
        engine.load_weights(sampled.items(), 4)
        [head] = tmp_path.rglob("head.safetensors")
        written = load_file(head)
        assert list(written) == ["lm_head.weight"]
        assert torch.equal(written["lm_head.weight"], sampled["model.embed_tokens.weight"])
        whole = load_file(head.with_name("model.safetensors"))
        assert all(torch.equal(whole[name], tensor) for name, tensor in sampled.items())
    with served(adapted, share=str(tmp_path)) as (engine, _):
        engine.load_weights(policy_of(engine).trainable(), 4)
        assert not list(tmp_path.rglob("head.safetensors"))


def test_the_key_goes_to_the_server_and_into_no_message():
    fake = FakeVllm(tiny_policy, key="a-key-of-mine")
    try:
        wrong = VllmEngine(tiny_policy(), VllmOptions(urls=(fake.url,)), key="another-key")
        with pytest.raises(EngineError, match="key_env") as caught:
            wrong.generate(prompts(), sampling())
        assert "another-key" not in str(caught.value)
        wrong.close()
        right = VllmEngine(tiny_policy(), VllmOptions(urls=(fake.url,)), key="a-key-of-mine")
        assert len(flat(right.generate(prompts(), sampling()))) == 8
        right.close()
    finally:
        fake.stop()


def test_what_the_servers_cannot_tell_is_refused():
    with served() as (engine, _), pytest.raises(ConfigError, match=r"sampling\.top_k"):
        engine.generate(prompts(), sampling(top_p=0.9))
    with served() as (engine, _):
        assert engine.generate([], sampling()) == []
        with pytest.raises(EngineError, match="prompt 1 has no token"):
            engine.generate([prompts()[0], Prompt(ids=(), key=StreamKey(0, 0, 0, 0))], sampling())


@pytest.mark.parametrize(
    ("kind", "table", "says"),
    [
        (VllmOptions, {"url": "http://h"}, ["engine.options.url is not an option", "urls"]),
        (VllmOptions, {"urls": ["ftp://h"]}, ["engine.options.urls", "http://127.0.0.1:8000"]),
        (VllmOptions, {"urls": ["http://h", "http://h/"]}, ["each address once"]),
        (VllmOptions, {"urls": ["http://me:secret@h"]}, ["without a password"]),
        (VllmOptions, {"max_requests": 0}, ["engine.options.max_requests is 0"]),
        (VllmOptions, {"timeout_s": "long"}, ["engine.options.timeout_s is 'long'"]),
        (LocalOptions, {"max_row": 3}, ["engine.options.max_row is not an option", "max_rows"]),
        (LocalOptions, {"products": "folded"}, ["engine.options.products is 'folded'", "turned"]),
    ],
)
def test_options_that_do_not_fit_are_refused_with_what_is_allowed(kind, table, says):
    with pytest.raises(ConfigError) as caught:
        read_options(kind, table)
    assert all(text in str(caught.value) for text in says), str(caught.value)


def test_one_address_may_stand_alone():
    assert read_options(VllmOptions, {"urls": "http://h:1/"}).urls == ("http://h:1",)
