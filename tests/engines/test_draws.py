import numpy as np
import pytest
import torch

from muster.engines.base import Sampling
from muster.engines.sampler import Rollouts, draw, keep, uniforms
from muster.errors import EngineError
from muster.records import StreamKey
from tiny import tiny_tokenizer

KEY = StreamKey(7, 3, 1, 0)


def _sampling(**settings):
    return Sampling(**{"group_size": 1, "max_tokens": 8, **settings})


def _draw(logits, uniform, **settings):
    rows = torch.tensor([logits] * len(uniform), dtype=torch.float64)
    return draw(rows, torch.tensor(uniform, dtype=torch.float64), _sampling(**settings))


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (0.5, [-0.142932, -2.142932, -4.142932]),
        (0.7, [-0.260118, -1.688690, -3.117261]),
        (1.0, [-0.407606, -1.407606, -2.407606]),
        (2.0, [-0.680270, -1.180270, -1.680270]),
    ],
)
def test_logprobs_are_at_the_sampling_temperature(temperature, expected):
    for token, value in enumerate(expected):
        before = sum(np.exp(expected[:token]))
        drawn = _draw([2.0, 1.0, 0.0], [before + 1e-4], temperature=temperature)
        assert drawn.ids.tolist() == [token]
        assert float(drawn.logprobs) == pytest.approx(value, abs=1e-6)


def test_a_token_is_drawn_where_the_sum_of_probabilities_passes_the_uniform_number():
    logits = np.log([0.5, 0.25, 0.25]).tolist()
    drawn = _draw(logits, [0.0, 0.4999, 0.5001, 0.7499, 0.7501, 1 - 2**-53])
    assert drawn.ids.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_token_rarer_than_float32_can_add_is_still_drawn():
    rare = 2e-9
    logits = np.log([1 - rare, rare]).tolist()
    drawn = draw(
        torch.tensor([logits] * 2), torch.tensor([1 - 1e-9, 0.9999], dtype=torch.float64), _sampling()
    )
    assert drawn.ids.tolist() == [1, 0]
    assert float(drawn.logprobs[0]) == pytest.approx(np.log(rare), abs=1e-5)


def test_impossible_tokens_are_never_drawn():
    impossible = float("-inf")
    drawn = _draw([impossible, 0.0, impossible, 0.0, impossible], [0.0, 0.25, 0.5, 0.75, 1 - 2**-53])
    assert drawn.ids.tolist() == [1, 1, 3, 3, 3]
    # So unlikely that its probability is 0 in float32.
    uniform = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    drawn = draw(torch.tensor([[-200.0, 0.0, -200.0]] * 2), uniform, _sampling())
    assert drawn.ids.tolist() == [1, 1]


def test_temperature_zero_takes_the_likeliest_token_for_certain():
    drawn = _draw([0.0, 3.0, 1.0], [0.0, 0.999], temperature=0.0)
    assert drawn.ids.tolist() == [1, 1]
    assert drawn.logprobs.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_broken_logits_are_an_error(broken, temperature):
    with pytest.raises(EngineError, match="logits are NaN or infinite"):
        _draw([0.0, broken, 1.0], [0.3], temperature=temperature)


def test_frequencies_follow_the_softmax():
    probs = np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    count = 20_000
    drawn = _draw(np.log(probs).tolist(), uniforms(KEY, 0, count).tolist())
    seen = np.bincount(drawn.ids.numpy(), minlength=6)
    chi_square = float(((seen - count * probs) ** 2 / (count * probs)).sum())
    # With 5 degrees of freedom one in a thousand lies above 20.5.
    assert chi_square < 20.5


def test_frequencies_across_streams_follow_it_too():
    # The first draw of every rollout: streams with near-by names must not resemble each other.
    first = [
        uniforms(StreamKey(0, step, slot, 0), index, 1)[0]
        for step in range(10)
        for slot in range(20)
        for index in range(16)
    ]
    seen = np.histogram(first, bins=16, range=(0, 1))[0]
    assert float(((seen - 200) ** 2 / 200).sum()) < 37.7  # 15 degrees of freedom, one in a thousand
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.06


def test_a_stream_is_the_same_whenever_it_is_asked_for():
    assert np.array_equal(uniforms(KEY, 2, 50), uniforms(KEY, 2, 50))
    # A shorter one is its beginning: the completion limit doesn't change what is drawn.
    assert np.array_equal(uniforms(KEY, 2, 50)[:10], uniforms(KEY, 2, 10))
    assert (uniforms(KEY, 2, 1000) < 1).all()
    assert (uniforms(KEY, 2, 1000) >= 0).all()


def test_every_part_of_a_name_makes_another_stream():
    keys = [KEY, *(KEY._replace(**{part: getattr(KEY, part) + 1}) for part in KEY._fields)]
    streams = [uniforms(key, 0, 4).tolist() for key in keys] + [uniforms(KEY, 1, 4).tolist()]
    # Parts that trade places are another name too.
    streams.append(uniforms(StreamKey(7, 1, 3, 0), 0, 4).tolist())
    assert len({tuple(stream) for stream in streams}) == len(streams) == 7


def test_negative_and_huge_seeds_have_streams_of_their_own():
    seeds = [0, 1, -1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, -(2**63) + 1, 2**64 - 2]
    streams = {tuple(uniforms(StreamKey(seed, 0, 0, 0), 0, 4)) for seed in seeds}
    assert len(streams) == len(seeds)


