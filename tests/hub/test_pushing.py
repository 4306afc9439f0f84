"""Pushing to a hub: what is sent, what never is, and what is said where the hub refuses."""

import socket

import pytest
from huggingface_hub import constants

from fake_hub import fake_hub
from muster.errors import CheckpointError, ConfigError
from muster.hub import WAITS_S, push, refuse_bad_name

TOKEN = "hf_a_secret_that_must_never_show"
REPO = "ada/sums-model"


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "model"
    place.mkdir()
    for name in ("model.safetensors", "config.json", "chat_template.jinja", "README.md"):
        (place / name).write_text(f"this is {name}")
    # None of these belongs to an export; none may be sent if it lies there all the same.
    for name in ("optimizer.pt", "rollouts.parquet", ".env", "lock"):
        (place / name).write_text("not for others")
    return place


def pushed(folder, hub, **options):
    waits = []
    address = push(folder, REPO, endpoint=hub.url, wait=waits.append, **options)
    return address, waits


def refused(folder, hub, **options) -> str:
    with pytest.raises(CheckpointError) as caught:
        pushed(folder, hub, **options)
    said = str(caught.value)
    assert said.startswith(f"{REPO} was not pushed: ")
    assert TOKEN not in said
    assert TOKEN not in repr(caught.value.__context__)
    assert (folder / "model.safetensors").exists()
    return said


def test_a_repository_that_is_taken_and_can_not_be_looked_at_is_a_refusal(folder):
    with fake_hub(script={"create": [409]}) as hub:
        assert "the hub answered 404" in refused(folder, hub)


def test_a_token_that_a_message_is_cut_in_does_not_show_in_part(folder):
    with fake_hub(script={"create": [400]}) as hub:
        hub.tokens = {"x" * 250 + TOKEN}
        assert TOKEN[:10] not in refused(folder, hub)


def test_an_export_becomes_one_commit_in_a_private_repository(folder):
    with fake_hub() as hub:
        address, waits = pushed(folder, hub)
        assert address == f"{hub.url}/{REPO}"
    assert waits == []
    assert hub.private == {REPO: True}
    sent = {name: data.decode() for name, data in hub.repos[REPO].items() if name != ".gitattributes"}
    assert sent == {
        name: f"this is {name}"
        for name in ("model.safetensors", "config.json", "chat_template.jinja", "README.md")
    }
    assert [path for _, path in hub.requests].count(f"/api/models/{REPO}/commit/main") == 1
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_a_repository_is_public_where_that_was_asked_for(folder):
    with fake_hub() as hub:
        pushed(folder, hub, public=True)
    assert hub.private == {REPO: False}


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "the hub answered 401: it doesn't know who asks. Set HF_TOKEN"),
        (403, "the hub answered 403: the token may not write there"),
        (400, "the hub answered 400: no luck with ['Bearer ***']"),
    ],
)
@pytest.mark.parametrize("word", ["create", "commit"])
def test_what_the_hub_refuses_is_said_at_once_and_without_the_token(folder, status, says, word):
    with fake_hub({word: [status]}) as hub:
        assert says in refused(folder, hub)


def test_a_hub_that_fails_for_a_moment_is_asked_again(folder):
    with fake_hub({"create": [503, 429], "commit": [500]}) as hub:
        _, waits = pushed(folder, hub)
    assert waits == [1.0, 2.0, 1.0]
    assert "model.safetensors" in hub.repos[REPO]


def test_a_hub_that_goes_on_failing_is_given_up_and_said(folder):
    with fake_hub({"commit": [500] * 9}) as hub:
        said = refused(folder, hub)
    assert "the hub answered 500: no luck" in said
    assert f"{len(WAITS_S) + 1} times in a row" in said
    # The repository stands empty, and a second push goes into it.
    with fake_hub({"commit": []}) as again:
        again.repos, again.private = hub.repos, hub.private
        pushed(folder, again)
    assert "model.safetensors" in hub.repos[REPO]


def test_a_repository_that_holds_something_is_left_alone(folder):
    with fake_hub() as hub:
        hub.repos[REPO], hub.private[REPO] = {"theirs.bin": b"kept"}, True
        said = refused(folder, hub)
    assert "is there already and holds 1 files, such as theirs.bin" in said
    assert hub.repos[REPO] == {"theirs.bin": b"kept"}


def test_nothing_goes_into_a_public_repository_unless_that_was_asked_for(folder):
    with fake_hub() as hub:
        hub.repos[REPO], hub.private[REPO] = {}, False
        assert "public" in refused(folder, hub)
        assert hub.repos[REPO] == {}
        pushed(folder, hub, public=True)
    assert "model.safetensors" in hub.repos[REPO]


def test_a_hub_that_is_not_there_is_said(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    waits = []
    with pytest.raises(CheckpointError, match=r"can't be reached \(ConnectError: .*4 times in a row"):
        push(folder, REPO, endpoint=f"http://127.0.0.1:{port}", wait=waits.append)
    assert waits == list(WAITS_S)


def test_without_a_network_nothing_is_tried(folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with fake_hub() as hub, pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        pushed(folder, hub)
    assert hub.requests == []


@pytest.mark.parametrize(
    "name", ["model", "a/b/c", "/b", "a/", "a b/c", "a/..", "ä/b", "a/b.git", "a\n/b", ""]
)
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(ConfigError, match="Give owner/name"):
        refuse_bad_name(name)


def test_a_card_that_the_hub_does_not_take_is_said(folder):
    with fake_hub() as hub:
        hub.complaints = [{"message": '"license" must be one of [...]'}]
        assert 'it can\'t be sent: Invalid metadata in README.md. - "license" must be' in refused(folder, hub)
