"""Regrading runs that were really trained: what stays, what changes, what is refused, what is left out."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.errors import CheckpointError, ConfigError, DataError
from muster.regrade import Asked, Regraded, regrade
from muster.store import (
    keep_regrade,
    read_metrics,
    read_regrade,
    read_regraded_rollouts,
    read_rollouts,
    regrade_names,
    rollouts_file,
)
from regrade_rewards import first_low
from toy_rewards import low_bytes

Recorded = Callable[[str], Path]
OWN = ("toy_rewards:low_bytes", "regrade_rewards:short")


def regraded(folder: Path, *rewards: str, recipe: str | None = None, **settings: str) -> Regraded:
    paths = {path.replace("__", "."): value for path, value in settings.items()}
    return regrade(folder, Asked(rewards=rewards, recipe=recipe, settings=paths), say=lambda text: None)


def digests(folder: Path) -> dict[str, str]:
    """Of every file but the regrades."""
    files = [path for path in folder.rglob("*") if path.is_file() and "regrades" not in path.parts]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_run_s_own_reward_and_recipe_give_what_it_recorded(recorded: Recorded):
    folder = recorded("clipped")
    found, rollouts = regraded(folder, *OWN, recipe="grpo")
    assert found.is_graded
    assert found.is_unchanged
    assert found.settings == found.changed_most == found.notes == found.left_out == ()
    assert found.whole.before == found.whole.after
    clips = [(step.before.share(step.before.clipped_low), step.after.clipped_high) for step in found.steps]
    lines = {line["step"]: line for line in read_metrics(folder)}
    assert [low for low, _ in clips] == [lines[step]["clip_ratio/low_mean"] for step in (1, 2, 3, 4)]
    assert any(low for low, _ in clips)
    assert found.reproduced.advantages == found.reproduced.of_advantages == len(rollouts) == 32
    assert found.reproduced.clip_steps == found.reproduced.of_clip_steps == 4
    assert [step.before.mean for step in found.steps] == [lines[step]["reward"] for step in (1, 2, 3, 4)]
    agreement = found.whole.agreement
    assert agreement.cosine == pytest.approx(1.0)
    assert (agreement.same_sign, agreement.relative_norm, agreement.unknown) == (1.0, 1.0, 0)
    assert agreement.tokens == sum(
        len(rollout.completion.ids)
        for step in (1, 2, 3, 4)
        for group in read_rollouts(folder, step).groups
        for rollout in group.rollouts
    )


@pytest.mark.parametrize("name", ["kl", "resampled"])
def test_kl_in_the_reward_and_resampled_groups_come_out_too(name: str, recorded: Recorded):
    found, _ = regraded(recorded(name), algo__recipe="grpo" if name == "kl" else "dapo")
    assert found.reproduced.advantages == found.reproduced.of_advantages > 0
    assert found.is_unchanged
    assert not found.is_graded
    assert bool(found.notes) == (name == "resampled")  # of its two passes only the last is stored


def test_replaced_groups_have_scores_and_no_advantages(recorded: Recorded):
    folder = recorded("resampled")
    _, rollouts = regraded(folder, "toy_rewards:low_bytes", recipe="grpo")
    replaced = {
        (step, place) for step in (1, 2, 3, 4) for place in range(2, len(read_rollouts(folder, step).groups))
    }
    assert replaced
    mine = [one for one in rollouts if (one.step, one.group) in replaced]
    assert mine
    assert all(one.score_after is not None and one.advantage_after == 0 for one in mine)


def test_another_reward_changes_scores_and_the_order_of_the_rollouts(recorded: Recorded):
    folder = recorded("clipped")
    found, rollouts = regraded(folder, "regrade_rewards:first_low")
    stored = read_rollouts(folder, 2).groups
    for one in (one for one in rollouts if one.step == 2):
        ids = list(stored[one.group].rollouts[one.index].completion.ids)
        assert one.score_after == first_low("", ids)
        assert one.score_before == pytest.approx(low_bytes("", ids) - 0.5 * len(ids) / 4)
    assert found.whole.after.mean == pytest.approx(sum(one.score_after or 0.0 for one in rollouts) / 32)
    agreement = found.whole.agreement
    assert agreement.cosine is not None
    assert -1 < agreement.cosine < 1
    sizes = [abs(one.advantage_after - one.advantage_before) for one in found.changed_most]
    assert sizes == sorted(sizes, reverse=True)
    assert {one["path"] for one in found.settings} == {"reward.use", "reward.weights"}


def test_other_weights_need_the_recorded_parts_alone(recorded: Recorded):
    _, rollouts = regraded(recorded("clipped"), reward__weights="[0.0, 2.0]")
    stored = read_rollouts(recorded("clipped"), 3).groups
    for one in (one for one in rollouts if one.step == 3):
        part = stored[one.group].rollouts[one.index].score.parts["short"]
        assert part is not None
        assert one.score_after == 2.0 * part


def test_another_recipe_changes_no_score_and_scales_the_coefficients(recorded: Recorded):
    found, rollouts = regraded(recorded("clipped"), recipe="dr_grpo")
    assert all(one.score_before == one.score_after for one in rollouts)
    assert found.whole.advantage_correlation is not None
    assert found.whole.agreement.same_sign == 1.0
    assert found.name == "dr_grpo"
    wide, _ = regraded(recorded("clipped"), **WIDE)
    assert wide.whole.after.clipped_low < wide.whole.before.clipped_low


def test_a_reward_that_fails_or_abstains_is_shown_as_such(recorded: Recorded):
    folder = recorded("clipped")
    found, rollouts = regraded(folder, "regrade_rewards:moody")
    ids = {
        (step, place, index): rollout.completion.ids
        for step in (1, 2, 3, 4)
        for place, group in enumerate(read_rollouts(folder, step).groups)
        for index, rollout in enumerate(group.rollouts)
    }
    for one in rollouts:
        mine = ids[one.step, one.group, one.index]
        failed, abstained = mine[-1] % 3 == 0, mine[0] % 3 == 0
        assert (one.score_after is None) == (failed or abstained)
        if failed:
            assert one.why is not None
            assert one.why.startswith("moody ")
            assert one.advantage_after == 0
        elif abstained:
            assert one.why == "no reward judged it"
    assert found.whole.after.failed == sum(found.failures.values()) > 0
    assert found.whole.after.abstained > 0
    assert found.whole.before.failed == 0


def test_rewards_see_completions_as_the_run_showed_them(recorded: Recorded):
    folder = recorded("clipped")
    _, rollouts = regraded(folder, "regrade_rewards:plain_length")
    assert all(one.score_after is not None and one.score_after > 0 for one in rollouts)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"plain_length .* holds no tokenizer.json"):
        regraded(folder, "regrade_rewards:plain_length")


def test_a_column_that_was_not_recorded_is_named(recorded: Recorded):
    with pytest.raises(DataError, match=r"needs_answer needs the column 'answer'"):
        regraded(recorded("clipped"), "regrade_rewards:needs_answer")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algo__kl_coef": "0.1"}, r"recorded no reference logprobs: its own algo.kl_coef is 0"),
        ({"algo__passes": "3"}, r"--algo.passes can't be regraded"),
        ({"sampling__group_size": "8"}, r"--sampling.group_size is no setting"),
        ({}, r"nothing is asked"),
        ({"reward__weights": "[1.0]"}, r"reward.weights"),
    ],
)
def test_what_stored_rollouts_can_t_answer_is_refused(
    settings: dict[str, str], said: str, recorded: Recorded
):
    with pytest.raises(ConfigError, match=said):
        regraded(recorded("clipped"), **settings)


def test_reference_logprobs_that_were_recorded_serve_another_kl_term(recorded: Recorded):
    found, _ = regraded(recorded("kl"), algo__kl_in="loss", algo__kl_coef="0.5", algo__kl="k3")
    assert found.whole.agreement.unknown == 0
    assert found.whole.agreement.cosine != 1


def test_damaged_and_missing_steps_are_left_out_by_name(recorded: Recorded):
    folder = recorded("clipped")
    rollouts_file(folder, 1).write_bytes(rollouts_file(folder, 1).read_bytes()[:200])
    rollouts_file(folder, 3).unlink()
    found, _ = regraded(folder, recipe="dr_grpo")
    assert [step.step for step in found.steps] == [2, 4]
    missing, damaged = found.left_out
    assert missing.startswith("step 3: ")
    assert damaged.startswith("step 1: ")
    assert "can't be read" in damaged


def test_tokens_that_the_run_did_not_learn_from_have_no_coefficient_after(recorded: Recorded):
    """`first_low` left groups without signal out; another reward gives them one."""
    found, _ = regraded(recorded("resampled"), "toy_rewards:low_bytes")
    idle = [
        len(group.rollouts[0].completion.ids)
        for step in (1, 2, 3, 4)
        for group in read_rollouts(recorded("resampled"), step).groups[:2]
        if len({rollout.score.value for rollout in group.rollouts}) == 1
    ]
    assert idle
    assert found.whole.agreement.unknown > 0
    assert any("have no coefficient after" in note for note in found.notes)


WIDE = {"algo__objective": "clip", "algo__objective__low": "0.9", "algo__objective__high": "9.0"}
TRAP = "from pathlib import Path\nPath({mark!r}).touch()\ndef grade(completion):\n    return 1.0\n"


@pytest.mark.parametrize("line", ["recipe", "reward"])
def test_no_code_is_run_because_a_run_s_folder_names_it(line: str, recorded: Recorded, tmp_path: Path):
    folder, mark = recorded("clipped"), tmp_path / "was here"
    (folder / "trap.py").write_text(TRAP.format(mark=str(mark)))
    config = (folder / "config.toml").read_text()
    if line == "recipe":
        config = config.replace('recipe = "grpo"', 'recipe = "grpo"\nobjective = "trap.py:grade"')
    else:
        config = config.replace("regrade_rewards:short", "trap.py:short")
    (folder / "config.toml").write_text(config)
    if line == "recipe":
        with pytest.raises(ConfigError, match=r"no code is run because a run's folder names it"):
            regraded(folder, recipe="dr_grpo")
        with pytest.raises(ConfigError, match=r"no code is run"):
            regraded(folder, "toy_rewards:low_bytes")
    else:
        assert regraded(folder, recipe="dr_grpo").regrade.steps
        assert regraded(folder, reward__weights="[1.0, 0.1]").regrade.steps
    assert not mark.exists()


def test_a_run_s_folder_does_not_say_where_else_to_write(recorded: Recorded, tmp_path: Path):
    folder = recorded("clipped")
    (tmp_path / "elsewhere").mkdir()
    (folder / "regrades").symlink_to(tmp_path / "elsewhere")
    found, rollouts = regraded(folder, recipe="gspo")
    with pytest.raises(CheckpointError, match=r"is a link to .*elsewhere"):
        keep_regrade(folder, found, rollouts)
    assert not any((tmp_path / "elsewhere").iterdir())


OBJECTIVE = """def objective(tokens):
    return -2.0 * tokens.advantages[:, None] * tokens.logprobs
