from typing import Any

import pytest
import torch
from torch import nn
from transformers import GenerationConfig

from muster.batch import Row, collate
from muster.engines.base import Sampling
from muster.engines.fused import is_known
from muster.engines.local import LocalEngine
from muster.engines.products import Choice
from muster.errors import EngineError
from muster.policy import Policy, enable_gradient_checkpointing
from muster.records import Prompt, StreamKey
from naive import exact_model, exact_policy, naive_scores
from tiny import PLAIN, SHARING, tiny_model, tiny_policy, tiny_tokenizer

LENGTHS = (3, 11, 1, 6)
# gemma2 takes its softmax in float32 and can't be computed in float64 with padding; the rest can.
EXACT = [family for family in (*SHARING, *PLAIN) if family != "gemma2"]


def _prompts(*lengths, step=1):
    return [
        Prompt(ids=tuple(range(5 + length, 5 + 2 * length)), key=StreamKey(1, step, slot, 0))
        for slot, length in enumerate(lengths)
    ]


def _sampling(**settings):
    return Sampling(**{"group_size": 3, "max_tokens": 12, "stop_ids": frozenset(range(40)), **settings})


def _engine(policy, **settings):
    """An engine that takes the short way where it knows the family."""
    return LocalEngine(
        policy, choice=Choice("turned", "turned", is_fused=is_known(policy.backbone)), **settings
    )


def _ids(groups):
    return [[done.ids for done in group] for group in groups]


def _assert_same(ours, theirs, tolerance=1e-9):
    assert _ids(ours) == _ids(theirs)
    for group, others in zip(ours, theirs, strict=True):
        for done, other in zip(group, others, strict=True):
            assert done.sampler_logprobs == pytest.approx(other.sampler_logprobs, abs=tolerance)
            assert done.finish_reason == other.finish_reason


@pytest.mark.parametrize("family", EXACT)
def test_a_rollout_does_not_depend_on_what_else_is_in_the_batch(family):
    engine = _engine(exact_policy(family))
    prompts = _prompts(*LENGTHS)
    whole = engine.generate(prompts, _sampling())
    lengths = {len(done.ids) for group in whole for done in group}
    assert len(lengths) > 2  # Rows do finish at different steps.

    for number, prompt in enumerate(prompts):
        _assert_same(engine.generate([prompt], _sampling()), [whole[number]])
    _assert_same(engine.generate(prompts[::-1], _sampling()), whole[::-1])
    _assert_same(engine.generate(prompts, _sampling(group_size=2)), [group[:2] for group in whole])
    for max_rows in (1, 2, 5, 12):
        _assert_same(_engine(engine.policy, max_rows=max_rows).generate(prompts, _sampling()), whole)


@pytest.mark.parametrize("family", SHARING)
def test_sharing_prompts_samples_what_plain_decoding_samples(family):
    shared = exact_policy(family)
    plain = Policy(exact_model(family), tiny_tokenizer(), max_tokens=256, pack_prefixes=False)
    assert shared.packs
    assert not plain.packs
    prompts = _prompts(*LENGTHS)
    _assert_same(
        _engine(shared).generate(prompts, _sampling(temperature=0.8)),
        LocalEngine(plain).generate(prompts, _sampling(temperature=0.8)),
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 7},
        {"top_p": 0.6, "temperature": 1.4},
        {"min_p": 0.05, "top_k": 50},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["gpt2", "granite", "mistral_windowed"])
