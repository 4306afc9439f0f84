"""A user's function named in a setting: `module:function` or `file.py:function`."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

from muster.errors import ConfigError
from muster.nearest import did_you_mean

FORMS = "`module:function` or `file.py:function`"


def load_callable(spec: str) -> Callable[..., object]:
    """The function that the text names; a dot goes on into what the module holds (`file.py:Grader.score`)."""
    found = load_object(spec)
    if isinstance(found, type):
        raise ConfigError(f"{spec!r} is a class. Name a function, or an object made from the class.")
    if not callable(found):
        raise ConfigError(f"{spec!r} is {type(found).__name__}, not a function.")
    return found


def load_object(spec: str) -> object:
    """What the text names, whatever it is."""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{spec!r} names no function. Write {FORMS}.")
    module = _from_file(spec, place) if place.endswith(".py") else _from_module(spec, place)
    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [known for known in vars(module) if not known.startswith("_")]
            raise ConfigError(f"{spec!r}: {place} has no {name!r}.{did_you_mean(name, public)}")
        found = getattr(found, part)
    return found


def digest_of(path: Path) -> str:
    """By which a file that was edited since is known."""
    return blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _from_module(spec: str, name: str) -> ModuleType:
    """The imported module; a module of the working directory is found as `python -m` would find it."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the module itself (or a parent of it) being absent is a wrong setting; an import inside it
        # that fails is its author's to see.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{spec!r}: module {name} can't be imported: {error}.") from error
        hint = f" Is it a file? Then write {name}.py." if Path(f"{name}.py").is_file() else ""
        raise ConfigError(f"{spec!r}: there is no module {error.name!r}.{hint}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{spec!r}: module {name} can't be imported: {_said(error)}.") from error


def _from_file(spec: str, place: str) -> ModuleType:
    """The file as a module under a name that no other file has; loaded once while it is unchanged."""
    path = Path(place).expanduser()
    if not path.is_file():
        siblings = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ConfigError(f"{spec!r}: there is no file {place!r}.{did_you_mean(path.name, siblings)}")
    path = path.resolve()
    key = f"{path}\0".encode("utf-8", "surrogateescape") + path.read_bytes()
    name = f"muster_user_{path.stem}_{blake2b(key, digest_size=8).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    source = importlib.util.spec_from_file_location(name, path)
    if source is None or source.loader is None:
        raise ConfigError(f"{spec!r}: {place} can't be read as a Python file.")
    module = importlib.util.module_from_spec(source)
    # Registered before it runs: dataclasses and typing look their module up by name.
    sys.modules[name] = module
    try:
        source.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        # A script that ends the process when it is run is not one to import from.
        del sys.modules[name]
        raise ConfigError(f"{spec!r}: running {place} failed: {_said(error)}.") from error
    return module


def _said(error: Exception | SystemExit) -> str:
    """The exception's type and words."""
    return f"{type(error).__name__}: {error}"
