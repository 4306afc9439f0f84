"""What the inspector draws its curves with: round values on axes, and shapes with gaps."""

from typing import Any

import pytest
from playwright.sync_api import Page

from muster.view.bundling import one_script
from muster.view.server import page_files


@pytest.fixture(scope="module")
def modules() -> str:
    """All that drawing needs, as a script that leaves `modules`."""
    files = {name: body.decode() for name, (body, _) in page_files().items()}
    return one_script(files, "drawing.js")


def computed(page: Page, modules: str, expression: str) -> Any:
    page.goto("about:blank")
    return page.evaluate(f"() => {{ {modules} return {expression}; }}")


@pytest.mark.parametrize(
    ("axis", "count", "ticks", "labels"),
    [
        ("low: 0, high: 1", 4, [0, 0.5, 1], ["0.0", "0.5", "1.0"]),
        ("low: -0.04, high: 1.04, isShare: true", 4, [0, 0.5, 1], ["0\u202f%", "50\u202f%", "100\u202f%"]),
        ("low: 0.93, high: 1.31", 4, [1, 1.1, 1.2, 1.3], ["1.0", "1.1", "1.2", "1.3"]),
        ("low: -3, high: 4", 4, [-2, 0, 2, 4], ["\u22122", "0", "2", "4"]),
        ("low: 1, high: 4, isWhole: true", 10, [1, 2, 3, 4], ["1", "2", "3", "4"]),
        ("low: 0.012, high: 4, isLog: true", 4, [0.1, 1], ["0.1", "1"]),
        ("low: 0.3, high: 4, isLog: true", 4, [0.5, 1, 2], ["0.5", "1", "2"]),
        (
            "low: 0, high: 2.1e-6",
            4,
            [0, 1e-6, 2e-6],
            ["0", "1e\u22126", "2e\u22126"],
        ),
        ("low: 7, high: 7", 4, [7], ["7"]),
    ],
)
def test_axes_have_round_values(
    page: Page, modules: str, axis: str, count: int, ticks: list[float], labels: list[str]
):
    scale = "modules['scale.js']"
    found = computed(page, modules, f"{scale}.ticksOf({{ {axis} }}, {count})")
    assert found == pytest.approx(ticks)
    assert computed(page, modules, f"{scale}.labelsOf({ticks}, {{ {axis} }})") == labels


@pytest.mark.parametrize("axis", ["low: 10, high: 20", "low: 0.1, high: 100, isLog: true"])
def test_a_place_leads_back_to_its_value(page: Page, modules: str, axis: str):
    scale = f"modules['scale.js'].scaleOf({{ {axis} }}, 0, 300)"
    assert computed(page, modules, f"{scale}.place({scale}.value(75))") == pytest.approx(75)
    middle = computed(page, modules, f"{scale}.value(150)")
    assert middle == pytest.approx(15 if "20" in axis else 10**0.5)


def drawn(page: Page, modules: str, shape: str, y: str = "low: 0, high: 10") -> str:
    """The path of one shape on a field of 100 x 100 points, on whose axis of steps 0 to 10 lie."""
    axes = f"{{ width: 156, height: 128, x: {{ low: 0, high: 10 }}, y: {{ {y} }} }}"
    path = "place.querySelector('.inside path').getAttribute('d')"
    draw = f"modules['drawing.js'].draw(place, [{shape}], {axes})"
    made = f"((place) => {{ {draw}; return {path}; }})(document.createElement('div'))"
    return computed(page, modules, made)


def test_a_line_breaks_at_gaps_and_a_lone_value_is_a_dot(page: Page, modules: str):
    line = "{ kind: 'line', x: [0, 1, 2, 3, 4], y: [0, 10, null, 5, null], color: '#000' }"
    assert drawn(page, modules, line) == "M0 100L10 0M30 50h0"


def test_what_a_log_axis_cannot_show_is_a_gap(page: Page, modules: str):
    line = "{ kind: 'line', x: [0, 1, 2, 3], y: [1, 10, 0, 100], color: '#000' }"
    assert drawn(page, modules, line, "low: 1, high: 100, isLog: true") == "M0 100L10 50M30 0h0"


def test_areas_and_intervals_lie_between_their_ends(page: Page, modules: str):
    band = "x: [0, 5, 10], low: [0, 1, null], high: [2, 3, 4]"
    assert drawn(page, modules, f"{{ kind: 'area', {band}, fill: '#000' }}") == "M0 80L50 70L50 90L0 100Z"
    bars = drawn(page, modules, f"{{ kind: 'bars', {band}, color: '#000' }}")
    assert bars == "M0 100V80M-3 100h6M-3 80h6M50 90V70M47 90h6M47 70h6"


def test_an_area_of_a_lone_step_is_as_wide_as_a_dot(page: Page, modules: str):
    band = "x: [0, 5, 10], low: [0, 1, null], high: [null, 3, 4]"
    area = drawn(page, modules, f"{{ kind: 'area', {band}, fill: '#000' }}")
    assert area == "M47 70L53 70L53 90L47 90Z"
