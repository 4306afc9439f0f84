import math

import pytest
import torch

from muster.engines.base import Engine, Sampling
from muster.engines.fake import FakeEngine
from muster.errors import EngineError
from muster.records import Prompt, StreamKey
from tiny import ids_of


def _prompt(*ids, slot=0):
    return Prompt(ids=ids, key=StreamKey(0, 1, slot, 0))


def _sampling(**settings):
    return Sampling(**{"group_size": 2, "max_tokens": 6, "stop_ids": frozenset({2}), **settings})


def test_replies_are_given_in_order_and_start_over():
    engine = FakeEngine({(5,): [(7, 2), (8, 9, 2)], (6,): [(1,)]}, num_vocab=100)
    groups = engine.generate([_prompt(5), _prompt(6)], _sampling(group_size=3))
    assert [[done.ids for done in group] for group in groups] == [[(7, 2), (8, 9, 2), (7, 2)], [(1,)] * 3]


def test_logprobs_are_those_of_a_uniform_distribution():
    done = FakeEngine({(5,): [(7, 8, 2)]}, num_vocab=100).generate([_prompt(5)], _sampling())[0][0]
    assert done.sampler_logprobs == pytest.approx([-math.log(100)] * 3)


def test_limit_and_stop_ids_cut_a_reply():
    engine = FakeEngine({(5,): [(7, 8, 9, 7, 8, 9, 7), (7, 2, 9), (3, 3, 3, 3, 3, 2), (3,)]}, num_vocab=10)
    group = engine.generate([_prompt(5)], _sampling(group_size=4))[0]
    assert [(done.ids, done.finish_reason) for done in group] == [
        ((7, 8, 9, 7, 8, 9), "length"),
        ((7, 2), "stop"),
        ((3, 3, 3, 3, 3, 2), "stop"),
        ((3,), "stop"),
    ]
    ignoring = engine.generate([_prompt(5)], _sampling(group_size=2, ignore_eos=True))[0]
    assert [done.ids for done in ignoring] == [(7, 8, 9, 7, 8, 9), (7, 2, 9)]


def test_text_becomes_ids_with_a_stop_token():
    engine = FakeEngine(lambda prompt: ["hi"], num_vocab=259, encode=ids_of)
    assert engine.generate([_prompt(5)], _sampling())[0][0].ids == (*ids_of("hi"), 2)
    assert engine.generate([_prompt(5)], _sampling(stop_ids=frozenset()))[0][0].ids == ids_of("hi")


def test_a_function_sees_the_prompt_and_its_key():
    engine = FakeEngine(lambda prompt: [(prompt.key.slot + 10, len(prompt.ids))], num_vocab=50)
    groups = engine.generate([_prompt(1, 2, slot=4), _prompt(3, slot=9)], _sampling(group_size=1))
    assert [group[0].ids for group in groups] == [(14, 2), (19, 1)]


def test_weights_are_copied_and_completions_carry_their_version():
    engine: Engine = FakeEngine({(5,): [(7,)]}, num_vocab=10)
    assert engine.generate([_prompt(5)], _sampling())[0][0].version == 0
    weight = torch.ones(2)
    engine.load_weights(iter([("w", weight)]), 3)
    weight.zero_()
    assert engine.generate([_prompt(5)], _sampling())[0][0].version == 3
    assert isinstance(engine, FakeEngine)
    assert engine.weights["w"].tolist() == [1, 1]
    assert [sampling.group_size for _, sampling in engine.calls] == [2, 2]


def test_what_the_script_does_not_cover_is_an_error():
    with pytest.raises(EngineError, match=r"no reply to prompt \[6\]"):
        FakeEngine({(5,): [(7,)]}, num_vocab=10).generate([_prompt(6)], _sampling())
    with pytest.raises(EngineError, match="'hi'; give the engine `encode`"):
        FakeEngine({(6,): ["hi"]}, num_vocab=10).generate([_prompt(6)], _sampling())
    with pytest.raises(EngineError, match="has no token"):
        FakeEngine({(6,): [()]}, num_vocab=10).generate([_prompt(6)], _sampling())
    closed = FakeEngine({(6,): [(1,)]}, num_vocab=10)
    closed.close()
    with pytest.raises(EngineError, match="closed"):
        closed.generate([_prompt(6)], _sampling())
