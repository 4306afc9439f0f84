"""`muster eval`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.flags import Json, Overrides, about, as_mapping

if TYPE_CHECKING:
    # Only the type: `muster --help` does not wait for the models behind the configuration.
    from muster.config import Config


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
    data. A warm start has no reward, so it needs `--reward.use`, and a model alone `--data.path` as well.

    **Examples**

    ```text
    muster eval demo-1
    muster eval demo-1 --data.path other.jsonl -n 8
    muster eval runs/demo-1/checkpoints/000050
    muster eval smollm2-135m-instruct --data.path people.jsonl --reward.use json_extraction
    ```
    """
    from muster.cli.targets import model_of, run_folder, run_of_checkpoint

    settings = as_mapping(overrides)
    if n is not None:
        settings["eval.group_size"] = str(n)
    run = run_folder(target) or run_of_checkpoint(target)
    config = config_of_run(run, settings) if run else config_of_model(model_of(target), settings)
    from muster.cli.outcome import print_evaluation
    from muster.cli.output import log_line
    from muster.run import Watchers
    from muster.using import evaluate as measure

    watchers = Watchers(say=log_line)
    report = measure(config, model_path=Path(model_of(target)) if run else None, watchers=watchers)
    print_evaluation(report, as_json=json)
    return 0


def config_of_run(run: Path, settings: Mapping[str, str]) -> "Config":
    """A run's configuration, to measure its model; `data.path` is what is to be measured on.

    The run's own `data.path` is what it was trained on.
    """
    from muster.config import load

    changed = dict(settings)
    if load(run / "config.toml").is_warm_start:
        # Its model is measured as any other: by a reward, on what it samples.
        changed |= {"algo.recipe": "null", "data.completion": "null"}
    if "data.path" in changed:
        # Without held-out data, `data.path` is what is measured on.
        changed |= {"data.eval_path": "null", "data.eval_split": "null"}
    return load(run / "config.toml", changed)


def config_of_model(model: str, settings: Mapping[str, str]) -> "Config":
    """The configuration to measure a model that no run made."""
    from muster.config import load

    return load(None, {"model.path": model, **settings})
