"""How the engine computes is chosen at start and part of every checkpoint: each way rounds differently."""

import json

import pytest

from muster import ways
from muster.engines import products
from muster.engines.products import Choice, restored
from muster.errors import CheckpointError, ConfigError
from muster.frozen import has_onednn
from muster.run import run
from muster.store import read_events
from toy_run import config_for, content

SAVING = {"run": {"save_every": 1, "keep": 9}}


def test_a_resumed_run_samples_by_the_products_of_its_checkpoint(place, tmp_path):  # P1
    """The same machine might measure otherwise the second time: here it is told to."""
    turned = config_for(place, tmp_path / "whole", engine={"options": {"products": "turned"}}, **SAVING)
    list(run(turned))
    half = run(config_for(place, tmp_path / "half", engine={"options": {"products": "turned"}}, **SAVING))
    assert [next(half).step for _ in range(2)] == [1, 2]
    half.close()
    folder = tmp_path / "half" / "toy"
    path = folder / "config.toml"
    path.write_text(path.read_text().replace('"turned"', '"linear"'))
    list(
        run(
            config_for(place, tmp_path / "half", engine={"options": {"products": "linear"}}, **SAVING),
            resume=True,
        )
    )
    starts = [event["products"] for event in read_events(folder) if event["kind"] == "start"]
    assert starts == [Choice("turned", "turned", is_fused=True)._asdict()] * 2
    first, second = content(tmp_path / "whole" / "toy"), content(folder)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.skipif(not has_onednn(), reason="this torch was built without oneDNN")
@pytest.mark.parametrize("at_start", [True, False])
def test_a_resumed_run_trains_by_the_copies_of_its_checkpoint(place, tmp_path, monkeypatch, at_start):  # P1
    """Whether there is room for copies may have changed since."""
    lora = {"model": {"lora": {"rank": 4}}, **SAVING}
    monkeypatch.setattr(ways, "LARGE", 1 if at_start else ways.LARGE)
    list(run(config_for(place, tmp_path / "whole", **lora)))
    half = run(config_for(place, tmp_path / "half", **lora))
    assert [next(half).step for _ in range(2)] == [1, 2]
    half.close()
    monkeypatch.setattr(ways, "LARGE", 2**22 if at_start else 1)
    list(run(config_for(place, tmp_path / "half", **lora), resume=True))
    folder = tmp_path / "half" / "toy"
    states = [json.loads(path.read_text()) for path in sorted(folder.glob("checkpoints/*/state.json"))]
    assert [state["lays_out_frozen"] for state in states] == [at_start] * len(states)
    first, second = content(tmp_path / "whole" / "toy"), content(folder)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.skipif(not has_onednn(), reason="this torch was built without oneDNN")
@pytest.mark.parametrize("at_start", [True, False])
def test_a_resumed_run_trains_by_the_library_of_its_checkpoint(place, tmp_path, monkeypatch, at_start):  # P1
    """A moment's load may have made the other one seem faster."""
    monkeypatch.setattr(ways, "should_use_onednn", lambda _: at_start)
    list(run(config_for(place, tmp_path / "whole", **SAVING)))
    half = run(config_for(place, tmp_path / "half", **SAVING))
    assert [next(half).step for _ in range(2)] == [1, 2]
    half.close()
    monkeypatch.setattr(ways, "should_use_onednn", lambda _: not at_start)
    list(run(config_for(place, tmp_path / "half", **SAVING), resume=True))
    folder = tmp_path / "half" / "toy"
    starts = [event["trains_by_onednn"] for event in read_events(folder) if event["kind"] == "start"]
    assert starts == [at_start] * 2
    first, second = content(tmp_path / "whole" / "toy"), content(folder)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_a_checkpoint_without_a_choice_goes_on_with_plain_products():
    assert restored(None) == Choice()
    choice = Choice("turned", "laid_out", 7, is_fused=True)
    assert restored(choice._asdict()) == choice


@pytest.mark.parametrize("odd", [{"short": "turned"}, {**Choice()._asdict(), "long": "folded"}, 3])
def test_a_choice_that_is_not_known_is_refused(odd):
    with pytest.raises(CheckpointError, match="which this version doesn't know"):
        restored(odd)


def test_products_that_this_torch_lacks_are_refused(monkeypatch):
    monkeypatch.setattr(products, "has_onednn", lambda: False)
    with pytest.raises(CheckpointError, match=r"this torch computes are linear, turned: resume with"):
        restored(Choice("turned", "laid_out", 7)._asdict())


def test_unknown_products_are_refused_by_name(place, tmp_path):
    config = config_for(place, tmp_path, engine={"options": {"products": "folded"}})
    with pytest.raises(ConfigError, match="'measured', 'linear', 'turned' or 'laid_out'"):
        list(run(config))
