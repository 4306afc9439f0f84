"""A run's model pushed to a hub by the command, and GGUF files asked for by it."""

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import constants

from fake_hub import fake_hub
from muster.cli import main
from muster.run import run
from toy_run import config_for

LORA = {"model": {"lora": {"rank": 2, "targets": ["q_proj"]}}}


@pytest.fixture(scope="module")
def runs(place: Path) -> Path:
    """Two finished runs: `full` and `lora`."""
    for name, sections in {"full": {}, "lora": LORA}.items():
        list(run(config_for(place, place / "runs", **{"run": {"name": name, "steps": 1}, **sections})))
    return place / "runs"


@pytest.fixture
def online(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")


def test_a_run_is_pushed_without_anything_but_its_model(runs, online, monkeypatch, capsys):
    with fake_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        assert main(["push", str(runs / "full"), "ada/full-model", "--json"]) == 0
    out = capsys.readouterr()
    said = json.loads(out.out)
    assert said["address"] == f"{hub.url}/ada/full-model"
    assert said["difference"] < 1e-4
    assert said["moved"] > 0
    assert hub.private == {"ada/full-model": True}
    assert set(hub.repos["ada/full-model"]) == {
        ".gitattributes",
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    card = hub.repos["ada/full-model"]["README.md"].decode()
    assert str(runs) not in card
    assert "hf_secret" not in card + out.out + out.err


def test_an_adapter_whose_model_is_here_alone_is_pushed_merged_or_not_at_all(
    runs, online, monkeypatch, capsys
):
    with fake_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        assert main(["push", str(runs / "lora"), "ada/adapter"]) == 2
        assert "is on this machine alone" in capsys.readouterr().err
        assert hub.repos == {}
        assert main(["push", str(runs / "lora"), "ada/merged", "--merge", "--public"]) == 0
    assert "model.safetensors" in hub.repos["ada/merged"]
    assert hub.private == {"ada/merged": False}


def test_a_push_that_fails_leaves_the_run_to_be_pushed_again(runs, online, monkeypatch, capsys):
    with fake_hub({"create": [403]}) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        assert main(["push", str(runs / "full"), "ada/full-model"]) == 1
        assert "may not write there" in capsys.readouterr().err
        assert main(["push", str(runs / "full"), "ada/full-model"]) == 0
    assert "model.safetensors" in hub.repos["ada/full-model"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--to", "out", "--dtype", "f16"], "--dtype f16 is for GGUF files"),
        (["--to", "out.gguf"], "splits text in a way that llama.cpp has no name for"),
    ],
)
def test_what_can_not_be_written_is_said_and_nothing_is_there(runs, flags, says, capsys):
    assert main(["export", str(runs / "full"), *flags]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert list(Path().iterdir()) == []


def test_the_card_of_a_checkpoint_tells_of_the_steps_up_to_it(place: Path, tmp_path: Path):
    held_out = {"eval": {"every": 1, "at_start": False}, "run": {"steps": 2, "save_every": 1}}
    list(run(config_for(place, tmp_path, **held_out)))
    for name, step in (("000001", 1), ("000002", 2)):
        assert (
            main(["export", str(tmp_path / "toy" / "checkpoints" / name), "--to", str(tmp_path / name)]) == 0
        )
        card = (tmp_path / name / "README.md").read_text()
        assert f"| steps | {step} |" in card
        assert re.findall(r"^\| (\d+) \| [\d.]+ \|", card, re.MULTILINE)[-1] == str(step)
