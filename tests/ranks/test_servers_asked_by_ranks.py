"""Ranks that sample on servers: the first one publishes the weights, all go by its version."""

import json
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fake_vllm import FakeVllm, served_by
from muster import dist
from muster.config import Config
from muster.errors import EngineLostError
from muster.records import StepReport
from muster.run import run
from muster.store import read_events, read_metrics, read_timings
from ranks_of import on_ranks, rollouts_of, train_on
from toy_run import config_for


def on(fakes: list[FakeVllm], share: str | None = None) -> dict[str, Any]:
    engine = served_by(fakes, patience_s=20.0, share=share)
    return {"engine": engine, "optim": {"name": "sgd", "lr": 0.5}}


def sampled_in(folder: Path) -> list[tuple[object, object]]:
    return [(row["completion_ids"], row["version"]) for row in rollouts_of(folder)]


def versions_in(folder: Path) -> set[object]:
    return {row["version"] for row in rollouts_of(folder)}


def test_ranks_ask_for_their_share_and_one_of_them_publishes_the_weights(
    place: Path, tmp_path: Path, fakes: list[FakeVllm]
):
    list(run(config_for(place, tmp_path / "one", eval={"every": 2}, **on(fakes))))
    for fake in fakes:
        fake.stop()
        fake.calls.clear()
        fake.bodies.clear()
        fake.start()
    share = tmp_path / "share"
    every = config_for(place, tmp_path / "all", eval={"every": 2}, **on(fakes, share=str(share)))
    assert train_on(2, every, tmp_path / "log") == [0, 0]
    one, both = tmp_path / "one" / "toy", tmp_path / "all" / "toy"
    assert sampled_in(one) == sampled_in(both)
    assert versions_in(both) == {0, 1, 2, 3}
    assert all(0 <= line["sampling/mismatch"] < 1e-4 for line in read_metrics(both) if line["step"])
    weights, others = (load_file(folder / "final" / "model.safetensors") for folder in (one, both))
    for name, value in weights.items():
        assert (value - others[name]).abs().max() <= 1e-5, name
    for fake in fakes:
        # The start's weights and those of four updates, once each, however many ranks there are.
        assert fake.calls.count("/collective_rpc") == 5
        assert fake.bodies
    assert list(share.iterdir()) == [], "and takes them away again"


def test_a_server_that_starts_anew_is_given_its_weights_by_whichever_rank_finds_it(
    place: Path, tmp_path: Path, fakes: list[FakeVllm]
):
    for fake in fakes:
        # After a first answer each: one forgets its weights, the other is being given some, then breaks off.
        fake.faults.extend(["", "", "", "restart" if fake is fakes[0] else "loading", "die", "500"])
    config = config_for(place, tmp_path, **on(fakes))
    assert train_on(2, config, tmp_path / "log") == [0, 0]
    assert not any(fake.faults for fake in fakes)
    assert all(line["sampling/mismatch"] < 1e-4 for line in read_metrics(tmp_path / "toy") if line["step"])
    assert versions_in(tmp_path / "toy") == {0, 1, 2, 3}
    assert read_events(tmp_path / "toy")[-1]["kind"] == "end"


def test_servers_that_one_rank_has_lost_are_lost_to_all(tmp_path: Path):
    """So the rank that writes saves the run, whichever of them it was."""

    def work(number: int) -> None:
        def ask() -> object:
            if number == 1:
                raise EngineLostError("no server has answered for 1 s")
            return "fine"

        with dist.joined(), pytest.raises(EngineLostError) as caught:
            dist.exchange(ask)
        print(caught.value)

    assert on_ranks(2, tmp_path / "log", work) == [0, 0]
    said = "EngineLostError: no server has answered for 1 s"
    assert (tmp_path / "log.0").read_text().strip() == f"rank 1 failed: {said}"
    assert (tmp_path / "log.1").read_text().strip() == said.partition(": ")[2]


def ahead_on(fakes: list[FakeVllm], place: Path, folder: Path, patience_s: float = 20.0) -> Config:
    """Five steps, each sampled beside the one before it, and saved."""
    settings = {**on(fakes), "engine": served_by(fakes, ahead=1, patience_s=patience_s)}
    return config_for(place, folder, eval={"every": 2}, run={"steps": 5, "save_every": 1}, **settings)


def renewed(fakes: list[FakeVllm]) -> list[FakeVllm]:
    for fake in fakes:
        fake.stop()
        fake.start()
    return fakes


def test_ranks_sample_ahead_as_one_process_does_and_go_on_in_any_number(
    place: Path, tmp_path: Path, fakes: list[FakeVllm]
):
    list(run(ahead_on(fakes, place, tmp_path / "one")))
    config = ahead_on(renewed(fakes), place, tmp_path / "all")
    assert train_on(2, config, tmp_path / "log", stops=lambda _, step: step == 2) == [0, 0]
    one, both = tmp_path / "one" / "toy", tmp_path / "all" / "toy"
    [flight] = json.loads((both / "checkpoints" / "000002" / "ahead.json").read_text())["flights"]
    assert (flight["step"], flight["synced"], len(flight["completions"])) == (3, 1, 2)
    with closing(run(config, resume=True)) as alone:
        assert next(alone).step == 3
    assert train_on(3, config, tmp_path / "more", resume=True) == [0, 0, 0]
    assert sampled_in(one) == sampled_in(both)
    lines = read_metrics(both)
    assert [line["sampling/staleness/max"] for line in lines if line["step"]] == [0, 1, 1, 1, 1]
    assert all(0 <= line["sampling/mismatch"] < 1e-4 for line in lines if line["step"])
    weights, others = (load_file(folder / "final" / "model.safetensors") for folder in (one, both))
    assert all((value - others[name]).abs().max() <= 1e-5 for name, value in weights.items())
    # The first rank says what sampling beside the update gained.
    assert sum(line.get("ahead_s", 0.0) for line in read_timings(both)) > 0


@contextmanager
def stopped_when_asked(fakes: list[FakeVllm], asked: Path) -> Generator[None]:
    """Stops the servers once the file is there, and takes it away; they live in this process alone."""
    over = threading.Event()

    def watch() -> None:
        while not asked.exists():
            if over.wait(0.01):
                return
        for fake in fakes:
            fake.stop()
        asked.unlink()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def test_servers_that_are_lost_ahead_end_all_ranks_and_the_run_goes_on(
    place: Path, tmp_path: Path, fakes: list[FakeVllm]
):
    asked = tmp_path / "asked"

    def lose(number: int, report: StepReport) -> None:
        if number == 0 and report.step == 2:
            asked.touch()
            while asked.exists():
                time.sleep(0.01)

    config = ahead_on(fakes, place, tmp_path, patience_s=0.2)
    with stopped_when_asked(fakes, asked):
        assert train_on(2, config, tmp_path / "log", each=lose) == [1, 1]
    assert "EngineLostError: no server has answered" in (tmp_path / "log.0").read_text()
    assert "EngineLostError: rank 0 failed: EngineLostError: " in (tmp_path / "log.1").read_text()
    again = ahead_on(renewed(fakes), place, tmp_path)
    assert train_on(2, again, tmp_path / "again", resume=True) == [0, 0]
    assert read_metrics(tmp_path / "toy")[-1]["step"] == 5
