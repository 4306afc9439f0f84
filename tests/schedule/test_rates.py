import pytest

from muster.schedule import SHAPES, factor


def _list(shape, *, num_updates=10, warmup=2, final=0.0, start=0):
    return [
        factor(update, num_updates=num_updates, warmup=warmup, shape=shape, final=final)
        for update in range(start, num_updates)
    ]


def test_linear_factors_are_those_of_the_formula():
    expected = [1 / 3, 2 / 3, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    assert _list("linear") == pytest.approx(expected, abs=1e-12)


def test_constant_stays_at_one_after_warm_up():
    assert _list("constant", num_updates=5) == pytest.approx([1 / 3, 2 / 3, 1, 1, 1])


def test_cosine_comes_down_by_half_a_wave():
    # cos over 4 updates after none of warm-up: 1, 0.853553, 0.5, 0.146447.
    expected = [1, 0.853553, 0.5, 0.146447]
    assert _list("cosine", num_updates=4, warmup=0) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_the_rate_ends_at_the_final_fraction(shape):
    # One update past the last is where the span ends; beyond, nothing moves any more.
    assert factor(10, num_updates=10, warmup=2, shape=shape, final=0.1) == pytest.approx(0.1)
    assert factor(50, num_updates=10, warmup=2, shape=shape, final=0.1) == pytest.approx(0.1)
    assert min(_list(shape, final=0.1)) > 0.1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("warmup", [0, 1, 9, 10, 30])
def test_no_update_has_rate_zero_and_none_is_above_one(shape, warmup):
    factors = _list(shape, warmup=warmup)
    assert all(0 < value <= 1 for value in factors)
    assert factors[0] == (1 if warmup == 0 else pytest.approx(1 / (warmup + 1)))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_resumed_run_continues_the_list(shape):
    whole = _list(shape)
    for start in range(10):
        assert _list(shape, start=start) == whole[start:]
