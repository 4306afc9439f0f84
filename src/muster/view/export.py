"""The page with its data in one file, which opens from disk without a server."""

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from muster.errors import ConfigError, MusterError
from muster.store import Line
from muster.view.bundling import one_script
from muster.view.regrades import regrade_answers
from muster.view.run_view import RunView
from muster.view.server import MAIN, PAGE, packed, page_files
from muster.view.sources import find_sources

MAX_BYTES = 400 * 2**20
"""Of a page's data: browsers open no larger one well."""
DEFAULT_STEPS = 8
"""Steps whose samples go in where none are named: the last ones."""


class Exported(NamedTuple):
    """A page that was made."""

    html: str
    num_steps: int


def export_page(places: Sequence[Path], steps: Sequence[range] | None) -> Exported:
    """The runs' curves and the samples of the chosen steps, without them of the last, as one HTML text."""
    runs = [RunView(source) for source in find_sources(places)]
    if not runs:
        raise ConfigError(
            f"there is no run to export in {', '.join(map(str, places))}. Name a run or its folder."
        )
    answers: dict[str, object] = {"/api/runs": {"runs": [run.summary() for run in runs]}}
    num_steps = sum(_add_run(answers, run, steps) for run in runs)
    if steps is not None and not num_steps:
        raise ConfigError(f"none of the steps of --steps has samples. There are: {_there(runs)}.")
    data = packed(answers)
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"the page would hold {len(data) / 2**20:.0f} MiB of data; up to {MAX_BYTES // 2**20} open well. "
            "Choose fewer steps with --steps."
        )
    return Exported(_assembled(data), num_steps)


def _add_run(answers: dict[str, object], run: RunView, steps: Sequence[range] | None) -> int:
    """Puts what the page asks about a run into the answers; returns how many steps with samples that are."""
    path, info = f"/api/runs/{run.source.id}", run.info()
    kept: dict[str, list[int]] = {}
    for name, held_out in (("sample_steps", False), ("eval_steps", True)):
        there = info[name]
        chosen = (
            [step for step in there if any(step in some for some in steps)] if steps is not None else None
        )
        kept[name] = [
            step
            for step in (there[-DEFAULT_STEPS:] if chosen is None else chosen)
            if _add_step(answers, run, step, held_out=held_out)
        ]
    answers[path] = {**info, **kept}
    answers[f"{path}/curves"] = run.curves(0, -1)
    answers.update(regrade_answers(run.source, path, kept["sample_steps"]))
    try:
        answers[f"{path}/findings"] = run.findings()
    except MusterError as error:
        answers[f"{path}/findings"] = {"findings": [], "unasked": [], "unread": [str(error)]}
    return len(kept["sample_steps"])


def _add_step(answers: dict[str, object], run: RunView, step: int, *, held_out: bool) -> bool:
    """Puts a step's samples in; False for a step that can't be read."""
    path, question = f"/api/runs/{run.source.id}/steps/{step}", "?held_out=1" if held_out else ""
    try:
        listed = run.groups(step, held_out=held_out)
    except MusterError:
        return False
    answers[path + question] = listed
    for line in listed["groups"]:
        group: Line = run.group(step, line["group"], held_out=held_out)
        answers[f"{path}/groups/{line['group']}{question}"] = group
        for rollout in group["rollouts"]:
            row = rollout["row"]
            answers[f"{path}/rollouts/{row}{question}"] = run.tokens(step, row, held_out=held_out)
    return True


def _there(runs: Sequence[RunView]) -> str:
    steps = sorted({step for run in runs for step in run.info()["sample_steps"]})
    return f"{steps[0]} to {steps[-1]}" if steps else "none"


def _assembled(data: str) -> str:
    """The page with styles, scripts and data inside, under a policy that lets only these scripts run."""
    files = {name: body.decode("utf-8") for name, (body, _) in page_files().items()}
    styles = [body for name, body in files.items() if name.endswith(".css")]
    return in_one_file(files[PAGE], styles=styles, script=one_script(files, MAIN), data=data)


def in_one_file(
    page: str, *, styles: Sequence[str], script: str, data: str, before: Sequence[str] = ()
) -> str:
    """The page with all that it needs inside, under a policy that lets only these scripts run.

    `data` is JSON, which the script finds in the element `exported`; scripts of others run `before` it.
    """
    others, own = [_inert(one) for one in before], _inert(script)
    hashes = " ".join(f"'sha256-{_digest(one)}'" for one in [*others, own])
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = re.sub(r"<link [^>]*>\n|<script [^>]*></script>\n", "", page)
    charset = '<meta charset="utf-8">\n'
    said = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
    head = head.replace(charset, charset + said, 1)
    # In a script element nothing but "<" can end the data, and JSON has an escape for it.
    body = f'<script type="application/json" id="exported">{data.replace("<", chr(92) + "u003c")}</script>\n'
    body += "".join(f"<script>{one}</script>\n" for one in others)
    body += f'<script type="module">{own}</script>\n'
    inside = "".join(f"<style>\n{style}</style>\n" for style in styles)
    return head.replace("</head>", f"{inside}</head>", 1).replace("</body>", f"{body}</body>", 1)


def _inert(script: str) -> str:
    """The script without the letters that would end its element."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", script, flags=re.IGNORECASE)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
