"""Continuous batching of transformers, as it is measured: exact lengths, the model's own logprobs."""

from dataclasses import replace

import pytest
import torch

import rendering
from muster.pretrained import load_model
from muster_side import prompts_of, sample, sample_to, session
from paged import ATTENTIONS, Setting, Work, difference, num_pages, opened, sample_paged, settings_for
from part_batching import CASES, Case, batches, lengths_of, measured
from tiny import save_tiny_model, tiny_tokenizer
from workloads import NEW_TOKENS, WORKLOADS, exact_prompts, write_prompts

WORK = Work(prompts=[(5, 6, 7, 8), (9, 10, 11)], lengths=[3, 6], each=2, at_once=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("batching") / "model")


@pytest.fixture(scope="module")
def model(folder):
    return load_model(str(folder), dtype=torch.float32)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_continuous_batching_gives_exact_lengths_and_the_models_own_logprobs(model, attention):
    before = model.config._attn_implementation
    with opened(model, WORK, Setting(attention, 2)) as manager:
        rows = sample_paged(manager, WORK)
    assert sorted((tuple(row.prompt), len(row.ids)) for row in rows) == [
        ((5, 6, 7, 8), 3),
        ((5, 6, 7, 8), 3),
        ((9, 10, 11), 6),
        ((9, 10, 11), 6),
    ]
    assert max(difference(model, row) for row in rows) < 1e-5
    assert difference(model, rows[0]._replace(logprobs=[x - 0.5 for x in rows[0].logprobs])) > 0.4
    assert model.config._attn_implementation == before


def test_a_row_that_continuous_batching_has_no_room_for_is_no_result(model):
    with (
        opened(model, WORK, Setting("sdpa", 2)) as manager,
        pytest.raises((RuntimeError, AssertionError)),
    ):
        sample_paged(manager, WORK._replace(lengths=[3, 600]))


def test_rows_tokens_and_pages_of_a_case_are_counted_by_hand():
    assert (WORK.rows, WORK.tokens) == (4, 18)
    assert WORK.cut(4).lengths == [3, 4]
    # 4 + 6 tokens are one page of 16; four rows and a quarter more are five.
    assert num_pages(WORK) == 5
    assert [setting.at_once for setting in settings_for(WORK._replace(at_once=32))] == [32, 8, 32, 8]


def test_uneven_lengths_are_spread_and_the_same_every_time():
    lengths = lengths_of(CASES[-1])
    assert lengths == lengths_of(CASES[-1])
    assert (len(lengths), min(lengths) >= 8, max(lengths) <= 64) == (64, True, True)
    assert len(set(lengths)) > 25
    assert lengths_of(Case(2, 8)) == [NEW_TOKENS, NEW_TOKENS]


def test_generate_is_given_no_more_rows_than_may_be_side_by_side():
    assert [(part.lengths, part.rows) for part in batches(WORK)] == [([3], 2), ([6], 2)]
    assert batches(WORK._replace(at_once=4)) == [WORK._replace(at_once=4)]


def test_pages_of_a_prompt_outlive_an_update_of_the_weights(folder):
    """Why it is no engine to train with, unless sharing is off."""
    trained = load_model(str(folder), dtype=torch.float32)
    embedding = trained.get_input_embeddings().weight
    assert isinstance(embedding, torch.Tensor)
    work = Work(prompts=[tuple(range(3, 43))], lengths=[2], each=1, at_once=1)
    with opened(trained, work, Setting("sdpa", 1)) as manager:
        [before] = sample_paged(manager, work)
        with torch.no_grad():
            embedding.mul_(-1.5)
        [after] = sample_paged(manager, work)
    fresh = load_model(str(folder), dtype=torch.float32)
    assert difference(fresh, before) < 1e-5
    assert difference(trained, after) > 1e-3


def test_a_case_is_measured_and_shown(folder, model, tmp_path):
    data = write_prompts(tmp_path / "data.jsonl", exact_prompts(tiny_tokenizer(), 3, 69))
    job = replace(WORKLOADS[1].job(str(folder), data, 1), name="batching")
    with session(job, tmp_path) as run:
        prompts = prompts_of(run, 3)
        ended = sample_to(run, prompts, 2, [3, 9, 5], max_rows=4)
        whole = [completion for group in sample(run, prompts, 2, 9) for completion in group]
        found = measured(Case(1, 1), run, model, 1)
    assert [len(completion.ids) for completion in ended] == [3, 3, 9, 9, 5, 5]
    # A rollout's tokens don't depend on who else is there, or on when it ends.
    assert [c.ids for c in ended] == [c.ids[: len(e.ids)] for c, e in zip(whole, ended, strict=True)]
    page = rendering.SECTIONS["batching"](
        {"page_tokens": 16, "batch_tokens": 512, "prompt_tokens": 69, "cases": {"1x1": found}}
    )
    assert "| 1 rows of 1 prompts, 64 tokens |" in page
    assert page.count(" times as fast |") == 2