"""


def test_a_run_that_is_trusted_may_name_its_own_functions(recorded: Recorded):
    folder = recorded("clipped")
    (folder / "own.py").write_text(OBJECTIVE)
    config = (folder / "config.toml").read_text()
    own = config.replace('recipe = "grpo"', 'recipe = "grpo"\nobjective = "own.py:objective"')
    (folder / "config.toml").write_text(own)
    settings = {"algo.objective": "reinforce"}
    found, _ = regrade(folder, Asked(settings=settings, trusts=True), say=lambda text: None)
    assert found.whole.agreement.cosine == pytest.approx(1.0)
    assert found.whole.agreement.relative_norm == pytest.approx(0.5)


def test_options_of_the_run_s_rewards_are_taken_over_only_where_it_is_trusted(recorded: Recorded):
    folder = recorded("clipped")
    config = (folder / "config.toml").read_text()
    options = "options = { low_bytes = { nothing = 1 } }"
    (folder / "config.toml").write_text(config.replace("options = {}", options, 1))
    found, _ = regraded(folder, *OWN)
    assert found.is_unchanged
    assert "The run's own options of its rewards are not taken over" in found.notes[0]
    with pytest.raises(ConfigError, match=r"reward.options.low_bytes.nothing: the reward has no such"):
        regrade(folder, Asked(rewards=OWN, trusts=True), say=lambda text: None)


def test_a_regrade_is_kept_beside_the_rollouts_and_changes_none(recorded: Recorded):
    folder = recorded("clipped")
    before = digests(folder)
    found, rollouts = regraded(folder, recipe="gspo")
    path = keep_regrade(folder, found, rollouts)
    assert digests(folder) == before
    assert regrade_names(folder) == ["gspo"]
    kept = read_regrade(folder, "gspo")
    assert kept == json.loads(path.read_text())
    assert kept["whole"]["cosine"] == found.whole.agreement.cosine
    assert [one["step"] for one in kept["steps"]] == [1, 2, 3, 4]
    rows = read_regraded_rollouts(folder, "gspo", 2)
    assert [(row["group"], row["index"]) for row in rows] == [(g, i) for g in range(2) for i in range(4)]
    assert rows[3]["advantage_after"] == next(
        one.advantage_after for one in rollouts if (one.step, one.group, one.index) == (2, 0, 3)
    )
