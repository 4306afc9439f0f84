"""Read by every interpreter that a test starts: notes what is unpickled, and code that is marshalled.

Python reads its own compiled modules (.pyc) by marshal: loads that importlib asks for are left out.
"""

import inspect
import os
import pickle
import sys

_LOG = os.environ.get("MUSTER_AUDIT_LOG")
_WATCHED: set[str] = set()


def note(what: str) -> None:
    # One write, so that lines of several processes do not mix.
    descriptor = os.open(str(_LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{os.getpid()} {what}\n".encode("utf-8", "backslashreplace"))
    finally:
        os.close(descriptor)


def _caller() -> str:
    """The file of who called what was noted."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame.f_back if frame else None
    return frame.f_code.co_filename if frame else ""


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event == "pickle.find_class":
        note(f"{event} {arguments!r}")
    elif event in ("marshal.loads", "marshal.load"):
        if not _caller().startswith("<frozen importlib"):
            note(f"{event} from {_caller()}")
    elif event == "import":
        if arguments[0] == "torch":
            note("imports torch")
        _watch_torch()


def _watch_torch() -> None:
    """Notes every use of torch's loader, which unpickles by a class of its own, once torch is there."""
    torch = sys.modules.get("torch")
    if hasattr(torch, "load") and "torch" not in _WATCHED:
        _WATCHED.add("torch")
        setattr(torch, "load", _noting("torch.load", getattr(torch, "load")))  # noqa: B009, B010 - no types here
        note("watches torch.load")


class _Unpickler(pickle.Unpickler):
    """Notes that it was made: a pickle of plain values raises no event."""

    def __init__(self, *arguments, **options):
        note(f"pickle.Unpickler from {_caller()}")
        super().__init__(*arguments, **options)


def _noting(name: str, function):
    def noted(*arguments, **options):
        note(f"{name} from {_caller()}")
        return function(*arguments, **options)

    return noted


if _LOG:
    note(f"starts {sys.orig_argv[1:4]!r}")
    pickle.Unpickler = _Unpickler
    pickle.load, pickle.loads = _noting("pickle.load", pickle.load), _noting("pickle.loads", pickle.loads)
    sys.addaudithook(_hook)
