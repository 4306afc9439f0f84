"""Text on a terminal: escapes, curves, numbers."""

import pytest

from muster.cli.text import duration, escape_block, escape_text, number, shortened, sparkline


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("\x1b]0;x\x07", "\\x1b]0;x\\x07"),
        ("a\rb", "a\\rb"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202eevil", "\\u202eevil"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\x00", "\\x00"),
        ("\u2028", "\\u2028"),
        ("\ufeff", "\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("a\xadb", "a\\xadb"),
        ("\u3164", "\\u3164"),
        ("\u180e", "\\u180e"),
        ("one\ntwo\tthree", "one\\ntwo\\tthree"),
    ],
)
def test_what_would_steer_a_terminal_is_shown_as_an_escape(hostile: str, shown: str):  # B74
    assert escape_text(hostile) == shown


def test_letters_of_all_scripts_and_emoji_stay():
    text = "größe 连续 مرحبا नमस्ते 👩‍💻"
    assert escape_text(text) == text


def test_a_block_keeps_its_line_breaks_and_nothing_else():
    assert escape_block("a\nb\x1b[2J\r\n") == "a\nb\\x1b[2J\\r\n"


def test_a_curve_has_one_character_per_value_and_at_most_its_width():
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert sparkline([0.0, None, 1.0], 10) == "▁ █"
    assert sparkline([3.0, 3.0], 10) == "▁▁"
    assert sparkline([], 10) == sparkline([None], 10) == ""
    assert sparkline([float(place) for place in range(100)], 8) == "▁▂▃▄▅▆▇█"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (3, "3"),
        (0.7, "0.7"),
        (1.0, "1"),
        (0.0, "0"),
        (0.18749, "0.187"),
        (2e-6, "2.00e-06"),
        (1e6, "1.00e+06"),
    ],
)
def test_a_number_takes_few_characters(value: float | None, shown: str):
    assert number(value) == shown


def test_times_read_as_on_a_clock_and_never_below_zero():
    assert [duration(s) for s in (5, 65, 3725, -3)] == ["0:05", "1:05", "1:02:05", "0:00"]


def test_a_long_text_keeps_its_ends():
    assert shortened("a" * 50 + "b" * 50, 25) == "a" * 10 + " ... " + "b" * 10
    assert shortened("short", 25) == "short"
