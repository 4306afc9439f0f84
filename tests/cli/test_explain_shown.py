"""`muster explain` in the terminal and as JSON: plain, in the width there is, nothing by colour alone."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from muster.cli import main
from muster.cli.drawing import HEIGHT, chart_lines, draw
from muster.cli.explain import PICTURES
from muster.config import to_toml
from muster.pictures import Bars, Chart, Curve, Picture, Table
from toy_run import config_for

Capture = pytest.CaptureFixture[str]

RISING = Curve(name="rising", x=(0.0, 1.0, 2.0), y=(0.0, 0.5, 1.0))
FLAT = Curve(name="flat", x=(0.0, 1.0, 2.0), y=(0.0, 0.0, None))


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")


def chart(*curves: Curve, is_log: bool = False) -> Chart:
    return Chart(title="t", x_label="steps", y_label="y", curves=curves, is_log=is_log)


def lines_of(drawn: Chart, width: int = 60) -> list[str]:
    return [line.plain for line in chart_lines(drawn, width)]


def drawn_text(picture: Picture, width: int, *, terminal: bool) -> str:
    file = io.StringIO()
    draw(picture, Console(file=file, width=width, force_terminal=terminal, highlight=False))
    return file.getvalue()


def test_a_curve_goes_from_corner_to_corner():
    key, *plane, axis, label = lines_of(chart(RISING))
    assert key == "● rising"
    assert len(plane) == HEIGHT
    assert plane[0].endswith("●")
    assert plane[-1].partition("│")[2].startswith("●")
    assert plane[0].split("│")[0].strip() == "1"
    assert axis.strip().startswith("└")
    assert label.split() == ["0", "steps", "2"]


def test_curves_have_signs_and_a_gap_stays_empty():
    plane = lines_of(chart(RISING, FLAT))
    assert plane[:2] == ["● rising", "▲ flat"]
    floor = plane[HEIGHT + 1].partition("│")[2]
    assert "▲" in floor[: len(floor) // 2]
    assert "▲" not in floor[len(floor) // 2 + 2 :]


def test_many_curves_are_rows_of_one_scale():
    curves = [Curve(name=f"c{n}", x=(0.0, 1.0), y=(0.0, float(n))) for n in range(6)]
    head, *rows = lines_of(chart(*curves))
    assert head == "steps 0 to 1; heights from 0 to 5"
    assert [row.split()[0] for row in rows] == [curve.name for curve in curves]
    assert "█" in rows[5]
    assert "█" not in rows[4]
    assert rows[3].endswith("0 to 3")


def test_logarithmic_axes_have_no_place_for_zero():
    curve = Curve(name="c", x=(1.0, 10.0, 100.0), y=(0.0, 1.0, 100.0))
    *_, label = lines_of(chart(curve, is_log=True))
    assert "both axes logarithmic" in label
    plane = lines_of(chart(curve, is_log=True))[1 : HEIGHT + 1]
    assert all(line.partition("│")[2][:5].strip() == "" for line in plane)


def test_a_chart_without_a_spread_is_drawn():
    assert len(lines_of(chart(Curve(name="c", x=(0.0, 1.0), y=(2.0, 2.0))))) == HEIGHT + 3
    assert len(lines_of(chart(Curve(name="c", x=(0.0,), y=(None,))))) == HEIGHT + 3


EVERYTHING = Picture(
    name="all",
    title="A title",
    blocks=(
        "A paragraph with \x1b[31mred\x1b[0m in it, and more words than fit on a line of sixty.",
        Table(title="numbers", columns=("name", "value"), rows=(("a\x1b[2J", 0.25), ("b", None))),
        chart(RISING, FLAT),
        Bars(
            title="bars",
            value_label="p",
            labels=("'x\x1b]'", "y"),
            series={"p": (0.5, 1.0), "q": (0.0, None)},
        ),
    ),
)


@pytest.mark.parametrize("width", [24, 40, 60, 200])
def test_a_picture_keeps_to_its_width_and_text_never_steers(width):
    text = drawn_text(EVERYTHING, width, terminal=False)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= max(width, 24)
    assert "0.25" in text


def test_colours_are_beside_signs_never_in_their_place():
    coloured = drawn_text(EVERYTHING, 80, terminal=True)
    assert "\x1b[" in coloured
    plain = drawn_text(EVERYTHING, 80, terminal=False)
    assert "● rising" in plain
    assert "▲ flat" in plain


@pytest.mark.parametrize("name", ["clip", "advantages", "weights"])
def test_json_holds_the_numbers(name, capsys: Capture):
    assert main(["explain", name, "--json"]) == 0
    picture = json.loads(capsys.readouterr().out)
    assert picture["picture"] == name
    assert picture["numbers"]
    assert {block["kind"] for block in picture["blocks"]} == {"text", "table", "chart"}


def test_rewards_and_lengths_are_taken_from_the_line(capsys: Capture):
    assert main(["explain", "advantages", "--rewards", "1,0,0,0.5", "--rewards", "1,1", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)["numbers"]
    assert numbers["rewards"] == [[1, 0, 0, 0.5], [1, 1, None, None]]
    assert numbers["advantages"]["center"][0] == [0.625, -0.375, -0.375, 0.125]
    assert main(["explain", "weights", "--lengths", "2,4", "--limit", "8"]) == 0
    assert "by_sequence      0.25     0.125" in capsys.readouterr().out


def test_a_step_of_a_file_is_told(place: Path, tmp_path: Path, capsys: Capture):
    file = tmp_path / "run.toml"
    file.write_text(to_toml(config_for(place, tmp_path / "runs")), encoding="utf-8")
    assert main(["explain", "step", str(file), "--algo.passes", "2"]) == 0
    out = capsys.readouterr().out
    assert "A step draws 2 prompts and samples 4 completions of up to 4 tokens of each" in " ".join(
        out.split()
    )
    assert "old " in out
    assert main(["explain", "next-token", str(file), "--top", "3", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)["numbers"]
    assert numbers["moved"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml"], "it leaves nothing"


@pytest.mark.parametrize("verb", ["step", "next-token"])
def test_no_code_is_run_because_a_runs_folder_names_it(
    verb: str, place: Path, tmp_path: Path, capsys: Capture
):
    trap = tmp_path / "trap.py"
    trap.write_text("raise SystemExit('it was run')")
    named = {"algo": {"objective": f"{trap}:f"}} if verb == "step" else {"reward": {"use": [f"{trap}:f"]}}
    (tmp_path / "config.toml").write_text(to_toml(config_for(place, tmp_path / "runs", **named)))
    assert main(["explain", verb, str(tmp_path)]) == 2
    assert "no code is run because a folder names it" in " ".join(capsys.readouterr().err.split())


def test_kl_of_a_model_is_told(place: Path, capsys: Capture):
    assert main(["explain", "kl", "--model", str(place / "model"), "--text", "abc", "--draws", "20"]) == 0
    out = capsys.readouterr().out
    assert "k1, differentiable ratio" in out
    assert "likeliest next tokens" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["klip"], 'Did you mean "clip"?'),
        (["clip", "--recipe", "dapp"], "Did you mean 'dapo'?"),
        (["advantages", "--rewards", "1,oops"], "holds 'oops', which is no finite number"),
        (["weights", "--lengths", "1,two"], "--lengths is '1,two'"),
        (["clip", "--html", "nowhere/clip.html"], "there is no folder"),
        (["step", "no-such.toml"], "no-such.toml"),
        (["step"], "model.path"),
    ],
)
def test_bad_input_is_exit_code_2(words, says, capsys: Capture):
    assert main(["explain", *words]) == 2
    assert says in capsys.readouterr().err


def test_every_picture_has_a_verb():
    assert list(PICTURES) == ["kl", "clip", "advantages", "weights", "next-token", "step"]
