"""The inspector's server: a page, its own files, and questions about runs that it listed itself."""

import json
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path

import pydantic_core
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from muster.errors import MusterError
from muster.store import to_json
from muster.view.bundling import one_script
from muster.view.examining import ODD
from muster.view.guard import LOOPBACK, Guard
from muster.view.regrades import regrade_list, regrade_view, regraded_step
from muster.view.run_view import RunView
from muster.view.sources import find_sources

PAGE, MAIN = "index.html", "main.js"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Answer = Callable[[Request], Response]


class Runs:
    """The runs at some places; looked for again each time they are listed."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self._views: dict[str, RunView] = {}

    def list(self) -> list[RunView]:
        """Every run there is now."""
        sources = find_sources(self._places)
        self._views = {
            source.id: known
            if (known := self._views.get(source.id)) and known.source == source
            else RunView(source)
            for source in sources
        }
        return list(self._views.values())

    def get(self, run: str) -> RunView | None:
        """The run of this id; None for one that was never listed."""
        if run not in self._views:
            self.list()
        return self._views.get(run)


def page_files() -> dict[str, tuple[bytes, str]]:
    """The page's own files by name, with their types."""
    files: dict[str, tuple[bytes, str]] = {}
    for file in resources.files("muster.view").joinpath("static").iterdir():
        if kind := _TYPES.get(Path(file.name).suffix):
            files[file.name] = (file.read_bytes(), kind)
    return files


def _served_files() -> dict[str, tuple[bytes, str]]:
    """What the page asks for: its modules come as one script."""
    files = page_files()
    modules = {name: body.decode("utf-8") for name, (body, _) in files.items() if name.endswith(".js")}
    rest = {name: file for name, file in files.items() if name not in modules}
    return {**rest, MAIN: (one_script(modules, MAIN).encode("utf-8"), _TYPES[".js"])}


def create_app(places: Sequence[Path], hosts: Iterable[str] = LOOPBACK) -> Guard:
    """The application over the runs at these places, behind its guard."""
    runs, files = Runs(places), _served_files()

    def file(request: Request) -> Response:
        name = request.path_params.get("name", PAGE)
        if name not in files:
            return refused(404, "There is no such file.")
        body, kind = files[name]
        return Response(body, media_type=f"{kind}; charset=utf-8")

    routes = [
        Route("/", file),
        Route("/static/{name}", file),
        Route("/api/runs", lambda _: answer({"runs": [_summary(run) for run in runs.list()]})),
        *(Route(f"/api/runs/{{run}}{path}", _about_run(runs, ask)) for path, ask in QUESTIONS.items()),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={404: _nothing_here}), hosts)


def _summary(run: RunView) -> object:
    """A run's line in the list; of one that can't be read, its name and why."""
    try:
        return run.summary()
    except (MusterError, OSError, *ODD) as error:
        return run.unreadable(f"{type(error).__name__}: {error}")


def _info(run: RunView, request: Request) -> object:
    return run.info()


def _curves(run: RunView, request: Request) -> object:
    return run.curves(_whole(request, "from"), _whole(request, "generation", -1))


def _findings(run: RunView, request: Request) -> object:
    return run.findings()


def _groups(run: RunView, request: Request) -> object:
    text = request.query_params.get("text", "")
    return run.groups(request.path_params["step"], held_out=_is_held_out(request), text=text)


def _group(run: RunView, request: Request) -> object:
    place = request.path_params
    return run.group(place["step"], place["group"], held_out=_is_held_out(request))


def _tokens(run: RunView, request: Request) -> object:
    place = request.path_params
    return run.tokens(place["step"], place["row"], held_out=_is_held_out(request))


def _regraded(run: RunView, request: Request) -> object:
    place = request.path_params
    return regraded_step(run.source, place["regrade"], place["step"])


QUESTIONS: dict[str, Callable[[RunView, Request], object]] = {
    "": _info,
    "/curves": _curves,
    "/findings": _findings,
    "/steps/{step:int}": _groups,
    "/steps/{step:int}/groups/{group:int}": _group,
    "/steps/{step:int}/rollouts/{row:int}": _tokens,
    "/regrades": lambda run, _: regrade_list(run.source),
    "/regrades/{regrade}": lambda run, request: regrade_view(run.source, request.path_params["regrade"]),
    "/regrades/{regrade}/steps/{step:int}": _regraded,
}
"""By path below a run, what it asks."""


def _about_run(runs: Runs, ask: Callable[[RunView, Request], object]) -> Answer:
    """An answer about a listed run; what can't be read is said, with its reason."""

    def respond(request: Request) -> Response:
        run = runs.get(request.path_params["run"])
        if run is None:
            return refused(
                404, "No run of this id is listed. It may have been moved; look at the list again."
            )
        try:
            return answer(ask(run, request))
        except MusterError as error:
            return refused(404, str(error))
        except (OSError, *ODD) as error:
            # A run folder is foreign data: whatever is wrong with it is shown, and the page goes on.
            return refused(500, f"This can't be read: {type(error).__name__}: {error}")

    return respond


def _is_held_out(request: Request) -> bool:
    return request.query_params.get("held_out") == "1"


def _whole(request: Request, name: str, default: int = 0) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else default


def answer(value: object) -> Response:
    """The value as strict JSON in plain ASCII."""
    return Response(packed(value), media_type="application/json")


def packed(value: object) -> str:
    """Strict JSON; numbers that it has no way to say become null."""
    try:
        # Ten times as fast as Python's own, which a long run's curves show. It leaves letters as they are.
        text = pydantic_core.to_json(value, inf_nan_mode="null").decode()
        return text if text.isascii() else json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):
        return to_json(value)


def refused(status: int, why: str) -> Response:
    """Why there is no answer, in a form that the page shows."""
    return Response(packed({"error": why}), status_code=status, media_type="application/json")


def _nothing_here(request: Request, error: Exception) -> Response:
    return PlainTextResponse("There is nothing here.", status_code=404)
