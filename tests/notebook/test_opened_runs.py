"""A run's folder from Python: its tables, figures and card, for every writer, hostile and half-written."""

import json
import math
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import muster
import view_runs
from muster.errors import CheckpointError, ConfigError
from muster.notebook import OpenRun
from muster.notebook.drawing import MAX_POINTS, draw, thinned
from muster.notebook.panels import NamedColumns, chosen_panels, panels, smoothed, stretches, strokes_of
from muster.store import SCHEMA, read_metrics, read_rollouts


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opened") / "runs"
    view_runs.write_run(folder / "good")
    view_runs.write_hostile_run(folder / "hostile")
    view_runs.write_trl_run(folder / "trl")
    view_runs.write_plain_metrics(folder / "plain")
    return folder


@pytest.fixture
def good(runs: Path) -> OpenRun:
    return muster.open_run(runs / "good")


def page_of(shown: Any) -> str:
    """What a notebook shows of it."""
    return shown._repr_html_()


def bundle_of(shown: Any) -> Any:
    return shown._repr_mimebundle_()


def figure_of(run: OpenRun, *names: str, **options: Any) -> Any:
    """plotly's figures have no types to speak of."""
    return run.plot(*names, **options)


def test_metrics_are_those_on_disk_with_seconds_and_shares_of_groups(good: OpenRun):
    table = good.metrics()
    lines = read_metrics(good.folder)
    assert table["step"].to_pylist() == [line["step"] for line in lines]
    assert table["reward"].to_pylist() == [line.get("reward") for line in lines]
    assert table["entropy"].to_pylist()[3] is None
    assert table["seconds/sample"].to_pylist() == [None] + [2.0] * 8
    assert table["groups/mixed"].to_pylist()[1] == pytest.approx(1 / 3)
    assert good.metrics_frame().loc[8, "kl"] == 0.08


def test_evaluations_are_the_steps_that_have_one(good: OpenRun):
    assert good.evaluations().to_pydict() == {
        "step": [0, 8],
        "eval_reward": [0.2, 0.9],
        "eval_reward/low": [0.2 - 0.1, 0.9 - 0.1],
        "eval_reward/high": [0.2 + 0.1, 1.0],
    }
    assert list(good.evaluations_frame().index) == [0, 8]


def test_rollouts_of_a_step_are_those_that_were_written(good: OpenRun):
    table = good.rollouts(3, tokens=True)
    stored = read_rollouts(good.folder, 3)
    rollouts = [rollout for group in stored.groups for rollout in group.rollouts]
    assert table["completion_text"].to_pylist() == [rollout.text for rollout in rollouts]
    assert table["rewards/near"].to_pylist() == [rollout.score.parts["near"] for rollout in rollouts]
    assert table["length"].to_pylist() == [len(rollout.completion.ids) for rollout in rollouts]
    assert table["completion_ids"].to_pylist() == [list(rollout.completion.ids) for rollout in rollouts]
    assert set(SCHEMA.names) - {"parts", "key"} <= set(table.column_names)


def test_rollouts_without_a_step_are_those_of_the_last_and_without_tokens(good: OpenRun):
    table = good.rollouts()
    assert set(table["step"].to_pylist()) == {8}
    assert not {"completion_ids", "logprobs", "mask", "prompt_ids"} & set(table.column_names)
    assert good.rollouts(range(2, 4)).num_rows == 24
    assert good.rollouts([7, 8]).num_rows == good.rollouts_frame(range(7, 100)).shape[0] == 24
    assert good.rollouts(0, held_out=True).num_rows == 3
    with pytest.raises(ConfigError, match="no step 99; steps there: 1 to 8"):
        good.rollouts(99)


def test_a_long_run_is_never_loaded_unasked(tmp_path: Path):
    folder = view_runs.write_long_run(tmp_path / "long", 5000, view_runs.large_report(5000))
    run = muster.open_run(folder)  # every step's file but the last one's fails to open
    assert run.rollouts().num_rows == 128
    assert run.metrics().num_rows == 5000
    assert len(figure_of(run, "reward").data[-1].x) == 5000
    assert "step 5000" in page_of(run)
    with pytest.warns(UserWarning, match=r"step 1 is left out: .*000001\.parquet can't be read"):
        first = run.rollouts([1, 5000])
    assert first.num_rows == 128


