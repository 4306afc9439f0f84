"""`muster reward test`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from muster.cli.flags import Json, Overrides, about, as_mapping

if TYPE_CHECKING:
    # Only types: `muster --help` does not wait for what stands behind the configuration.
    from rich.table import Table

    from muster.config import Config
    from muster.rewards.trial import Finding, Verdict

FailOn = Literal["accepts", "rejects", "never"]

FINDINGS = 3


def try_out(
    file: Annotated[Path | None, about("A TOML file; its data and rewards are what is tried.")] = None,
    /,
    *,
    rows: Annotated[int, about("Rows of the data to try, from its start.")] = 10,
    answer: Annotated[str, about("The column with the reference answer.")] = "answer",
    accept: Annotated[float, about("The score from which on a completion counts as accepted.")] = 1.0,
    fail_on: Annotated[
        FailOn,
        about("What ends with exit code 3: false accepts, false rejects too, or nothing.", "--fail-on"),
    ] = "accepts",
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Try rewards on completions whose verdict is known.

    Some must fail: nothing, the prompt again, all candidate answers at once, the answer negated, form
    without content, praise of itself, a million characters. Some must pass: the reference answer in ten
    wordings. No model is loaded.

    **Examples**

    ```text
    muster reward test run.toml
    muster reward test run.toml --rows 50 --reward.options.json_extraction.strict true
    muster reward test --data.path questions.jsonl --reward.use grade.py:reward --answer solution
    ```
    """
    from muster.config import load
    from muster.store import to_json

    settings = as_mapping(overrides)
    if file is None:
        # A configuration names a model; this verb loads none.
        settings.setdefault("model.path", "none")
    verdicts = try_rewards(load(file, settings), num_rows=rows, answer=answer, accept=accept)
    if json:
        print(to_json([_as_mapping(verdict) for verdict in verdicts]))
    else:
        _print(verdicts)
    return FINDINGS if _is_finding(verdicts, fail_on) else 0


def try_rewards(config: "Config", *, num_rows: int, answer: str, accept: float) -> "list[Verdict]":
    """The verdict on each reward of a configuration, each run as a run would run it, by itself."""
    from muster.errors import ConfigError
    from muster.inputs import load_training
    from muster.rewards import PoolGrader, check_columns, isolations, load_rewards
    from muster.rewards.trial import try_reward

    if num_rows < 1:
        raise ConfigError(f"--rows is {num_rows}; at least 1 is needed.")
    chosen = config.reward
    rewards = load_rewards(chosen.use, chosen.weights, chosen.options, chosen.convention)
    isolations(rewards)
    samples = load_training(config)[:num_rows]
    check_columns(rewards, samples[0].columns, config.data.path)
    verdicts = []
    for reward in rewards:
        in_process = [reward.name] if reward.name in chosen.in_process else []
        grader = PoolGrader([reward], workers=1, time_limit_s=chosen.time_limit_s, in_process=in_process)
        try:
            grader.check()
            verdicts.append(try_reward(reward, grader, samples, answer=answer, accept=accept))
        finally:
            grader.close()
    return verdicts


def _is_finding(verdicts: "list[Verdict]", fail_on: FailOn) -> bool:
    accepts = any(verdict.false_accepts for verdict in verdicts)
    rejects = any(verdict.false_rejects for verdict in verdicts)
    return (accepts and fail_on != "never") or (rejects and fail_on == "rejects")


def _as_mapping(verdict: "Verdict") -> Mapping[str, object]:
    from dataclasses import asdict

    return asdict(verdict) | {
        "false_accepts": verdict.false_accepts,
        "false_rejects": verdict.false_rejects,
        "failed": verdict.failed,
    }


def _print(verdicts: "list[Verdict]") -> None:
    from rich.console import Console
    from rich.text import Text

    from muster.cli.text import escape_text

    console = Console(highlight=False)
    for verdict in verdicts:
        console.print(_table(verdict))
        console.print(
            Text(
                f"{escape_text(verdict.reward)}: {verdict.false_accepts} false accepts, "
                f"{verdict.false_rejects} false rejects, {verdict.failed} failures"
            )
        )
        if verdict.note:
            console.print(Text(f"{escape_text(verdict.reward)}: {escape_text(verdict.note)}"))
        console.print(
            Text(
                f"{escape_text(verdict.reward)}: {1000 * verdict.median_s:.1f} ms a call (median), "
                f"{1000 * verdict.max_s:.1f} ms at most, on {verdict.slowest}"
            )
        )


def _table(verdict: "Verdict") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from muster.cli.text import escape_text

    table = Table(title=Text(escape_text(verdict.reward)), title_justify="left")
    table.add_column("must")
    table.add_column("completion")
    table.add_column("tried", justify="right")
    table.add_column("wrong", justify="right")
    table.add_column("scores", justify="right", no_wrap=True)
    table.add_column("for example", overflow="fold")
    for duty in ("must fail", "must pass"):
        findings = [found for found in verdict.findings if found.duty == duty]
        for place, found in enumerate(findings):
            _add_row(table, found, is_last=place == len(findings) - 1)
    return table


def _add_row(table: "Table", found: "Finding", *, is_last: bool) -> None:
    from rich.text import Text

    from muster.cli.text import escape_text

    wrong = "false accept" if found.duty == "must fail" else "false reject"
    said = [f"{found.wrong} {wrong}{'s' if found.wrong > 1 else ''}"] if found.wrong else []
    said += [f"{found.failed} failed"] if found.failed else []
    said += [f"{found.abstained} abstained"] if found.abstained else []
    table.add_row(
        found.duty.removeprefix("must "),
        Text(found.probe),
        str(found.tried),
        Text(", ".join(said) or "-", style="red" if found.wrong or found.failed else ""),
        _scores(found),
        Text(escape_text(found.example)),
        end_section=is_last,
    )


def _scores(found: "Finding") -> str:
    from muster.cli.text import number

    if found.lowest == found.highest:
        return number(found.highest)
    return f"{number(found.lowest)} to {number(found.highest)}"
