"""The page's questions about one run, answered from its folder."""

import contextlib
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from muster.doctor import in_words, told
from muster.errors import ConfigError
from muster.store import (
    EVENTS,
    META,
    METRICS,
    SCHEMA_VERSION,
    TIMINGS,
    Line,
    StoredConfig,
    read_config,
    state_of,
)
from muster.view import foreign
from muster.view.curves import number_of, to_columns
from muster.view.examining import BUDGET_TOKENS, examined
from muster.view.findings import findings_of
from muster.view.growing import read_object, regular
from muster.view.pieces import pieces_of
from muster.view.run_files import RunFiles
from muster.view.samples import MAX_TEXT, group_list, grouped, loaded, rollout_list, token_columns
from muster.view.settings import clip_range, full_score
from muster.view.sources import Source
from muster.view.status import Plan, pace_of, spark, status_of


class RunView:
    """One run, whoever wrote it; several threads may ask."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._lock, self._examining = threading.RLock(), threading.Lock()
        self._files = RunFiles(source)
        self._examined: tuple[tuple[int, int], Line] | None = None

    def summary(self) -> Line:
        """What a list of runs shows."""
        with self._lock:
            meta, lines = _meta(self.source), self._files.brief()
            return {
                "id": self.source.id,
                "name": self.source.name,
                "kind": self.source.kind,
                "started": str(meta.get("started") or ""),
                "status": self._status(lines, []),
                "curve": spark([number_of(line.get("reward")) for line in lines]),
                "problem": _problem(self.source, meta),
            }

    def unreadable(self, reason: str) -> Line:
        """What a list of runs shows of one whose folder holds what no run wrote."""
        return {
            "id": self.source.id,
            "name": self.source.name,
            "kind": self.source.kind,
            "started": "",
            "status": status_of([], [], None, Plan(steps=None), 0.0),
            "curve": [],
            "problem": f"can't be read: {reason}",
        }

    def info(self) -> Line:
        """All there is about the run as a whole."""
        with self._reading():
            config = read_config(self.source.folder)
            return {
                **self.summary(),
                "status": self._status(self._files.records.look(), self._files.timings.look()),
                "config": config.text,
                "meta": _meta(self.source),
                "lacks": _lacks(self.source, config),
                "clip": clip_range(config) if self.source.kind == "muster" else None,
                "full": self._full(),
                "findings": findings_of(self._files.events.look()),
                "sample_steps": self._files.steps(),
                "eval_steps": self._files.steps(held_out=True),
                "num_broken": self._files.num_broken,
            }

    def findings(self) -> Line:
        """What the doctor says where training did not: asked now, of as many rollouts as are read quickly.

        `findings` as in `info`; `unasked`, the rules that could not look, with what they lack; `unread`,
        what was left out as damaged. All empty where training told its findings, which are in `info`.
        """
        with self._reading():
            if told(self._files.events.look()) is not None:
                return {"findings": [], "unasked": [], "unread": []}
            stamp = (self._files.records.generation, len(self._files.records.look()))
        # It may read for seconds; meanwhile the curves answer.
        with self._examining:
            if self._examined is None or self._examined[0] != stamp:
                self._examined = (stamp, _asked(self.source))
            return self._examined[1]

    def curves(self, start: int, generation: int) -> Line:
        """The numbers of the steps from a place on; of all where the place is of another generation."""
        with self._reading():
            files = self._files
            lines = files.records.look()
            if generation != files.records.generation or not 0 <= start <= len(lines):
                start = 0
            new = lines[start:]
            timings, groups = (files.timings.look(), files.groups()) if new else ([], [])
            return {
                "generation": files.records.generation,
                "start": start,
                "end": len(lines),
                "columns": to_columns(new, timings, groups, self._full()),
            }

    def groups(self, step: int, *, held_out: bool = False, text: str = "") -> Line:
        """The groups of a step, or of the evaluation at it; those that hold a text where one is given."""
        with self._reading():
            rows = self._files.rows(step, held_out=held_out)
            lines = group_list(rows, self._full(), text)
            history = None if held_out else self._files.history()
            for line in lines:
                line["seen"] = history.seen_before(str(line["sample"]), step) if history else None
            return {"step": step, "num_rollouts": len(rows), "groups": lines}

    def group(self, step: int, group: int, *, held_out: bool = False) -> Line:
        """The prompt and the rollouts of a group, and how the prompt fared at other steps."""
        with self._reading():
            rows = self._files.rows(step, held_out=held_out)
            rollouts = rollout_list(rows, group)
            if rollouts is None:
                raise ConfigError(f"step {step} has {len(grouped(rows))} groups, no number {group}.")
            first = self._files.row(step, rollouts[0]["row"], held_out=held_out)
            sample = str(first.get("sample_id"))
            visits = [] if held_out else self._files.history().of(sample)
            return {
                "step": step,
                "group": group,
                "id": first.get("group_id"),
                "sample": sample,
                "prompt": str(first.get("prompt_text") or "")[:MAX_TEXT],
                "prompt_ids": first.get("prompt_ids"),
                "columns": loaded(first.get("sample")).get("columns"),
                "rollouts": rollouts,
                "visits": [visit._asdict() for visit in visits],
            }

    def tokens(self, step: int, row: int, *, held_out: bool = False) -> Line:
        """The tokens of a rollout, each as its piece of text and with its numbers."""
        with self._reading():
            columns = token_columns(self._files.row(step, row, held_out=held_out))
            tokenizer = self._files.tokenizer() if columns["ids"] else None
            pieces = pieces_of(tokenizer, columns["ids"]) if tokenizer else None
            return {"row": row, "pieces": pieces, **columns}

    @contextlib.contextmanager
    def _reading(self) -> Generator[None]:
        """One question at a time; raises ConfigError for a run of a newer format."""
        version = _meta(self.source).get("schema_version")
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise ConfigError(_newer(version))
        with self._lock:
            yield

    def _status(self, lines: Sequence[Line], timings: Sequence[Line]) -> Line:
        age_s = max(0.0, time.time() - self._files.modified)
        events = self._files.events.look()
        # Another trainer's folder has no lock and no events; an older run of ours may have lost its own.
        known = self.source.kind == "muster" and events
        state = state_of(self.source.folder, events, age_s=age_s, pace_s=pace_of(timings)) if known else None
        return status_of(lines, timings, state, _plan(self.source), age_s)

    def _full(self) -> float:
        """The score from which on an answer is all right."""
        if self.source.kind != "trl":
            return full_score(read_config(self.source.folder))
        keys = {key for line in self._files.records.look() for key in line if key.startswith("rewards/")}
        return float(len({key.split("/")[1] for key in keys}) or 1)


def _asked(source: Source) -> Line:
    """The doctor's answer in the form of the page."""
    found = examined(source, BUDGET_TOKENS)
    return {
        "findings": findings_of([{"kind": "finding", **finding.to_plain()} for finding in found.findings]),
        "unasked": in_words(found.unasked),
        "unread": list(found.course.unread),
    }


