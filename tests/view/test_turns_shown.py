"""Rollouts of several turns on the page: whose each token is, and where a turn begins."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient

import view_runs
from muster.records import Episode, Rollout, StepReport
from muster.store import RunStore
from muster.view.server import create_app
from muster.view.tables import lengths_of
from view_runs import Served


def in_turns(said: Rollout) -> Rollout:
    """The rollout as one of two turns, with a reply of five bytes between them."""
    place = len(said.completion.ids) // 2
    ids, logprobs = said.completion.ids, said.completion.sampler_logprobs
    reply = tuple(view_runs.byte_tokenizer().encode("reply").ids)
    completion = replace(
        said.completion,
        ids=(*ids[:place], *reply, *ids[place:]),
        sampler_logprobs=(*logprobs[:place], *[0.0] * 5, *logprobs[place:]),
        emitted=(*[True] * place, *[False] * 5, *[True] * (len(ids) - place)),
    )
    messages = (
        {"role": "assistant", "content": said.text[:place]},
        {"role": "user", "content": "reply"},
        {"role": "assistant", "content": said.text[place:]},
    )
    return replace(said, completion=completion, episode=Episode(messages=messages, parts={"found": 0.5}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step whose rollouts have two turns each."""
    folder = tmp_path_factory.mktemp("turns")
    with RunStore.create(folder / "talk", view_runs.CONFIG, view_runs.META) as store:
        store.keep_tokenizer(view_runs.byte_tokenizer().to_str())
        store.append_step(spoken(view_runs.report(1)))
    return folder


def spoken(report: StepReport) -> StepReport:
    groups = tuple(replace(one, rollouts=tuple(map(in_turns, one.rollouts))) for one in report.groups)
    traces = tuple(
        tuple(
            replace(trace, mask=rollout.completion.emitted or ())
            for trace, rollout in zip(view_runs.traces(group.rollouts), group.rollouts, strict=True)
        )
        for group in groups
    )
    return replace(report, groups=groups, traces=traces)


@pytest.fixture
def client(folder: Path) -> TestClient:
    """The inspector without a socket."""
    return TestClient(create_app([folder]), base_url="http://127.0.0.1:8765")


def test_a_rollout_tells_its_turns_and_the_tokens_that_it_emitted(client: TestClient, folder: Path):
    run = Served("", folder).id_of("talk")
    [first, *_] = client.get(f"/api/runs/{run}/steps/1/groups/0").json()["rollouts"]
    text = view_runs.ANSWERS[0]
    assert (first["turns"], first["environment"], first["calls"]) == (2, {"found": 0.5}, 0)
    assert first["length"] == len(text) + 1
    tokens = client.get(f"/api/runs/{run}/steps/1/rollouts/{first['row']}").json()
    place = tokens["emitted"].index(False)
    assert "".join(tokens["pieces"][place : place + 5]) == "reply"
    assert sum(tokens["emitted"]) == len(text) + 1


def test_lengths_count_what_was_emitted_where_that_is_known():
    table = pa.table({"completion_ids": [[1, 2, 3], [4, 5]], "emitted": [[True, False, True], None]})
    assert lengths_of(table).to_pylist() == [2, 2]
    assert lengths_of(table.drop_columns(["emitted"])).to_pylist() == [3, 2]


def test_tokens_of_others_are_marked_apart_and_turns_are_numbered(
    page: Page, serving: Callable[[Path], Served], folder: Path
):
    served = serving(folder)
    page.goto(f"{served.address}#run={served.id_of('talk')}&view=samples&step=1&group=0")
    card = page.locator("article.rollout").first
    expect(card.locator("header")).to_contain_text("2 turns")
    expect(card.locator(".parts", has_text="environment")).to_contain_text("found 0.5")
    given = card.locator(".t.given")
    expect(given).to_have_count(5)
    assert "".join(given.all_text_contents()) == "reply"
    assert card.locator("[data-turn]").evaluate_all("all => all.map(one => one.dataset.turn)") == [
        "turn 1",
        "turn 2",
    ]
    given.first.hover()
    expect(page.locator("#tip")).to_contain_text("template or environment")
