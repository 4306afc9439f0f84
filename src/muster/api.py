"""`muster.train` for the impatient: a model, some data and a reward, from a script or a notebook."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from muster.config import from_mapping, is_name
from muster.errors import ConfigError
from muster.files import make_folder, write_atomic
from muster.notebook.following import Following, is_notebook
from muster.records import StepReport
from muster.run import Watchers, run
from muster.store import choose_name

RewardFunction = Callable[..., object]
Rows = Sequence[Mapping[str, object]]
Settings = Mapping[str, object]


def train(
    *,
    model: str,
    data: str | Path | Rows,
    reward: str | RewardFunction | Sequence[str | RewardFunction],
    name: str | None = None,
    watchers: Watchers | None = None,
    show: bool | None = None,
    **sections: Settings,
) -> list[StepReport]:
    """Trains to the end and returns every step's report; the run's folder holds the rest.

    `data` is a path, a hub id, or rows with a `prompt`, which are kept beside the run. `reward` is a
    name or a function, or several. Other settings go by section:
    `train(..., optim={"lr": 3e-5}, run={"steps": 20})`. `show` draws how the run is going, in one place;
    without it, that is done in a notebook. Raises ConfigError or DataError before a
    model is loaded.
    """
    settings = {section: dict(values) for section, values in sections.items()}
    run_settings = settings.setdefault("run", {})
    runs = Path(str(run_settings.get("dir") or "runs"))
    chosen = name or run_settings.get("name") or choose_name(runs, "run", resume=False)
    if not isinstance(chosen, str) or not is_name(chosen):
        raise ConfigError(f"name is {chosen!r}, but it names a folder: letters, digits, '-', '_' and '.'.")
    run_settings["name"] = chosen
    uses = [reward] if isinstance(reward, str) or callable(reward) else list(reward)
    settings.setdefault("model", {})["path"] = model
    settings.setdefault("data", {})["path"] = _data_path(data, runs, chosen)
    settings.setdefault("reward", {})["use"] = [use if isinstance(use, str) else spec_of(use) for use in uses]
    config = from_mapping(settings)
    if not (is_notebook() if show is None else show):
        return list(run(config, watchers=watchers, rewards=uses))
    with Following(chosen, config.run.steps) as shown:
        told = watchers or Watchers(say=shown.say, progress=shown.progress)
        return list(shown.through(run(config, watchers=told, rewards=uses)))


def spec_of(function: RewardFunction) -> str:
    """What names a function in a configuration: `file.py:function` for one of a script."""
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__name__
    if module == "__main__":
        try:
            return f"{inspect.getfile(inspect.unwrap(function))}:{name}"
        except TypeError:
            pass  # a partial or an object: no file is its own
    return f"{module}:{name}"


def _data_path(data: str | Path | Rows, runs: Path, name: str) -> str:
    """The path of the data; rows are written beside the run, so that its configuration repeats it."""
    if isinstance(data, str | Path):
        return str(data)
    path = runs / f"{name}.jsonl"
    make_folder(path.parent)
    try:
        lines = [json.dumps(dict(row), ensure_ascii=False, allow_nan=False) for row in data]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"data holds a row that is not JSON: {error}. Give texts, numbers and lists."
        ) from error
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode("utf-8"))
    return str(path)