def test_what_the_sampler_says_is_what_the_trainer_says(family, settings):
    policy = exact_policy(family)
    sampling = _sampling(max_tokens=20, **settings)
    prompts = _prompts(*LENGTHS)
    groups = LocalEngine(policy).generate(prompts, sampling)
    rows = [Row(number, done, 0.0) for number, group in enumerate(groups) for done in group]
    batch = collate([prompt.ids for prompt in prompts], rows)
    with torch.no_grad():
        scores = policy.score(batch, temperature=sampling.temperature)
        logprobs, _ = naive_scores(exact_model(family), batch, sampling.temperature)
    for row, (_, done, _) in enumerate(rows):
        length = len(done.ids)
        assert done.sampler_logprobs == pytest.approx(scores.logprobs[row, :length].tolist(), abs=1e-9)
        if done.kept is None:
            assert done.sampler_logprobs == pytest.approx(logprobs[row, :length].tolist(), abs=1e-9)
        else:
            assert all(token in kept for token, kept in zip(done.ids, done.kept, strict=True))
            # Over fewer tokens each is likelier.
            assert (scores.logprobs[row, :length] >= logprobs[row, :length] - 1e-12).all()
    truncates = len(settings.keys() - {"temperature"}) > 0
    assert (batch.kept is not None) == truncates


