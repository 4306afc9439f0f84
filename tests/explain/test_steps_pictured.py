"""`explain step` states what the run then does, and `explain next-token` takes a real step."""

from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch

from muster.assemble import assemble, load_policy, prepare
from muster.batch import pack, pad
from muster.clock import unwatched
from muster.config import Config
from muster.errors import ConfigError, DataError
from muster.explain.facts import step_facts
from muster.explain.next_token import explain_next_token, take_one_step
from muster.explain.step import explain_step
from muster.loop import train, whole_batch
from muster.records import StepReport
from muster.runstate import Run
from pictured import numbers_of, rows_of
from toy_run import toy_config


def unsaid(_: str) -> None:
    pass


def drive(config: Config) -> tuple[Run, list[StepReport], list[list[str]]]:
    """The run to its end, with the phases that each step went through."""
    phases: list[str] = []
    by_step: list[list[str]] = []

    @contextmanager
    def note(name: str):
        phases.append(name)
        yield

    with closing((materials := prepare(config, unsaid)).grader):
        policy = load_policy(config.model, materials.tokenizer, seed=config.run.seed, say=unsaid)
        run = assemble(materials, policy, unwatched)
        run.clock.mark = note
        reports = []
        for report in train(run):
            reports.append(report)
            by_step.append(list(phases))
            phases.clear()
    return run, reports, by_step


SEVERAL = {
    "algo": {"minibatches": 3, "passes": 2, "kl_coef": 0.1, "recipe": "dr_grpo"},
    "sampling": {"ignore_eos": True, "max_tokens": 4},
}
ONE = {"algo": {"weights": "by_token"}, "sampling": {"ignore_eos": True, "max_tokens": 5}}
GATED = {
    "algo": {"gate": {"use": "top_entropy", "share": 0.5}, "minibatches": 2, "kl_coef": 0.1},
    "sampling": {"ignore_eos": True, "max_tokens": 4},
}


@pytest.mark.parametrize("sections", [ONE, SEVERAL, GATED], ids=["one update", "several updates", "a gate"])
def test_what_is_stated_is_what_the_run_does(place: Path, sections):
    config = toy_config(place, **sections)
    facts = step_facts(config, unsaid)
    stated = numbers_of(explain_step(config, unsaid))
    run, reports, phases = drive(config)

    assert stated["steps"] == len(reports) == 4
    assert stated["updates"] * 4 == run.state.updates
    for report, seen in zip(reports, phases, strict=True):
        assert report.metrics["num_completions"] == stated["completions"]
        assert len(report.groups) == stated["prompts"]
        assert seen.count("optimizer") == stated["updates"] == stated["passes"]["forward"]
        for phase in ("sample", "reference", "old", "gate"):
            assert seen.count(phase) == stated["passes"].get(phase, 0), phase

    first = reports[0]
    assert stated["prompt_tokens"] == [len(group.prompt.ids) for group in first.groups]
    counted = sum(sum(trace.mask) for group in first.traces for trace in group)
    assert stated["tokens_are_exact"]
    assert sum(stated["tokens_per_update"]) == counted
    assert sum(stated["completions_per_update"]) == 8
    batch = whole_batch(first.groups)
    assert (stated["packed_tokens"], stated["plain_tokens"]) == (
        pack(batch).ids.numel(),
        pad(batch).ids.numel(),
    )

    per_step = stated["updates"]
    assert len(stated["learning_rates"]) == 4 * per_step
    for number, report in enumerate(reports):
        last = stated["learning_rates"][(number + 1) * per_step - 1]
        assert report.metrics["learning_rate"] == last

    sizes, limit = stated["completions_per_update"], config.sampling.max_tokens
    by_hand = {"by_sequence": 1.0, "by_token": 1.0, "by_limit": 1.0}
    assert stated["weights_sum"] == pytest.approx([by_hand[facts.recipe.weights.__name__]] * len(sizes))
    assert stated["tokens_per_update"] == [size * limit for size in sizes]


