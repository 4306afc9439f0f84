"""Curves of numbers that no good run has, and what a person does between, beyond and without steps."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from view_runs import Served

SHARE, RATE, LARGEST = "clip_ratio/low_mean", "learning_rate", "sampling/sampling_logp_difference/max"
PROOF = "sampling/mismatch"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run logged at every tenth step to 100, one that ends at 30 and lacks most, and one of a lone step."""
    runs = tmp_path_factory.mktemp("odd") / "runs"
    write(runs / "sparse", [odd_line(step) for step in range(10, 101, 10)])
    write(runs / "short", [{"step": step, "reward": 0.9} for step in (10, 20, 30)])
    write(runs / "single", [odd_line(10)])
    return runs


def odd_line(step: int) -> dict[str, float | None]:
    """Numbers below 0 in a stack, the largest, the smallest, and one that differs in its last bits."""
    sign = 1 if step % 20 else -1
    return {
        "step": step, "reward": step / 100, "entropy": 0.6931471805599453 + sign * 1e-16, "kl": None,
        "loss": sign * 1.7e308, "grad_norm": 1e-320 * step, RATE: 123456.75 + step / 100, SHARE: sign * 1e-5,
        LARGEST: 5e-324 if step == 10 else 0.0, PROOF: 1e-6 * step, "seconds/sample": -1.0,
        "seconds/write": -float(step),
    }  # fmt: skip


def write(folder: Path, lines: list[dict[str, float | None]]) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def opened(page: Page, folder: Path, serving: Callable[[Path], Served]) -> Callable[..., Page]:
    """Opens the curves of a run in a state of the address."""
    served = serving(folder)

    def go(state: str = "", run: str = "sparse", beside: str = "") -> Page:
        others = f"&with={served.id_of(beside)}" if beside else ""
        page.goto(f"{served.address}#run={served.id_of(run)}{others}{state and '&' + state}")
        page.wait_for_selector(".chart[data-panel=reward] .drawing")
        return page

    return go


def chart(page: Page, panel: str) -> Locator:
    found = page.locator(f".chart[data-panel={panel}]")
    found.scroll_into_view_if_needed()
    found.locator(".drawing").wait_for()
    return found


def heights(shape: Locator) -> list[float]:
    """How far below the top of the field the points of a path lie, in pixels."""
    return [float(y) for y in re.findall(r"[ML]\S+ ([-\d.]+)", shape.first.get_attribute("d") or "")]


FIELD = 158 - 6 - 22


@pytest.mark.parametrize("run", ["sparse", "single"])
def test_odd_numbers_are_drawn_without_a_fault(opened: Callable[..., Page], run: str):
    page = opened(run=run)
    for panel in ("proof", "mismatch", "clip", "gradient", "rate", "time", "loss"):
        chart(page, panel)
    assert page.locator(".drawing [d*=NaN], .drawing [y=NaN]").count() == 0


def test_how_far_sampler_and_trainer_differ_is_drawn_by_its_two_meanings(opened: Callable[..., Page]):
    page = opened()
    proof = chart(page, "proof")
    assert heights(proof.locator(".line")) == sorted(heights(proof.locator(".line")), reverse=True)
    for panel, says in (
        ("proof", "Above engine.max_mismatch the run stops"),
        ("mismatch", "With engine.ahead"),
    ):
        chart(page, panel).locator(".info").click()
        expect(page.locator("dialog")).to_contain_text(says)
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_be_hidden()


def test_layers_below_nothing_are_in_view_and_upright(opened: Callable[..., Page]):
    time = chart(opened(), "time")
    for layer in time.locator(".area").all():
        ends = heights(layer)
        assert all(0 <= end <= FIELD for end in ends)
    ticks = [
        (float(mark.get_attribute("y") or 0), mark.text_content() or "")
        for mark in time.locator(".tick").all()
    ]
    values = [
        float(text.replace("\u2212", "-")) for _, text in sorted(ticks) if "\u2212" in text or text == "0"
    ]
    assert values == sorted(values, reverse=True)
    assert len(values) > 2


def test_a_number_that_differs_in_its_last_bits_is_a_level_line(opened: Callable[..., Page]):
    assert set(heights(chart(opened(), "entropy").locator(".line"))) == {FIELD / 2}


def test_long_labels_have_room(opened: Callable[..., Page]):
    rate = chart(opened(), "rate")
    assert max(len(text) for text in rate.locator(".tick").all_text_contents()) > 7
    left = rate.locator(".drawing").evaluate("drawing => drawing.getBoundingClientRect().left")
    for label in rate.locator(".tick").all():
        assert label.evaluate("label => label.getBoundingClientRect().left") >= left


def test_between_two_logged_steps_the_line_runs_from_edge_to_edge(opened: Callable[..., Page]):
    line = chart(opened("from=12&to=18"), "reward").locator(".line")
    start, end = re.findall(r"[ML](\S+) ([-\d.]+)", line.get_attribute("d") or "")
    assert float(start[0]) < 0 < 200 < float(end[0])
    assert 0 < float(end[1]) < float(start[1]) < FIELD


@pytest.mark.parametrize("state", ["from=here&to=there", "from=NaN", "to=Infinity"])
def test_an_address_that_names_no_steps_shows_them_all(opened: Callable[..., Page], state: str):
    page = opened(state)
    assert len(heights(chart(page, "reward").locator(".line"))) == 10
    expect(page.get_by_role("button", name="show all")).to_have_count(0)


def test_a_run_says_nothing_of_steps_after_its_end(opened: Callable[..., Page]):
    page = opened(beside="short")
    field = chart(page, "reward").locator(".field")
    expect(page.locator(".chart[data-panel=reward] .readout b")).to_have_text(["1", "0.9"])
    field.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".chart[data-panel=reward] .readout b")).to_have_text(["0.3", "0.9"])
    page.keyboard.press("ArrowRight")
    expect(page.locator(".chart[data-panel=reward] .readout b")).to_have_text(["0.4", "\u2013"])


def test_the_cursor_stays_where_it_is_when_the_curves_are_drawn_anew(opened: Callable[..., Page]):
    page = opened()
    reward = chart(page, "reward")
    reward.locator(".field").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    before = reward.locator(".cursor").bounding_box()
    width = reward.locator(".drawing").get_attribute("width") or ""
    page.set_viewport_size({"width": 700, "height": 900})
    expect(reward.locator(".drawing")).not_to_have_attribute("width", width)
    after = reward.locator(".cursor").bounding_box()
    assert before is not None
    assert after is not None
    assert before["x"] != after["x"]
    expect(reward.locator(".readout b")).to_have_text("0.2")


def test_the_keys_move_within_the_steps_that_are_shown(opened: Callable[..., Page]):
    page = opened("from=50&to=80")
    reward = chart(page, "reward")
    reward.locator(".field").focus()
    page.keyboard.press("ArrowRight")
    expect(reward.locator(".readout b")).to_have_text("0.5")
    expect(reward.locator(".cursor")).to_be_visible()
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    expect(reward.locator(".readout b")).to_have_text("0.8")


def test_another_theme_recolours_lines_legend_and_list(opened: Callable[..., Page]):
    page = opened(beside="short")
    parts = (".chart[data-panel=reward] .line", ".legend .sign, .legend [aria-hidden]", "#run-list .sign")
    looks = "found => [found.getAttribute('stroke'), found.getAttribute('style')].join()"
    before = [page.locator(part).first.evaluate(looks) for part in parts]
    page.keyboard.press("t")
    after = [page.locator(part).first.evaluate(looks) for part in parts]
    assert all(old != new for old, new in zip(before, after, strict=True))
