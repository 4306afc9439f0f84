"""Writes the rows of the examples with an environment: products for the calculator, secrets for the game.

python examples/data/make_turns.py
"""

import csv
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
SEED = 7
NUM_TRAINED, NUM_HELD_OUT = 400, 64


def products(count: int, draw: random.Random) -> list[dict[str, object]]:
    """Questions whose answers take more than a small model's head."""
    pairs = [(draw.randint(12, 99), draw.randint(12, 99)) for _ in range(count)]
    return [{"prompt": f"What is {a} * {b}?", "answer": a * b} for a, b in pairs]


def secrets(count: int, draw: random.Random) -> list[dict[str, object]]:
    """Numbers to guess between 1 and 20."""
    return [
        {"prompt": "Guess my number.", "low": 1, "high": 20, "secret": draw.randint(1, 20)}
        for _ in range(count)
    ]


def write(name: str, rows: Iterable[Mapping[str, object]]) -> None:
    """A CSV file with a header."""
    listed = list(rows)
    with (HERE / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(listed[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)


def main() -> None:
    """All four files."""
    for name, make in (("calculator", products), ("guessing_game", secrets)):
        rows = make(NUM_TRAINED + NUM_HELD_OUT, random.Random(SEED))
        write(f"{name}.train.csv", rows[:NUM_TRAINED])
        write(f"{name}.heldout.csv", rows[NUM_TRAINED:])


if __name__ == "__main__":
    main()
