"""A run's rollouts under another reward or recipe, as `muster regrade` keeps them in the run's folder.

regrades/NAME.json       what was asked, the numbers of each step and of all, the rollouts that changed most
regrades/NAME.parquet    a row per rollout: score and advantage before and after

The recorded rollouts are never touched.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from muster.errors import CheckpointError
from muster.files import make_folder, read_whole, remove, write_atomic
from muster.store.strict import Line, to_json

REGRADES = "regrades"
"""Folder of the run's folder."""
MAX_REGRADES = 200
"""So many are listed, by name."""
MAX_BYTES = 64 * 2**20
"""Largest file that is read: 5,000 steps take about 6 MB."""

ROLLOUTS_SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.int32()),  # its number in the step, as `muster show --group` takes it
        ("index", pa.int32()),  # of the rollout in its group
        ("score_before", pa.float64()),
        ("score_after", pa.float64()),
        ("advantage_before", pa.float64()),
        ("advantage_after", pa.float64()),
        ("why", pa.string()),  # there is no score after: why a reward failed, or that none judged
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What a rollout got before and after."""

    step: int
    group: int
    """Its group's number in the step, from 0."""
    index: int
    """Of the rollout in its group."""
    score_before: float | None
    score_after: float | None
    advantage_before: float
    advantage_after: float
    why: str | None = None
    """Why there is no score after: what a reward failed with, or that none judged it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Graded:
    """Some rollouts on one side, before or after. Sums and counts, so that steps add up."""

    total: float
    """Sum of the scores."""
    scored: int
    failed: int
    """Rollouts of which a reward failed."""
    abstained: int
    """Rollouts that no reward judged."""
    mixed: int
    """Groups whose scores differ."""
    clipped_low: int
    """Tokens that were pushed down far enough: an advantage below 0, and no gradient."""
    clipped_high: int
    """Tokens that were pushed up far enough."""
    tokens: int
    """Tokens sent through the update whose logprobs are stored: what clip shares are shares of."""

    @property
    def mean(self) -> float | None:
        """Mean score; None where no rollout has one."""
        return self.total / self.scored if self.scored else None

    def share(self, clipped: int) -> float | None:
        """Clipped tokens as a share; None where no token was sent through the update."""
        return clipped / self.tokens if self.tokens else None

    def numbers(self) -> dict[str, float | None]:
        """As a table shows it."""
        return {
            "score": self.mean,
            "scored": self.scored,
            "failed": self.failed,
            "abstained": self.abstained,
            "mixed": self.mixed,
            "clip_low": self.share(self.clipped_low),
            "clip_high": self.share(self.clipped_high),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """How the per-token coefficients before and after go together, over tokens known on both sides."""

    cosine: float | None
    """Cosine of the angle between the two vectors; None where one of them is 0."""
    same_sign: float | None
    """Share of the tokens with a coefficient on either side whose signs are the same."""
    relative_norm: float | None
    """Norm after over norm before; None where that is 0."""
    tokens: int
    """Tokens compared."""
    unknown: int
    """Tokens whose coefficient after can't be told: what it takes was not recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One step, or all of them."""

    step: int | None
    """None for all."""
    rollouts: int
    groups: int
    before: Graded
    after: Graded
    advantage_correlation: float | None
    """Pearson's, over the rollouts with a score on both sides; None where one side's are all equal."""
    agreement: Agreement

    def to_plain(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "step": self.step,
            "rollouts": self.rollouts,
            "groups": self.groups,
            "before": self.before.numbers(),
            "after": self.after.numbers(),
            "advantage_correlation": self.advantage_correlation,
            **asdict(self.agreement),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduced:
    """How far the run's own settings give what it recorded: what "before" is worth."""

    advantages: int
    """Recorded advantages that come out to the last bit."""
    of_advantages: int
    clip_steps: int
    """Steps whose recorded clip shares come out to the last bit."""
    of_clip_steps: int
    """Steps of which they were recorded, and follow from what is stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Regrade:
    """A run's rollouts under another reward or recipe."""

    name: str
    made: str
    """When, in UTC."""
    settings: tuple[Mapping[str, str], ...]
    """What is otherwise than in the run: `path`, `before`, `after`, as TOML."""
    is_graded: bool
    """Rewards were called; else the recorded scores were taken."""
    whole: Compared
    steps: tuple[Compared, ...]
    changed_most: tuple[Changes, ...]
    """The rollouts whose advantage changed most, the first of them first."""
    is_unchanged: bool
    """Every score, advantage and coefficient is the recorded one."""
    reproduced: Reproduced
    left_out: tuple[str, ...]
    """Steps that could not be regraded, and why."""
    notes: tuple[str, ...]
    """What limits the numbers, in sentences."""
    failures: Mapping[str, int]
    """Why rewards failed, and how often: the most frequent reasons."""

    def to_plain(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "name": self.name,
            "made": self.made,
            "settings": [dict(one) for one in self.settings],
            "is_graded": self.is_graded,
            "is_unchanged": self.is_unchanged,
            "whole": self.whole.to_plain(),
            "steps": [one.to_plain() for one in self.steps],
            "changed_most": [asdict(one) for one in self.changed_most],
            "reproduced": asdict(self.reproduced),
            "left_out": list(self.left_out),
            "notes": list(self.notes),
            "failures": dict(self.failures),
        }


def keep_regrade(folder: Path, regrade: Regrade, rollouts: Sequence[Changes]) -> Path:
    """Writes the regrade into the run's folder, in place of one of the same name; its JSON file.

    Raises CheckpointError where what lies there would lead out of the folder.
    """
    path = folder / REGRADES / f"{regrade.name}.json"
    if path.parent.is_symlink():
        raise CheckpointError(
            f"{path.parent} is a link to {path.parent.resolve()}, and nothing is written outside the run's "
            "folder. Remove it, or print only, with --no-keep."
        )
    make_folder(path.parent)
    # The list goes by the JSON file: the rows of another regrade must never stand beside it.
    remove(path)
    write_atomic(path.with_suffix(".parquet"), _to_parquet(rollouts))
    write_atomic(path, f"{to_json(regrade.to_plain())}\n".encode("ascii"))
    return path


def regrade_names(folder: Path) -> list[str]:
    """The names of the regrades in a run's folder, in order."""
    files = (folder / REGRADES).glob("*.json")
    return sorted(path.stem for path in files)[:MAX_REGRADES]


def read_regrade(folder: Path, name: str) -> Line:
    """What the JSON file of a listed regrade holds."""
    path = folder / REGRADES / f"{name}.json"
    try:
        value = json.loads(read_whole(path, MAX_BYTES), parse_constant=lambda _: None)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} can't be read as a regrade: {error}. Make it anew.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object. Make the regrade anew.")
    return value


def read_regraded_rollouts(folder: Path, name: str, step: int) -> list[Line]:
    """The rows of a step of a listed regrade; none where it holds no such step."""
    path = folder / REGRADES / f"{name}.parquet"
    try:
        table = pq.read_table(
            pa.BufferReader(read_whole(path, MAX_BYTES)),
            use_threads=False,
            page_checksum_verification=True,
            filters=[("step", "==", step)],
        )
        return table.select(ROLLOUTS_SCHEMA.names).to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} can't be read as a regrade: {error}. Make it anew.") from error


def _to_parquet(rollouts: Sequence[Changes]) -> bytes:
    columns = {name: [getattr(one, name) for one in rollouts] for name in ROLLOUTS_SCHEMA.names}
    table = pa.table(columns, schema=ROLLOUTS_SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, row_group_size=4096)
    return sink.getvalue().to_pybytes()
