from itertools import chain

import pytest

from muster.data import num_steps, prompt_order


def test_every_epoch_is_a_permutation_of_its_own():
    drawn = prompt_order(10, seed=1, start=0, count=30)
    epochs = [drawn[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("num_samples", [10, 7])
@pytest.mark.parametrize("stopped_after", range(15))
def test_a_run_that_stops_after_any_step_draws_on_exactly(num_samples, stopped_after):
    whole = prompt_order(num_samples, seed=3, start=0, count=30)
    before = chain(*(prompt_order(num_samples, 3, 2 * step, 2) for step in range(stopped_after)))
    after = chain(*(prompt_order(num_samples, 3, 2 * step, 2) for step in range(stopped_after, 15)))
    assert [*before, *after] == whole


def test_the_remainder_of_an_epoch_is_carried_into_the_next():
    drawn = prompt_order(7, seed=0, start=6, count=3)
    assert len(drawn) == 3
    assert drawn[0] == prompt_order(7, seed=0, start=0, count=7)[-1]
    assert drawn[1:] == prompt_order(7, seed=0, start=7, count=2)


def test_the_order_follows_from_the_seed_and_stays_the_same_for_ever():
    assert prompt_order(6, seed=3407, start=0, count=6) == [2, 5, 0, 3, 1, 4]
    assert prompt_order(50, 1, 0, 50) != prompt_order(50, 2, 0, 50)


def test_without_shuffling_the_order_is_that_of_the_file():
    assert prompt_order(3, seed=9, start=2, count=5, shuffle=False) == [2, 0, 1, 2, 0]


def test_more_prompts_than_samples_go_over_several_epochs():
    assert sorted(prompt_order(2, seed=0, start=0, count=6)) == [0, 0, 0, 1, 1, 1]


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="num_samples is 0"):
        prompt_order(0, 0, 0, 1)


@pytest.mark.parametrize(("epochs", "steps"), [(1, 3), (3, 7), (0.5, 2), (0.01, 1)])
def test_steps_of_epochs_leave_no_prompt_out(epochs, steps):
    assert num_steps(7, prompts_per_step=3, epochs=epochs) == steps
