"""Writes right answers to prompts of the demo, for a warm start.

    python examples/data/make_json_answers.py [folder]

The last 96 training prompts and the first 24 held-out ones, each with the name and the rest of its sentence
as one flat JSON object: what the reward `json_extraction` gives 1. The same prompts give the same bytes.
"""

import argparse
import csv
import json
from collections.abc import Iterable
from pathlib import Path

from make_json_extraction import FIRST_NAMES, LAST_NAMES

NUM_TRAIN, NUM_HELDOUT = 96, 24


def answer_to(prompt: str) -> str:
    """The facts of a prompt's sentence as JSON: the name, and what is said after it."""
    sentence = prompt.rpartition("\n")[2]
    words = sentence.split()
    place = next(
        number
        for number in range(len(words) - 1)
        if words[number] in FIRST_NAMES and words[number + 1].strip(".,:") in LAST_NAMES
    )
    name = f"{words[place]} {words[place + 1].strip('.,:')}"
    fact = sentence.partition(name)[2].strip(" ,.")
    return json.dumps({"name": name, "fact": fact})


def prompts_in(path: Path) -> list[str]:
    """The prompts of one of the demo's files."""
    with path.open(encoding="utf-8", newline="") as file:
        return [row["prompt"] for row in csv.DictReader(file)]


def write(path: Path, prompts: Iterable[str]) -> None:
    """A row per prompt, with its answer."""
    rows = [json.dumps({"prompt": prompt, "completion": answer_to(prompt)}) for prompt in prompts]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def main() -> None:
    """Writes both files beside the prompts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().folder
    write(folder / "json_answers.train.jsonl", prompts_in(folder / "json_extraction.train.csv")[-NUM_TRAIN:])
    held_out = prompts_in(folder / "json_extraction.heldout.csv")[:NUM_HELDOUT]
    write(folder / "json_answers.heldout.jsonl", held_out)


if __name__ == "__main__":
    main()