def _meta(source: Source) -> Line:
    return (read_object(source.folder / META) if source.kind == "muster" else None) or {}


def _plan(source: Source) -> Plan:
    if source.kind == "trl":
        return Plan(steps=foreign.planned_steps(source.folder))
    config = read_config(source.folder)
    return Plan(steps=config.steps, epochs=number_of(config.get("run", "epochs")))


def _problem(source: Source, meta: Line) -> str | None:
    """Why what is shown may be incomplete; None where nothing says so."""
    if source.kind != "muster":
        return None
    version = meta.get("schema_version")
    if not isinstance(version, int):
        return f"{META} can't be read, so nobody knows this run's format. What follows may be incomplete."
    if version > SCHEMA_VERSION:
        return _newer(version)
    return None


def _newer(version: int) -> str:
    return (
        f"A newer Muster wrote this run: it has format {version}, and this one reads up to {SCHEMA_VERSION}. "
        "Update with: pip install --upgrade muster-rl"
    )


def _lacks(source: Source, config: StoredConfig) -> list[str]:
    """What a run of Muster has and this one doesn't, in words."""
    if source.kind == "trl":
        return list(foreign.TRL_LACKS)
    if source.kind == "metrics":
        return list(foreign.METRICS_LACKS)
    missing = {METRICS: "its numbers", TIMINGS: "seconds and tokens per second", EVENTS: "what happened"}
    lacks = [f"{what} ({name})" for name, what in missing.items() if _is_missing(source.folder / name)]
    return lacks if config.tables else [*lacks, "its settings (config.toml)"]


def _is_missing(path: Path) -> bool:
    return regular(path) is None
