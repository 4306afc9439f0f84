"""`muster train`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.flags import Json, Overrides, Profile, Requeue, Resume, about, as_mapping
from muster.errors import ConfigError

TABLE_EVERY = 5
"""Steps between tables of samples."""

if TYPE_CHECKING:
    from muster.cli.terminal import JsonView, SilentView, TrainView
    from muster.config import Config


def train(
    file: Annotated[
        Path | None, about("A TOML file, or the folder of a run to train on its configuration.")
    ] = None,
    /,
    *,
    resume: Resume = False,
    requeue: Requeue = False,
    table_every: Annotated[
        int, about("Steps between tables of samples on the terminal; 0 prints none.")
    ] = TABLE_EVERY,
    profile: Profile = False,
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Fine-tune a model.

    Reads a configuration, with flags on top of it, and trains; everything goes into the run's folder,
    `runs/NAME`. Ctrl-C ends the step, saves and stops; `--resume` goes on from there. Under a scheduler that
    starts a command again when it exits with 75, `--requeue` does both.

    **Examples**

    ```text
    muster train run.toml
    muster train run.toml --optim.lr 2e-6 --run.steps 50
    muster train run.toml --resume
    muster train run.toml --run.name long --requeue
    muster train --model.path smollm2-135m-instruct --data.path prompts.csv --reward.use grade.py:reward
    ```
    """
    settings = as_mapping(overrides)
    return carry_out(
        source_of(file),
        settings,
        stem_of=file,
        resume=resume,
        requeue=requeue,
        profile=profile,
        as_json=json,
        table_every=table_every,
    )


def carry_out(
    file: Path | None,
    settings: Mapping[str, str],
    *,
    stem_of: Path | None,
    resume: bool,
    requeue: bool,
    profile: bool,
    as_json: bool,
    table_every: int,
) -> int:
    """Trains on the configuration of a file with flags on top; the exit code.

    A run without a name is named after the stem of `stem_of`, and numbered.
    """
    from muster.config import load
    from muster.dist import decided_by_first, joined
    from muster.store import paused_at

    # Where several processes train together they meet first, and one of them names the run.
    with joined():
        config = load(file, settings)
        if config.run.name is None:
            if requeue:
                raise ConfigError(
                    "--requeue needs a name: the same command finds its run by it. Set --run.name."
                )
            name = str(decided_by_first(lambda: _choose_name(config, stem_of, resume=resume)))
            config = config.model_copy(update={"run": config.run.model_copy(update={"name": name})})
        folder = Path(config.run.dir) / str(config.run.name)
        goes_on = resume or (requeue and bool(decided_by_first(folder.exists)))
        if requeue and not resume and (paused := decided_by_first(lambda: paused_at(folder))):
            return _stays_paused(folder, str(paused))
        view = _view(config, table_every=table_every, as_json=as_json)
        return _watched(config, folder, view, resume=goes_on, requeue=requeue, profile=profile)


def _stays_paused(folder: Path, findings: str) -> int:
    """A launcher that starts a command again must not undo a pause."""
    from muster.cli.findings import FINDINGS
    from muster.cli.output import log_line

    log_line(f"{folder} was stopped at {findings}. --requeue alone does not go on from there; --resume does.")
    return FINDINGS


def _view(config: "Config", *, table_every: int, as_json: bool) -> "TrainView | JsonView | SilentView":
    """Where the steps are printed; of several processes the first speaks."""
    from muster.cli.terminal import JsonView, SilentView, TrainView
    from muster.dist import is_first

    if not is_first():
        return SilentView()
    return JsonView() if as_json else TrainView(config, table_every=table_every)


def _watched(
    config: "Config",
    folder: Path,
    view: "TrainView | JsonView | SilentView",
    *,
    resume: bool,
    requeue: bool,
    profile: bool,
) -> int:
    """Trains, shows how it goes, and returns the exit code."""
    from muster.cli.findings import Pausing
    from muster.cli.outcome import print_outcome
    from muster.cli.output import PatientConsole
    from muster.cli.stopping import Stopping
    from muster.cli.terminal import TrainView
    from muster.store import was_stopped

    # After the configuration is known to be right: this waits for torch.
    with view, Stopping(view.say, requeue=requeue) as stopping:
        view.progress("load", 0, 0)
        from muster.run import Watchers, run

        pausing, asks = Pausing(config.run.pause_on, view.say), stopping.is_requested
        watchers = Watchers(say=view.say, progress=view.progress, should_stop=asks, found=pausing.take)
        for report in run(config, resume=resume, watchers=watchers, profile=profile):
            view.show(report)
    if isinstance(view, TrainView):
        print_outcome(folder, PatientConsole())
    return (stopping.exit_code or pausing.exit_code) if was_stopped(folder) else 0


def _choose_name(config: "Config", file: Path | None, *, resume: bool) -> str:
    from muster.store import choose_name

    return choose_name(Path(config.run.dir), _stem(file), resume=resume)


def _stem(file: Path | None) -> str:
    """What runs of this file are named after, before their number."""
    from muster.config import is_name

    return file.stem if file and is_name(f"{file.stem}-1") else "run"


def source_of(file: Path | None) -> Path | None:
    """The TOML file to read: the folder of a run holds its own."""
    if file is None or not file.is_dir():
        return file
    source = file / "config.toml"
    if not source.is_file():
        there = ", ".join(str(path) for path in sorted(file.glob("*.toml")))
        raise ConfigError(
            f"{file} is no run's folder: it holds no config.toml. Name the TOML file to train by"
            f"{': ' + there if there else ''}."
        )
    return source
