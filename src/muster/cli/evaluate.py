"""`muster eval`."""

import sys
from pathlib import Path
from typing import Annotated

from muster.cli.flags import Json, Overrides, about, as_mapping


def evaluate(
    target: Annotated[str, about("A run, a checkpoint in one, or a model: name, folder or hub id.")],
    /,
    *,
    n: Annotated[int | None, about("Completions per prompt; pass@k needs at least k.", "--n", "-n")] = None,
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Measure held-out reward, with its interval, and pass@k.

    A run brings its configuration: its held-out data, rewards and sampling; `--data.path` names other
    data. A model alone needs `--data.path` and `--reward.use`.

    **Examples**

    ```text
    muster eval demo-1
    muster eval demo-1 --data.path other.jsonl -n 8
    muster eval runs/demo-1/checkpoints/000050
    muster eval smollm2-135m-instruct --data.path people.jsonl --reward.use json_extraction
    ```
    """
    from muster.cli.targets import model_of, run_folder, run_of_checkpoint
    from muster.config import load

    settings = as_mapping(overrides)
    if n is not None:
        settings["eval.group_size"] = str(n)
    run = run_folder(target) or run_of_checkpoint(target)
    if run is not None:
        # A run's own data.path is what it was trained on; what is named here is to be measured.
        if "data.path" in settings:
            settings |= {"data.eval_path": settings.pop("data.path"), "data.eval_split": "null"}
        config = load(run / "config.toml", settings)
    else:
        config = load(None, {"model.path": target, **settings})

    from muster.cli.outcome import print_evaluation
    from muster.run import Watchers
    from muster.run import evaluate as measure

    watchers = Watchers(say=lambda text: print(text, file=sys.stderr))
    report = measure(config, model_path=Path(model_of(target)) if run else None, watchers=watchers)
    print_evaluation(report, as_json=json)
    return 0
