"""One run on several processes: the same rollouts, the same updates, one folder."""

import json
import signal
from pathlib import Path

import pytest
import torch

from muster import dist
from muster.cli.entry import main
from muster.config import to_toml
from muster.run import run
from muster.store import read_events, read_metrics
from ranks_of import PLAIN, assert_same_run, failing, killed, norms_of, on_ranks, train_on
from toy_run import config_for, content


@pytest.mark.parametrize(
    ("count", "algo"),
    [
        (2, {}),
        (2, {"kl": "k3", "kl_coef": 0.1, "minibatches": 2, "passes": 2}),
        (3, {"gate": {"use": "top_entropy", "share": 0.5}}),
    ],
)
def test_ranks_sample_and_learn_what_one_process_does(
    place: Path, tmp_path: Path, count: int, algo: dict[str, object]
):
    settings = {"algo": algo, "engine": PLAIN, "eval": {"every": 2, "prompts": 2}}
    list(run(config_for(place, tmp_path / "one", **settings)))
    assert train_on(count, config_for(place, tmp_path / "all", **settings), tmp_path / "log") == [0] * count
    assert_same_run(tmp_path / "one" / "toy", tmp_path / "all" / "toy")


def test_a_rank_that_has_no_prompt_and_no_rollout_to_learn_from_waits_for_nobody(place: Path, tmp_path: Path):
    """Three ranks, two prompts a step, of which only some teach."""
    settings = {"reward": {"use": ["toy_rewards:every_third"]}, "engine": PLAIN}
    list(run(config_for(place, tmp_path / "one", **settings)))
    assert train_on(3, config_for(place, tmp_path / "all", **settings), tmp_path / "log") == [0] * 3
    one, every = tmp_path / "one" / "toy", tmp_path / "all" / "toy"
    assert any(line["frac_reward_zero_std"] for line in read_metrics(one))
    assert norms_of(every) == pytest.approx(norms_of(one), rel=1e-4)


def saving(place: Path, folder: Path):
    return config_for(place, folder, engine=PLAIN, run={"save_every": 1, "keep": 9})


@pytest.mark.parametrize(("each", "code"), [(killed, -signal.SIGKILL), (failing, 1)])
def test_a_rank_that_dies_ends_the_run_on_all_with_a_whole_checkpoint(place, tmp_path, each, code):
    config = saving(place, tmp_path / "half")
    assert train_on(2, config, tmp_path / "log", each=each) == [1, code]
    assert "RankError: another rank is gone" in (tmp_path / "log.0").read_text()
    folder = tmp_path / "half" / "toy"
    assert read_events(folder)[-1]["kind"] == "failure"
    # Taken up again by as many, it leaves the bytes of a run that nobody killed.
    assert train_on(2, config, tmp_path / "again", resume=True) == [0, 0]
    assert train_on(2, saving(place, tmp_path / "whole"), tmp_path / "whole.log") == [0, 0]
    whole, half = content(tmp_path / "whole" / "toy"), content(folder)
    assert whole.keys() == half.keys()
    assert [name for name in whole if whole[name] != half[name]] == []


def test_another_number_of_ranks_goes_on(place: Path, tmp_path: Path):
    config = saving(place, tmp_path / "half")
    train_on(2, config, tmp_path / "log", each=killed)
    list(run(config, resume=True))
    list(run(saving(place, tmp_path / "one")))
    one, half = tmp_path / "one" / "toy", tmp_path / "half" / "toy"
    assert [line["reward"] for line in read_metrics(half)] == [line["reward"] for line in read_metrics(one)]
    assert norms_of(half) == pytest.approx(norms_of(one), rel=1e-4)


def test_one_rank_that_is_asked_to_stop_stops_all_after_the_same_step(place: Path, tmp_path: Path):
    config = saving(place, tmp_path)
    assert train_on(2, config, tmp_path / "log", stops=lambda number, step: number == 1 and step == 2) == [
        0,
        0,
    ]
    folder = tmp_path / "toy"
    assert [line["step"] for line in read_metrics(folder)] == [1, 2]
    assert read_events(folder)[-1]["kind"] == "stopped"
    assert "the checkpoint is whole. Go on with --resume." in (tmp_path / "log.0").read_text()


def test_what_fails_on_one_rank_is_told_by_the_others(place: Path, tmp_path: Path):
    """Rank 0 alone opens the folder, which holds a run already."""
    list(run(config_for(place, tmp_path)))
    assert train_on(2, config_for(place, tmp_path), tmp_path / "log") == [1, 1]
    assert "RankError: rank 0 failed: ConfigError" in (tmp_path / "log.1").read_text()


def test_why_a_rank_failed_reaches_those_that_wait_for_its_sums(tmp_path: Path):
    def work(number: int) -> None:
        with dist.joined():
            if number == 1:
                raise ValueError("no room on this device")
            dist.sum_over_ranks(torch.ones(3))

    assert on_ranks(2, tmp_path / "log", work) == [1, 1]
    assert "RankError: rank 1 failed: ValueError: no room on this device" in (tmp_path / "log.0").read_text()


def test_ranks_agree_on_a_name_and_one_of_them_speaks(place: Path, tmp_path: Path):
    config = config_for(place, tmp_path / "runs", run={"steps": 1})
    (tmp_path / "sums.toml").write_text(to_toml(config).replace('name = "toy"\n', ""))
    codes = on_ranks(2, tmp_path / "log", lambda _: main(["train", str(tmp_path / "sums.toml"), "--json"]))
    assert codes == [0, 0]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["sums-1"]
    assert json.loads((tmp_path / "log.0").read_text().splitlines()[-2])["step"] == 1
    assert (tmp_path / "log.1").read_text() == ""