def _kept(probs, **settings):
    kept = keep(torch.tensor([probs], dtype=torch.float64).log(), _sampling(**settings))
    return None if kept is None else kept[0].nonzero()[:, 0].tolist()


def test_without_filters_nothing_is_dropped():
    assert _kept([0.5, 0.3, 0.2]) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 4}, [0, 1, 2, 3]),
        ({"top_k": 99}, [0, 1, 2, 3]),
        # Sorted .4 .3 .2 .1: sums .4 .7 .9 1.
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.41}, [1, 3]),
        ({"top_p": 0.69}, [1, 3]),
        ({"top_p": 0.71}, [0, 1, 3]),
        ({"top_p": 0.95}, [0, 1, 2, 3]),
        ({"top_p": 1e-9}, [1]),
        # Shares of the likeliest: .5, 1, .25, .75.
        ({"min_p": 0.2}, [0, 1, 2, 3]),
        ({"min_p": 0.3}, [0, 1, 3]),
        ({"min_p": 0.6}, [1, 3]),
        ({"min_p": 0.99}, [1]),
        # Of the two that top-k left, .571 and .429, the first alone reaches one half.
        ({"top_k": 2, "top_p": 0.5}, [1]),
        ({"top_k": 3, "top_p": 0.9, "min_p": 0.7}, [1, 3]),
    ],
)
def test_filters_keep_what_was_worked_out_by_hand(settings, expected):
    assert _kept([0.2, 0.4, 0.1, 0.3], **settings) == expected


def test_logprobs_are_those_within_the_kept_set():
    drawn = _draw(np.log([0.2, 0.4, 0.1, 0.3]).tolist(), [0.0, 0.5, 0.58, 0.999], top_k=2)
    assert drawn.ids.tolist() == [1, 1, 3, 3]
    assert drawn.logprobs.exp().tolist() == pytest.approx([4 / 7, 4 / 7, 3 / 7, 3 / 7])


def _roll(tokens, **settings):
    """A rollout that is made to sample these tokens, one after the other."""
    sampling = _sampling(**settings)
    rollouts = Rollouts([(KEY, 0)], sampling, tiny_tokenizer())
    for token in tokens:
        if rollouts.is_done(0):
            break
        logits = torch.full((1, 300), float("-inf"))
        logits[0, token] = 0.0
        rollouts.step(logits, [0])
    return rollouts.completions(version=4)[0]


def test_a_stop_token_ends_a_completion_and_is_part_of_it():
    done = _roll([5, 9, 1, 1], stop_ids=frozenset({2, 9}))  # B32: any of several end ids
    assert (done.ids, done.finish_reason, done.version) == ((5, 9), "stop", 4)
    assert done.sampler_logprobs == (0.0, 0.0)
    assert not done.is_truncated


def test_the_limit_without_a_stop_is_length_and_a_stop_at_the_limit_is_a_stop():
    assert _roll([5, 6, 7, 8], max_tokens=3, stop_ids=frozenset({2})).finish_reason == "length"
    assert _roll([5, 6, 7, 8], max_tokens=3, stop_ids=frozenset({2})).ids == (5, 6, 7)
    assert _roll([5, 6, 2, 8], max_tokens=3, stop_ids=frozenset({2})).finish_reason == "stop"
    assert _roll([2], max_tokens=1, stop_ids=frozenset({2})).finish_reason == "stop"


def test_ignoring_stops_samples_to_the_limit():
    done = _roll([2, 2, 2, 2], max_tokens=4, stop_ids=frozenset({2}), stop_strings=("a",), ignore_eos=True)
    assert (done.ids, done.finish_reason) == ((2, 2, 2, 2), "length")


def _ids(text):
    return tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("abc</a>def", ("</a>",), "abc</a>"),
        ("</a>", ("</a>",), "</a>"),
        ("x\n\ny", ("never", "\n\n"), "x\n\n"),
        ("<</a>>", ("</a>",), "<</a>"),
        # Characters of several tokens each: 9 characters are 27 tokens here.
        ("ab" + "日本語" * 3 + "cd", ("日本語" * 3,), "ab" + "日本語" * 3),
        ("ab" + "é" * 40 + "cd", ("é" * 40,), "ab" + "é" * 40),
        ("no stop in here", ("</a>",), "no stop in here"),
    ],
    ids=["border", "whole", "two", "twice", "three bytes", "two bytes", "none"],
)
def test_stop_strings_end_a_completion_across_tokens(text, stops, expected):
    done = _roll(_ids(text), max_tokens=200, stop_strings=stops)
    # B35: ids and logprobs end together.
    assert tiny_tokenizer().decode(list(done.ids)) == expected
    assert len(done.sampler_logprobs) == len(done.ids)
    assert (done.finish_reason == "stop") == (expected != text or text in stops)


def test_a_special_token_can_be_part_of_a_stop_string():
    done = _roll([*_ids("hi"), 2, *_ids("yo")], stop_strings=("<|im_end|>y",))
    assert done.ids == (*_ids("hi"), 2, *_ids("y"))


def test_the_kept_set_of_every_token_holds_it():
    sampling = _sampling(max_tokens=30, top_p=0.7, top_k=5)
    rollouts = Rollouts([(KEY, index) for index in range(20)], sampling, tiny_tokenizer())
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        rollouts.step(torch.randn(20, 50, generator=generator) * 3, range(20))
    assert all(rollouts.is_done(number) for number in range(20))
    for done in rollouts.completions(0):
        assert done.kept is not None
        assert len(done.kept) == 30
        assert all(token in kept and len(kept) <= 5 for token, kept in zip(done.ids, done.kept, strict=True))
