"""`muster init`."""

import json as json_format
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from muster.cli.flags import Json, about
from muster.errors import ConfigError

RUN_TOML = """\
# A run of Muster. `muster config` lists every setting; each is also a flag: --optim.lr 2e-6
# Start it with: muster train run.toml

[model]
path = "smollm2-135m-instruct"   # a hub id, a folder, a .gguf file, or this one, which comes as a package
max_tokens = 512                 # prompt and completion together
# [model.lora]                   # take the two marks away to train an adapter instead of all weights
# rank = 32

[data]
path = "prompts.jsonl"           # one row per prompt: CSV, JSON lines, JSON or Parquet
eval_path = "held_out.jsonl"     # never trained on: what was learned, not what was remembered
prompt = "prompt"                # this column is the user's message; all others go to the reward

[reward]
use = "reward.py:reward"         # yours, beside this file; or a built-in one such as "contains_answer"

[sampling]
prompts_per_step = 2
group_size = 8                   # completions per prompt: they are compared with each other
max_tokens = 32                  # longest completion

[algo]
recipe = "grpo"                  # or dr_grpo, dapo, gspo, cispo, rloo ...

[optim]
lr = 1e-5
warmup = 5

[eval]
prompts = 8

[run]
steps = 30
save_every = 10
"""

REWARD_PY = '''\
"""What is good, for this run."""

import re


def reward(completion: str, answer: str) -> float:
    """1 for the right number alone, 0.5 for the right number among words, 0.1 for a wrong one, else 0.

    Steps between 0 and 1 help at the start: a group whose rewards are all equal teaches nothing.
    """
    numbers = re.findall(r"-?\\d+", completion)
    if not numbers:
        return 0.0
    if completion.strip() == answer:
        return 1.0
    return 0.5 if numbers[-1] == answer else 0.1
'''


def init(
    folder: Annotated[Path, about("Where to; made where it isn't there.")] = Path("my-run"),
    /,
    *,
    from_trl: Annotated[
        Path | None, about("A TRL or Unsloth script, which is not run, or a JSON of GRPOConfig arguments.")
    ] = None,
    json: Json = False,
) -> int:
    """Write a run to start from: a commented configuration, a reward, and a little data.

    With `--from-trl` the configuration is what a script says, and nothing else is written. Nothing that is
    there is written over.

    **Examples**

    ```text
    muster init
    muster init sums && muster train sums/run.toml
    muster init sums --from-trl train_grpo.py
    ```
    """
    from muster.cli.output import program
    from muster.escaping import escape_text
    from muster.files import make_folder, write_atomic

    files, report = (starter_files(), ()) if from_trl is None else _converted(from_trl)
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise ConfigError(
            f"{folder} holds {', '.join(there)} already. Name another folder, or move them away."
        )
    make_folder(folder.absolute())
    for name, text in files.items():
        write_atomic(folder / name, text.encode("utf-8"))
    written = [str(folder / name) for name in files]
    if json:
        print(json_format.dumps({"written": written, **({"report": report} if from_trl else {})}))
    else:
        told = ["Wrote:", *(f"  {path}" for path in written), "Next:", f"  {program()} train {written[0]}"]
        print("\n".join(told))
        if report:
            print("\n".join(["To look at:", *(f"  - {escape_text(line)}" for line in report)]))
    return 0


def _converted(source: Path) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The one file that a script becomes, and what was not carried over as it was."""
    from muster.fromtrl import converted, read

    found = converted(read(source))
    return {"run.toml": found.toml}, found.report


def starter_files() -> Mapping[str, str]:
    """What a new folder holds, by name."""
    sums = [(a, b) for a in range(2, 10) for b in range(2, 10) if a <= b]
    return {
        "run.toml": RUN_TOML,
        "reward.py": REWARD_PY,
        "prompts.jsonl": _rows([pair for pair in sums if sum(pair) % 4]),
        "held_out.jsonl": _rows([pair for pair in sums if sum(pair) % 4 == 0]),
    }


def _rows(sums: list[tuple[int, int]]) -> str:
    rows = [
        {"prompt": f"What is {a} + {b}? Answer with the number only.", "answer": str(a + b)} for a, b in sums
    ]
    return "".join(f"{json_format.dumps(row)}\n" for row in rows)