@pytest.mark.parametrize("family", [*SHARING, *PLAIN])
def test_greedy_tokens_are_those_that_transformers_generates(family):
    # gemma2 in float32, see above.
    exact = family in EXACT
    build = exact_model if exact else tiny_model
    prompts = _prompts(*LENGTHS)
    policy = Policy(build(family), tiny_tokenizer(), max_tokens=256)
    groups = LocalEngine(policy).generate(
        prompts, _sampling(group_size=1, temperature=0.0, max_tokens=24, stop_ids=frozenset({2}))
    )
    reference: Any = build(family)
    for prompt, group in zip(prompts, groups, strict=True):
        out = reference.generate(
            torch.tensor([prompt.ids]),
            attention_mask=torch.ones(1, len(prompt.ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=24,
            eos_token_id=2,
            pad_token_id=2,
        )
        assert list(group[0].ids) == out[0, len(prompt.ids) :].tolist()


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_ignoring_stops_samples_exactly_the_limit(max_tokens):
    engine = LocalEngine(tiny_policy())
    groups = engine.generate(
        _prompts(3, 8), _sampling(max_tokens=max_tokens, ignore_eos=True, stop_ids=frozenset(range(259)))
    )
    assert [[len(done.ids) for done in group] for group in groups] == [[max_tokens] * 3] * 2
    assert {done.finish_reason for group in groups for done in group} == {"length"}


def test_a_limit_of_one_token_ends_with_a_stop_or_with_the_limit():
    engine = LocalEngine(tiny_policy())
    for stops, reason in ((frozenset(range(259)), "stop"), (frozenset(), "length")):
        groups = engine.generate(_prompts(3, 8), _sampling(max_tokens=1, stop_ids=stops))
        assert {(len(done.ids), done.finish_reason) for group in groups for done in group} == {(1, reason)}


def test_a_stop_is_the_last_token_and_there_is_only_one():
    stops = frozenset(range(40))
    groups = LocalEngine(tiny_policy()).generate(_prompts(*LENGTHS), _sampling(group_size=8, stop_ids=stops))
    done = [completion for group in groups for completion in group]
    assert {completion.finish_reason for completion in done} == {"stop", "length"}
    for completion in done:
        assert not stops & set(completion.ids[:-1])
        assert (completion.ids[-1] in stops) == (completion.finish_reason == "stop")
        assert completion.is_truncated == (completion.finish_reason == "length")


def test_a_models_generation_defaults_never_win():
    # B33
    model = tiny_model()
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.01, repetition_penalty=1.5, top_k=1, eos_token_id=7, max_new_tokens=2
    )
    odd = LocalEngine(Policy(model, tiny_tokenizer(), max_tokens=64))
    sampling = _sampling(group_size=8, stop_ids=frozenset())
    groups = odd.generate(_prompts(4), sampling)
    _assert_same(groups, LocalEngine(tiny_policy()).generate(_prompts(4), sampling))
    assert len(set(_ids(groups)[0])) == 8


def test_streams_differ_within_a_group_and_between_steps():
    # B37: on a flat distribution all samples differ, and the same call gives the same ones.
    model = tiny_model()
    with torch.no_grad():
        for param in model.parameters():
            param.zero_()
    engine = LocalEngine(Policy(model, tiny_tokenizer(), max_tokens=64))
    sampling = _sampling(group_size=8, max_tokens=20, ignore_eos=True)
    first = _ids(engine.generate(_prompts(4, 4), sampling))
    assert len({ids for group in first for ids in group}) == 16
    assert not set(first[0]) & set(_ids(engine.generate(_prompts(4, step=2), sampling))[0])
    assert _ids(engine.generate(_prompts(4, 4), sampling)) == first


def test_loaded_weights_are_used_until_the_next_load_and_named_on_completions():
    # B38
    policy, other = tiny_policy(), tiny_policy(seed=1)
    engine, fresh = LocalEngine(policy), LocalEngine(other)
    sampling = _sampling(temperature=0.0, ignore_eos=True)
    own = engine.generate(_prompts(*LENGTHS), sampling)
    assert {done.version for group in own for done in group} == {0}

    before = policy.snapshot()
    engine.load_weights(iter(other.trainable()), 5)
    loaded = engine.generate(_prompts(*LENGTHS), sampling)
    assert _ids(loaded) == _ids(fresh.generate(_prompts(*LENGTHS), sampling))
    assert _ids(loaded) != _ids(own)
    assert {done.version for group in loaded for done in group} == {5}
    # The weights being trained are untouched, and a step on them doesn't reach the sampler.
    assert all(torch.equal(param, before[name]) for name, param in policy.trainable())
    with torch.no_grad():
        for _, param in (*policy.trainable(), *other.trainable()):
            param.mul_(-1.0)
    assert _ids(engine.generate(_prompts(*LENGTHS), sampling)) == _ids(loaded)


def test_without_a_load_it_samples_on_the_weights_as_they_are_now():
    policy = tiny_policy()
    engine = LocalEngine(policy)
    sampling = _sampling(temperature=0.0, ignore_eos=True)
    before = engine.generate(_prompts(*LENGTHS), sampling)
    with torch.no_grad():
        for (_, param), (_, new) in zip(policy.trainable(), tiny_policy(seed=1).trainable(), strict=True):
            param.copy_(new)
    after = engine.generate(_prompts(*LENGTHS), sampling)
    assert _ids(after) != _ids(before)
    assert _ids(after) == _ids(LocalEngine(tiny_policy(seed=1)).generate(_prompts(*LENGTHS), sampling))


class _Broken(nn.Module):
    """A head that fails at its third call."""

    def __init__(self, head):
        super().__init__()
        self.inner, self.calls = head, 0

    def forward(self, hidden):
        self.calls += 1
        if self.calls == 3:
            raise FloatingPointError("third call")
        return self.inner(hidden)


@pytest.mark.parametrize("family", ["llama", "mistral_windowed"])
@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
def test_sampling_leaves_every_flag_and_weight_as_it_was(family, recomputes, breaks):
    # B64
    policy = tiny_policy(family)
    if recomputes:
        enable_gradient_checkpointing(policy)
    engine = LocalEngine(policy)
    plain = LocalEngine(tiny_policy(family)).generate(_prompts(*LENGTHS), _sampling())
    policy.base.model.embed_tokens.weight.requires_grad_(False)
    engine.load_weights(policy.trainable(), 1)

    def state():
        return (
            [module.training for module in policy.base.modules()],
            [(param.requires_grad, param.data_ptr()) for param in policy.base.parameters()],
            policy.base.config.use_cache,
            policy.base.generation_config.to_dict(),
            torch.is_grad_enabled(),
        )

    before = state()
    if breaks:
        policy.head = _Broken(policy.head)
        with pytest.raises(FloatingPointError):
            engine.generate(_prompts(*LENGTHS), _sampling(ignore_eos=True))
    else:
        _assert_same(engine.generate(_prompts(*LENGTHS), _sampling()), plain, 1e-5)
    assert state() == before


@pytest.mark.parametrize("family", ["llama", "mistral_windowed"])
def test_finished_rows_leave_the_batch_and_prompts_are_computed_once(family):
    policy = tiny_policy(family)
    rows = []
    policy.base.model.embed_tokens.register_forward_hook(
        lambda module, inputs, output: rows.append(tuple(inputs[0].shape))
    )
    groups = LocalEngine(policy).generate(_prompts(4, 4), _sampling(group_size=6))
    lengths = [len(done.ids) for group in groups for done in group]
    # The last token of a rollout is never put in.
    expected = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert rows[0] == ((1, 8) if policy.packs else (2, 4))
    assert [shape[0] for shape in rows[1:]] == expected
    assert all(shape[1] == 1 for shape in rows[1:])
    assert expected[-1] < expected[0]


def test_a_finished_rows_place_is_taken_by_the_next_rollout_that_waits():
    policy = tiny_policy()
    rows = []
    policy.base.model.embed_tokens.register_forward_hook(
        lambda module, inputs, output: rows.append(tuple(inputs[0].shape))
    )
    groups = LocalEngine(policy, max_rows=5).generate(
        _prompts(4, 7, 2, 9), _sampling(group_size=4, stop_ids=frozenset(range(20)))
    )
    lengths = [len(done.ids) for group in groups for done in group]
    # A step's ids are a column, a prefill's a row; the last token of a rollout is never put in.
    steps = [shape[0] for shape in rows if shape[1] == 1]
    prefills = [shape[1] for shape in rows if shape[1] > 1]
    assert sum(prefills) == 4 + 7 + 2 + 9
    assert len(prefills) > 1
    assert sum(steps) == sum(lengths) - 16
    assert max(steps) == 5
    # Full until nobody waits any more: from then on rows only leave.
    shrinks = [number for number, count in enumerate(steps) if count < 5]
    tail = steps[shrinks[0] :]
    assert tail == sorted(tail, reverse=True)


def test_progress_only_grows_and_ends_at_its_total():
    seen = []
    engine = LocalEngine(tiny_policy(), max_rows=4, progress=lambda done, total: seen.append((done, total)))
    engine.generate(_prompts(*LENGTHS), _sampling())
    done, totals = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {done[-1]}


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_autocast_samples_with_float32_logprobs_near_those_of_float32(family):
    policy = Policy(tiny_model(family), tiny_tokenizer(), max_tokens=64, autocast=torch.bfloat16)
    prompts = _prompts(*LENGTHS)
    groups = LocalEngine(policy).generate(prompts, _sampling(ignore_eos=True))
    rows = [Row(number, done, 0.0) for number, group in enumerate(groups) for done in group]
    with torch.no_grad():
        scores = policy.score(collate([prompt.ids for prompt in prompts], rows), temperature=1.0)
    assert scores.logprobs.dtype == torch.float32
    gap = scores.logprobs - torch.tensor([row.completion.sampler_logprobs for row in rows])
    assert float(gap.abs().max()) < 0.3


def test_nothing_to_sample_is_nothing_sampled():
    assert LocalEngine(tiny_policy()).generate([], _sampling()) == []


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(EngineError, match="prompt 1 has no token"):
        LocalEngine(tiny_policy()).generate(_prompts(3, 0), _sampling())


def test_a_model_without_a_cache_is_refused():
    policy = tiny_policy("mistral_windowed")

    class Cacheless(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, **inputs):
            output = self.inner(**inputs)
            output.cache = None
            return output

    policy.backbone = Cacheless(policy.backbone)
    with pytest.raises(EngineError, match="Cacheless keeps no cache"):
        LocalEngine(policy).generate(_prompts(3), _sampling())


def test_a_closed_engine_lets_go_of_its_copy():
    policy = tiny_policy()
    engine = LocalEngine(policy)
    engine.load_weights(tiny_policy(seed=1).trainable(), 2)
    engine.close()
    sampling = _sampling(temperature=0.0)
    assert _ids(engine.generate(_prompts(4), sampling)) == _ids(
        LocalEngine(policy).generate(_prompts(4), sampling)
    )
