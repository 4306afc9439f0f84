"""Taking a run up again: its folder under lock, its settings compared, its newest whole checkpoint."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from muster import checkpoint
from muster.config import Config, Differences, compare, fingerprints, load, to_toml
from muster.errors import ConfigError
from muster.store import RunStore, read_meta

Say = Callable[[str], None]


class TakenUp(NamedTuple):
    """A run's folder as it was left."""

    store: RunStore
    checkpoint: Path | None
    """What to go on from; None where the run ended before its first checkpoint."""
    skipped: tuple[str, ...]
    """Newer checkpoints that are not whole, each with the reason."""
    differences: Differences
    inputs: Mapping[str, str]
    """Digests of the files that the configuration names, as they are now."""
    is_unborn: bool
    """The process ended before the folder said what run it is."""

    @property
    def step(self) -> int:
        """The last step that stays; -1 where none does."""
        return int(self.checkpoint.name) if self.checkpoint else -1


@contextmanager
def taken_up(folder: Path, config: Config, say: Say) -> Generator[TakenUp]:
    """The run in the folder, which is this process's until the block ends.

    Raises ConfigError where there is nothing to resume, or where settings differ that change results.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not there, so there is nothing to resume. Start it without --resume.")
    with RunStore.take(folder) as store:
        inputs = fingerprints(config)
        if store.is_unborn():
            say(f"{folder} holds no run yet: starting over")
            yield TakenUp(store, None, (), Differences((), ()), inputs, True)
            return
        differences = _differences(folder, config, inputs)
        found, skipped = checkpoint.find(folder / "checkpoints")
        for reason in skipped:
            say(f"passed over checkpoint {reason}")
        say(f"going on from {found}" if found else f"{folder} has no whole checkpoint: starting over")
        for text in differences.harmless:
            say(f"changed: {text}")
        yield TakenUp(store, found, tuple(skipped), differences, inputs, False)


def _differences(folder: Path, config: Config, inputs: Mapping[str, str]) -> Differences:
    """What differs from the run's own settings; refuses what would make it another run."""
    recorded = read_meta(folder).get("inputs")
    before = recorded if isinstance(recorded, dict) else {}
    differences = compare(load(folder / "config.toml"), config, before, inputs)
    if differences.changing:
        raise ConfigError(
            f"{folder} was started under other settings, so going on would make it another run:\n  "
            + "\n  ".join(differences.changing)
            + "\nSet them back, or give the new run a name of its own with --run.name."
        )
    return differences


def go_on(taken: TakenUp, config: Config, meta: Callable[[], Mapping[str, object]]) -> RunStore:
    """The store, set back to the checkpoint's step; what is harmless and differs becomes the run's own.

    `meta` is asked for where the folder does not say yet what run it is.
    """
    store = taken.store
    if taken.is_unborn:
        store.begin(to_toml(config), meta())
        return store
    missing = store.drop_after(taken.step)
    if taken.differences.harmless:
        store.amend(to_toml(config), taken.inputs)
    store.append_event(
        "resume", step=max(taken.step, 0), changed=taken.differences.harmless, skipped=taken.skipped
    )
    if missing:
        store.append_event("warning", step=taken.step, text=missing)
    return store
