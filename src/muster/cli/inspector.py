"""Starting the inspector, and writing its pages to a file."""

import contextlib
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from muster.cli.targets import RUNS, run_folder
from muster.cli.text import escape_text
from muster.errors import ConfigError
from muster.nearest import did_you_mean
from muster.view.sources import find_sources, kind_of

_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")
_MAX_CONNECTIONS = 64
_LAST_PORT = 65_535


def places_of(targets: Sequence[str]) -> list[Path]:
    """The folders that these names mean; refuses one that is neither a run nor a folder."""
    return [_place(target) for target in targets] or [RUNS]


def _place(target: str) -> Path:
    for folder in (run_folder(target), Path(target), RUNS / target):
        if folder is not None and (kind_of(folder) is not None or folder.is_dir()):
            return folder
    names = sorted(source.name for source in find_sources([RUNS]))
    there = f"Runs in {RUNS}: {', '.join(names)}." if names else f"There are no runs in {RUNS}."
    raise ConfigError(f"{target} is no run and no folder.{did_you_mean(target, names)} {there}")


def serve(places: Sequence[Path], host: str, port: int, steps: str | None) -> None:
    """Answers until Ctrl-C; says where."""
    import uvicorn

    from muster.view.guard import LOOPBACK
    from muster.view.server import create_app

    if steps is not None:
        raise ConfigError(
            "--steps chooses what --export writes. Give --export FILE with it, or leave it out."
        )
    is_own = host in (*LOOPBACK, "::1")
    app = create_app(places, LOOPBACK if is_own else (*LOOPBACK, host))
    listening = _listen(host, port)
    address = f"http://{'127.0.0.1' if is_own else host}:{listening.getsockname()[1]}/"
    looked_at = ", ".join(escape_text(str(place)) for place in places)
    print(f"The inspector of {looked_at} is at {address} (Ctrl-C ends it)", flush=True)
    if not is_own:
        print("Everyone who can reach this address can read these runs.", flush=True)
    settings = uvicorn.Config(app, log_level="warning", limit_concurrency=_MAX_CONNECTIONS, lifespan="off")
    # Ctrl-C is how it ends, and nothing is lost by it.
    with contextlib.suppress(KeyboardInterrupt), listening:
        uvicorn.Server(settings).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """A socket on this address; says what to do where it is taken."""
    if not 0 <= port <= _LAST_PORT:
        raise ConfigError(f"--port is {port}; allowed: 0 to {_LAST_PORT}. Choose another with --port.")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"can't answer on {host}, port {port}: {error}. Choose another with --port, or --port 0."
        ) from error


def export_runs(places: Sequence[Path], file: Path, steps: str | None) -> None:
    """Writes the runs' views to one file; says how large it is."""
    from muster.files import write_atomic
    from muster.view.export import export_page

    if not file.absolute().parent.is_dir():
        raise ConfigError(
            f"--export is {file}, but there is no folder {file.absolute().parent}. Make it first."
        )
    page = export_page(places, None if steps is None else parse_steps(steps))
    write_atomic(file, page.html.encode("utf-8"))
    print(
        f"Wrote {escape_text(str(file))}: {len(page.html) / 1e6:.1f} MB, {page.num_steps} steps with samples"
    )


def parse_steps(text: str) -> list[range]:
    """`1-5,16` as ranges of steps."""
    ranges: list[range] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"--steps is {text!r}, and {part!r} is neither a step nor a range. Write it as 1-5,16."
            )
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            raise ConfigError(
                f"--steps holds {part.strip()}, which ends before it starts. Write it as {last}-{first}."
            )
        ranges.append(range(first, last + 1))
    return ranges