def test_learning_rates_are_those_of_the_schedule(place: Path):
    # Warm-up of 1 step, 4 steps, linear: (u + 1) / (w + 1), then 1 - (u - w) / (N - w).
    rates = numbers_of(explain_step(toy_config(place), unsaid))["learning_rates"]
    assert rates == pytest.approx([0.5e-3, 1e-3, 1e-3 * 2 / 3, 1e-3 / 3])


def test_completions_that_may_end_are_stated_as_a_limit(place: Path):
    config = toy_config(place)
    stated = numbers_of(explain_step(config, unsaid))
    _, reports, _ = drive(config)
    assert not stated["tokens_are_exact"]
    for report in reports:
        counted = sum(sum(trace.mask) for group in report.traces for trace in group)
        assert 8 <= counted <= sum(stated["tokens_per_update"])


def test_choices_are_told_for_this_configuration(place: Path):
    rows = rows_of(explain_step(toy_config(place), unsaid), "what the choices")
    assert "nothing is ever clipped" in rows["objective"][2]
    assert rows["kl"][1] == "off"
    more = toy_config(
        place,
        algo={
            "recipe": "dapo",
            "minibatches": 2,
            "kl_coef": 0.04,
            "kl": "k3",
            "entropy_coef": 0.01,
            "overlong_zone": 1,
            "gate": {"use": "top_entropy", "share": 0.2},
        },
    )
    rows = rows_of(explain_step(more, unsaid), "what the choices")
    assert "ends above 1.28 for a good token, below 0.8 for a bad one" in rows["objective"][2]
    assert rows["kl"][1] == "k3 (ratio none)"
    assert "0.04 times it is added to the loss" in rows["kl"][2]
    assert rows["gate"][1] == "top_entropy (share 0.2)"
    assert rows["truncated"][2] == "from 3 tokens on the reward falls, by 1 at the limit of 4"
    assert rows["resample"][1] == "3 rounds"
    assert "0.01 smaller" in rows["entropy"][2]


def small(place: Path, **optim: object) -> Config:
    return toy_config(place, optim={"lr": 3e-3, **optim}, sampling={"group_size": 16, "max_tokens": 3})


def test_a_step_moves_probability_towards_what_was_good(place: Path):
    moved = take_one_step(small(place), None, "", unsaid)
    assert len(moved.report.groups) == 1
    assert moved.report.metrics["learning_rate"] == 3e-3  # at its top, though the run warms up
    gain = (moved.rollouts_after - moved.rollouts_before).tolist()
    # The surrogate's own direction: the sum of advantage times change is positive.
    assert sum(a * g for a, g in zip(moved.advantages, gain, strict=True)) > 0
    assert float(moved.before.exp().sum()) == pytest.approx(1)
    assert float(moved.after.exp().sum()) == pytest.approx(1)
    sampled = [sum(r.completion.sampler_logprobs) for r in moved.group.rollouts]
    assert moved.rollouts_before.tolist() == pytest.approx(sampled, abs=1e-4)


def test_without_a_learning_rate_nothing_moves(place: Path):
    picture = explain_next_token(small(place, lr=0.0), say=unsaid)
    assert numbers_of(picture)["moved"] == 0
    assert numbers_of(picture)["kl"] == 0
    assert numbers_of(picture)["logprob_before"] == numbers_of(picture)["logprob_after"]


def test_a_prompt_of_ones_own_is_taken(place: Path):
    config = toy_config(place, data={"raw": True}, reward={"use": ["contains_answer"]})
    moved = take_one_step(config, "abc", "z", unsaid)
    assert moved.group.prompt_text.endswith("abc")
    assert moved.group.sample.columns == {"answer": "z"}
    first = torch.tensor(list(moved.group.prompt.ids))
    with torch.no_grad():
        after = (
            moved.policy.base(input_ids=first[None], use_cache=False).logits[0, -1].double().log_softmax(-1)
        )
    assert torch.allclose(after, moved.after, atol=1e-4)


def test_a_prompt_that_the_reward_cannot_score_is_refused(place: Path):
    config = toy_config(place, reward={"use": ["contains_answer"]})
    with pytest.raises(DataError, match="needs the column 'answer'"):
        explain_next_token(config, prompt="abc", say=unsaid)
    with pytest.raises(ConfigError, match="--top is 0"):
        explain_next_token(config, num_top=0, say=unsaid)