def test_a_damaged_step_is_named_and_left_out(runs: Path):
    run = muster.open_run(runs / "hostile")
    with pytest.warns(UserWarning, match="step 2 is left out"):
        table = run.rollouts(range(1, 4))
    assert sorted(set(table["step"].to_pylist())) == [1, 3]
    with pytest.raises(CheckpointError, match=r"000002\.parquet can't be read"):
        run.rollouts(2)


def test_a_run_that_goes_on_is_read_as_it_is_now(tmp_path: Path):
    from writing_on import set_back

    folder = view_runs.write_run(tmp_path / "live", 2, is_over=False)
    run = muster.open_run(folder)
    assert run.metrics()["step"].to_pylist() == [0, 1, 2]
    with set_back(folder, 2) as store:
        store.append_step(view_runs.report(3))
        with (folder / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 4, "rew')
        assert run.metrics()["step"].to_pylist() == [0, 1, 2, 3]
        assert run.steps == [1, 2, 3]
        assert "running" in repr(run)


def test_other_trainers_folders_are_opened_too(runs: Path):
    trl, plain = (muster.open_run(runs / name) for name in ("trl", "plain"))
    assert trl.metrics()["reward"].to_pylist() == [0.2, 0.4, pytest.approx(0.6)]
    table = trl.rollouts([1, 2, 3])
    assert table.num_rows == 12
    assert table["rewards/exact"].to_pylist()[:4] == [0.0, 1.0, 0.0, 1.0]
    assert plain.metrics().to_pydict() == {
        "step": [1, 2, 3], "reward": [0.5, None, 0.75], "acc": [1.0, 2.0, None]
    }  # fmt: skip
    assert (trl.kind, plain.kind, plain.steps, plain.config) == ("trl", "metrics", [], {})
    assert [finding.name for finding in (*trl.findings(), *plain.findings())] == []
    with pytest.raises(ConfigError, match="holds no samples"):
        plain.samples()


def test_a_run_is_found_by_its_name_and_what_is_none_is_told(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs.parent)
    assert muster.open_run("good").folder == runs / "good"
    with pytest.raises(ConfigError, match=r"god is no run.*Did you mean 'good'|god is no run.*good"):
        muster.open_run("god")
    with pytest.raises(ConfigError, match="Runs in runs: good, hostile, plain, trl"):
        muster.open_run("runs")


def test_settings_events_samples_and_findings_are_there(good: OpenRun):
    assert good.config["run"] == {"steps": 8}
    assert [event["kind"] for event in good.events()][-1] == "end"
    best, second, *_, worst = good.samples(8)
    assert best.score == second.score == 1.5
    assert worst.score == 0.0
    assert len(good.samples(8, 2)) == 2
    assert good.findings() == []


def test_what_a_run_holds_stays_text_in_a_page(runs: Path):
    run = muster.open_run(runs / "hostile")
    pages = [page_of(run), page_of(run.samples()), run.draw(view_runs.HOSTILE[0]).svg]
    tags = {tag for page in pages for tag in re.findall(r"<\s*/?([A-Za-z!?]+)", page)}
    assert tags <= {
        "div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "svg", "g", "rect", "title",
        "text", "line", "polygon", "polyline", "circle",
    }  # fmt: skip
    assert not re.search(r"<[^>]*\son\w+\s*=|javascript:[^<]*>", "".join(pages).replace("&", ""))
    assert not {"\x1b", "\u202e", "\x00", "\x9b"} & set("".join([*pages, repr(run), repr(run.samples())]))
    figure = bundle_of(run.plot(view_runs.HOSTILE[0]))
    assert "<img" not in json.dumps(figure["application/vnd.plotly.v1+json"])


def test_a_figure_has_the_inspectors_curves_colours_and_words(good: OpenRun):
    figure = figure_of(good, "reward", "held-out", "groups")
    band, line, held_out, *layers = figure.data
    assert list(line.y)[1:] == [good.metrics()["reward"][step].as_py() for step in range(1, 9)]
    assert line.line.color == "#0b6fb3"
    assert band.fill == "toself"
    assert max(band.y) == pytest.approx(max(list(line.y)[1:]) + 0.25)
    assert list(held_out.x) == [0, 8]
    assert list(held_out.error_y.array) == pytest.approx([0.1, 0.1])
    assert [layer.name for layer in layers] == ["mixed", "all right", "equal, in between", "all wrong"]
    assert all(list(layer.x) == list(range(1, 9)) for layer in layers)
    reward = figure.layout.annotations[0]
    assert "<b>Reward</b>" in reward.text
    assert "Mean score" in reward.hovertext
    undrawn = {"proof", "mismatch", "held-out-loss", "accuracy"}
    assert len(figure_of(good).layout.annotations) == len(panels()) - len(undrawn)


def test_a_figure_in_a_notebook_needs_no_script_and_no_network(good: OpenRun):
    bundle = bundle_of(good.plot("reward"))
    assert set(bundle) == {"application/vnd.plotly.v1+json", "image/svg+xml", "text/plain"}
    text = json.dumps(bundle)
    assert len(text) < 20_000
    assert "<script" not in text
    assert set(re.findall(r"https?://[^\s\"\\]+", text)) == {"http://www.w3.org/2000/svg"}
    assert bundle["text/plain"] == "Reward: mean 0.764 to 1.18"


def test_runs_beside_each_other_are_compared_by_one_line_each(good: OpenRun, runs: Path):
    other = muster.open_run(runs / "trl")
    figure = figure_of(good, "kl", "reward", beside=[other])
    assert [trace.name for trace in figure.data if trace.name] == ["good", "good", "trl"]
    assert len({trace.line.color for trace in figure.data if trace.name}) == 2
    assert good.draw("reward", beside=[other]).text == "Reward: good 0.764 to 1.18; trl 0.2 to 0.6"


def test_an_unknown_curve_is_told_with_those_there_are(good: OpenRun):
    with pytest.raises(ConfigError, match=r"'rewrd' is no curve.*reward.*Curves: reward, held-out, held"):
        good.plot("rewrd")
    assert figure_of(good, "my/own").data[0].y[-1] == 8.0


def test_a_picture_draws_numbers_where_they_belong():
    columns = {"step": [0, 1, 2], "x": [0.0, 0.5, 1.0]}
    runs = [NamedColumns("r", columns)]
    svg = draw(chosen_panels(["x"], runs), runs).svg
    (points,) = re.findall(r'<polyline points="([^"]*)"', svg)
    assert points == "46.0,144.0 194.0,84.0 342.0,24.0"  # 296 pixels wide, 120 high


def test_long_lines_keep_their_ends_and_extremes():
    values = [math.sin(place / 50) for place in range(5000)]
    values[1234] = 9.0
    places = thinned(values)
    assert len(places) <= MAX_POINTS * 1.1
    assert {0, 1234, 4999} <= set(places)


def test_gaps_split_a_band_and_smoothing_leaves_them():
    assert stretches([1, None, 1, 1, 1], [2, 2, 2, 2, None]) == [range(2, 4)]
    assert smoothed([1.0, None, 3.0, 5.0], 2) == [1.0, None, 3.0, 4.0]


def test_panels_with_fewer_keys_than_they_need_are_not_drawn():
    one = [NamedColumns("r", {"step": [1], "rewards/a/mean": [1.0]})]
    assert strokes_of(panels()["parts"], one) == []
    both = [NamedColumns("r", {"step": [1], "rewards/a/mean": [1.0], "rewards/b/mean": [2.0]})]
    assert [stroke.name for stroke in strokes_of(panels()["parts"], both)] == ["a", "b"]


def test_opening_and_plotting_need_no_torch(runs: Path):
    program = (
        "import sys, muster\n"
        f"run = muster.open_run({str(runs / 'good')!r})\n"
        "run.plot(), run._repr_html_(), run.rollouts_frame()\n"
        "sys.exit('torch' in sys.modules or 'IPython' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_each_curve_is_defined_once():
    text = resources.files("muster.view").joinpath("static", "panels.js").read_text(encoding="utf-8")
    assert text.count('\n    "id": ') == len(panels())
