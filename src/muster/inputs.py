"""The data that a configuration names; free of torch."""

from muster.config import Config
from muster.data import Answered, load_answers, load_samples, num_steps
from muster.records import Sample
from muster.tasks import refuse_shared_rows


def load_training(config: Config) -> list[Sample]:
    """The samples to train on."""
    return _load(config, config.data.path, config.data.split)


def _load(config: Config, path: str, split: str) -> list[Sample]:
    """The samples of one data set, read as the configuration's data section says."""
    data = config.data
    return load_samples(
        path,
        prompt=data.prompt,
        system=data.system,
        raw=data.raw,
        map=data.map,
        subset=data.subset,
        split=split,
    )


def load_held_out(config: Config) -> list[Sample]:
    """The held-out samples; empty where none are named."""
    place = _held_out(config)
    return _load(config, *place) if place else []


def steps_of(config: Config, num_rows: int) -> int:
    """Steps of a run over so many rows: those that are named, or what the epochs take."""
    return config.run.steps or num_steps(num_rows, config.sampling.prompts_per_step, config.run.epochs or 1)


def load_training_answers(config: Config) -> list[Answered]:
    """The answers to learn."""
    return _load_answers(config, config.data.path, config.data.split)


def load_held_out_answers(config: Config) -> list[Answered]:
    """The held-out answers; empty where none are named."""
    place = _held_out(config)
    return _load_answers(config, *place) if place else []


def _held_out(config: Config) -> tuple[str, str] | None:
    """Path and split of the held-out data; None where none is named."""
    data = config.data
    if not data.has_eval:
        return None
    if data.eval_path:
        refuse_shared_rows(data.path, data.eval_path)
    return data.eval_path or data.path, data.eval_split or data.split


def _load_answers(config: Config, path: str, split: str) -> list[Answered]:
    data = config.data
    return load_answers(
        path,
        prompt=data.prompt,
        completion=data.completion,
        system=data.system,
        raw=data.raw,
        map=data.map,
        subset=data.subset,
        split=split,
    )
