"""From arguments to a verb, and from what happened to an exit code.

0 fine · 1 the run failed · 2 usage or configuration · 3 findings · 75 saved, start me again ·
130 and 143 stopped by Ctrl-C and SIGTERM.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from traceback import format_exc
from typing import Final

from cyclopts import App, CycloptsError

from muster.cli import explain
from muster.cli.check import check
from muster.cli.compare import compare
from muster.cli.config import config
from muster.cli.doctor import doctor
from muster.cli.evaluate import evaluate
from muster.cli.export import export
from muster.cli.flags import gather_overrides
from muster.cli.generate import generate
from muster.cli.init import init
from muster.cli.push import push
from muster.cli.regrade import regrade
from muster.cli.reward import try_out
from muster.cli.runs import runs
from muster.cli.serve import serve
from muster.cli.sft import sft
from muster.cli.show import show
from muster.cli.stopping import SecondSignal
from muster.cli.text import escape_block
from muster.cli.train import train
from muster.cli.view import view
from muster.errors import ConfigError, DataError, MusterError
from muster.redaction import redacted

FINE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

VERBS = {
    "train": train,
    "sft": sft,
    "check": check,
    "eval": evaluate,
    "generate": generate,
    "export": export,
    "push": push,
    "runs": runs,
    "show": show,
    "view": view,
    "doctor": doctor,
    "compare": compare,
    "regrade": regrade,
    "config": config,
    "init": init,
}
GROUPS = {
    "reward": ("Try rewards before a run relies on them.", {"test": try_out}),
    "explain": ("Look at how the algorithm works, in pictures of its own functions.", explain.PICTURES),
    "engine": ("Servers that sample for a run.", {"serve": serve}),
}
"""Verbs of two words: by the first, what it is about, and the second."""

_HELP = """Fine-tune language models with GRPO: sample a group of completions for each prompt, score them,
and make the better ones more likely.

Start with `muster init my-run`, `muster check my-run/run.toml`, then `muster train my-run/run.toml`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb; returns the exit code."""
    _keep_printable()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _app()(gather_overrides(given), exit_on_error=False, print_error=False) or FINE
    except (CycloptsError, MusterError) as error:
        is_usage = isinstance(error, CycloptsError | ConfigError | DataError)
        return _complain(str(error), USAGE if is_usage else FAILED)
    except KeyboardInterrupt as stop:
        return stop.exit_code if isinstance(stop, SecondSignal) else INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough (`muster show run | head`): nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except OSError as error:
        # A full disk, a folder that went away: the last checkpoint, if there is one, is whole.
        return _complain(f"{error.filename or 'a file'}: {error.strerror or error}", FAILED)
    except Exception as error:
        return _complain(_fault(error), FAILED)


def _app() -> App:
    app = App(
        name="muster",
        help=_HELP,
        help_format="markdown",
        version=_version(),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, verb in VERBS.items():
        app.command(verb, name=name)
    for name, (about, verbs) in GROUPS.items():
        group = App(name=name, help=about, help_format="markdown")
        for second, verb in verbs.items():
            group.command(verb, name=second)
        app.command(group)
    return app


def _version() -> str:
    try:
        return version("muster-rl")
    except PackageNotFoundError:
        return "unknown: not installed"


def _fault(error: Exception) -> str:
    """What to say of an error that nobody meant to raise."""
    if isinstance(error, UnicodeEncodeError) and error.encoding == sys.getfilesystemencoding():
        return (
            f"{error.object!r} can't be the name of a file where names are written in {error.encoding}. "
            "Set the environment variable PYTHONUTF8=1, or use a UTF-8 locale."
        )
    # Printed here: Python would print values that a message repeats as they are, escapes and keys.
    return f"a fault in Muster, or in code that it was given to run:\n{format_exc()}"


def _complain(message: str, code: int) -> int:
    """Says what is wrong on stderr."""
    print(f"muster: {escape_block(redacted(message))}", file=sys.stderr)
    return code


def _keep_printable() -> None:
    """Lets a terminal that isn't UTF-8 show escapes for what it can't, instead of failing a run."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
