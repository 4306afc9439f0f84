"""What both sides are given: prompts and completions of exactly as many tokens as the workload says."""

from dataclasses import replace

import pytest

from judging import as_batch, spread
from muster_side import BUDGET_TOKENS, batch_of, prompts_of, sample, session, update_once
from part_steps import check_lengths
from tiny import save_tiny_model, tiny_tokenizer
from workloads import (
    HELD_OUT_DATA,
    NEW_TOKENS,
    ROWS_AT_ONCE,
    WORKLOADS,
    exact_prompts,
    prompt_ids,
    read_job,
    read_prompts,
    write_prompts,
)


@pytest.mark.parametrize("tokens", [64, 66, 69, 254, 256, 1024])
def test_prompts_have_exactly_the_tokens_asked_for(tokens):
    tokenizer = tiny_tokenizer()
    texts = exact_prompts(tokenizer, 2, tokens)
    assert [len(prompt_ids(text, tokenizer)) for text in texts] == [tokens, tokens]
    assert texts[0] != texts[1]


def test_a_prompt_shorter_than_the_chat_template_is_refused():
    with pytest.raises(ValueError, match="exactly 5 tokens"):
        exact_prompts(tiny_tokenizer(), 1, 5)


@pytest.fixture
def small_job(tmp_path):
    """Workload S on a tiny model."""
    tokenizer = tiny_tokenizer()
    data = write_prompts(tmp_path / "S.jsonl", exact_prompts(tokenizer, 2, WORKLOADS[0].prompt_tokens))
    return WORKLOADS[0].job(str(save_tiny_model(tmp_path / "model")), data, threads=1)


def test_a_job_reads_back_as_it_was_written(small_job, tmp_path):
    assert read_job(str(small_job.write(tmp_path))) == small_job


def test_musters_side_samples_and_learns_from_exactly_these_tokens(small_job, tmp_path):
    with session(small_job, tmp_path) as run:
        prompts = prompts_of(run, small_job.num_prompts)
        batch = batch_of(prompts, sample(run, prompts, small_job.group_size))
        assert [len(prompt) for prompt in batch.prompts] == [66, 66]
        assert batch.lengths.tolist() == [NEW_TOKENS] * 16
        assert batch.advantages.sum() == 0
        done = update_once(run.policy, run.optimizer, batch, replace(run.objective, kl_coef=0.0))
    assert done.stepped
    assert done.scores.logprobs.shape == (16, NEW_TOKENS)


def test_every_workload_fits_into_one_forward_of_muster_and_whole_ones_of_trl():
    for workload in WORKLOADS:
        rows = workload.num_prompts * workload.group_size
        assert rows * (workload.prompt_tokens + NEW_TOKENS) <= BUDGET_TOKENS
        assert rows % min(rows, ROWS_AT_ONCE) == 0


def test_a_step_about_other_tokens_is_refused():
    whole = {"prompt_tokens": [66, 66], "completion_tokens": [NEW_TOKENS, NEW_TOKENS]}
    check_lengths(whole, 2, 66)
    with pytest.raises(AssertionError, match="completion_tokens"):
        check_lengths({**whole, "completion_tokens": [NEW_TOKENS, 63]}, 2, 66)


def test_both_forms_of_a_reward_give_the_same_number():
    chats = [[{"role": "user", "content": text}] for text in read_prompts(HELD_OUT_DATA)[:2]]
    answers = [[{"role": "assistant", "content": text}] for text in ('{"a": "b"}', "no")]
    assert as_batch("spread")(prompts=chats, completions=answers) == [spread('{"a": "b"}'), spread("no")]
    assert as_batch("extraction")(prompts=chats, completions=answers, trainer_state=None) == [0.3, 0.0]
