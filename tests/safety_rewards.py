"""Rewards that know secrets and hostile texts, and tell them where they can; free of torch."""

import os
from collections.abc import Callable

HOSTILE = (
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x9b2J\x9d0;t\x9c",
    "over\rwritten",
    "back\x08\x08\x08space",
    "bell\x07",
    "del\x7f",
    "\u202eright to left\u202c",
    "\u2066isolate\u2069",
    "zero\u200bwidth\ufeff\u2060",
    "lines\u2028and\u2029paragraphs\x0b\x0c\x85",
    "tags\U000e0041\U000e0042",
    "[bold red]markup[/bold red] [link=http://evil.example]x[/link]",
    "<img src=x onerror=alert(1)></script>",
    "```\n# heading\n---\ntags: [x]\n",
    '"quotes", commas; =1+1\n@SUM(1)',
    "muster: error: forged\nstep 1/1  reward 1.0",
    "%s %(a)s {0} ${HOME} `id`",
)
"""Texts that steer terminals, markup, tables or formats where they are taken for more than text."""


def noting(completions: list[object], log_extra: Callable[[str, object], None]) -> list[float]:
    """Nothing to choose by, with a hostile text and a key noted beside each."""
    texts = [HOSTILE[place % len(HOSTILE)] for place in range(len(completions))]
    log_extra("seen", [text + os.environ["HF_TOKEN"] for text in texts])
    return [0.0 for _ in completions]


def telling(completion: str, completion_ids: list[int], sample_id: str) -> float:
    """A number, or for every third prompt an error that repeats keys, as errors of clients do."""
    if int(sample_id) % 3 == 0:
        raise ConnectionError(
            f"401 for https://ada:{os.environ['DB_PASSWORD']}@host/v1?api_key={os.environ['PLAIN_QUERY']} "
            f"with {{'Authorization': 'Bearer {os.environ['OPENAI_API_KEY']}'}} {HOSTILE[int(sample_id) % 3]}"
        )
    return sum(number < 130 for number in completion_ids) / len(completion_ids)


class OddError(Exception):
    """An error whose words can't be had."""

    def __str__(self) -> str:
        raise ValueError(f"no words, but {os.environ['OPENAI_API_KEY']} and \x1b[2J")


def odd(row: dict[str, object]) -> dict[str, object]:
    """A data.map that fails in a way that nothing foresees."""
    raise OddError
