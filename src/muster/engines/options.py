"""The options of each kind of engine: the table `[engine.options]`, typed; free of torch.

An option that an engine doesn't have is refused, with the nearest one that it has.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from annotated_types import Ge, Gt, Lt, MinLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from muster.errors import ConfigError
from muster.nearest import did_you_mean

DEFAULT_URL = "http://127.0.0.1:8000"


def _checked_url(url: str) -> str:
    """The address without a slash at its end."""
    if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", url):
        raise ValueError("an address such as http://127.0.0.1:8000, without a password or a query")
    return url.rstrip("/")


def _as_tuple(value: object) -> object:
    """One address alone is a list of one."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _each_once(urls: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(urls)) < len(urls):
        raise ValueError("each address once")
    return urls


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class LocalOptions(_Options):
    """Of the engine that samples on this machine: in the run's process or, ahead, in one of its own."""

    max_rows: Annotated[int, Ge(1)] = 128
    """Rollouts that are sampled side by side."""
    products: Literal["measured", "linear", "turned", "laid_out"] = "measured"
    """How linear layers compute while sampling on a CPU."""
    threads: Annotated[int, Ge(1)] | None = None
    """Threads of the process that samples ahead, taken from the run's; without it, half of them."""


class VllmOptions(_Options):
    """Of the engine that samples on vLLM servers."""

    urls: Annotated[
        tuple[Annotated[str, AfterValidator(_checked_url)], ...],
        BeforeValidator(_as_tuple),
        MinLen(1),
        AfterValidator(_each_once),
    ] = (DEFAULT_URL,)
    """Addresses of the servers; each serves the run's model."""
    share: Annotated[str, MinLen(1)] | None = None
    """Folder that trainer and servers both see, by the same path: weights go through it. Without it a
    temporary folder, which servers on this machine see."""
    key_env: Annotated[str, MinLen(1)] | None = None
    """Environment variable that holds the servers' API key."""
    max_requests: Annotated[int, Ge(1)] = 32
    """Requests that a server is given at once; each is for one prompt."""
    timeout_s: Annotated[float, Gt(0)] = 600.0
    """Longest wait for one answer, or for one load of weights."""
    patience_s: Annotated[float, Ge(0)] = 120.0
    """How long a run waits while no server answers, before it is saved and stops."""


class InsideOptions(_Options):
    """Of vLLM in the process of the run."""

    memory_share: Annotated[float, Gt(0), Lt(1)] | None = None
    """Share of the GPU's memory that vLLM takes, its weights included; without it, 0.3. On a CPU, the share
    of the machine's that keys and values take; without it, 1 GiB."""
    sleep: bool = True
    """On a GPU, vLLM gives its memory back while the trainer computes."""
    max_rows: Annotated[int, Ge(1)] = 128
    """Rollouts that are sampled side by side."""
    enforce_eager: bool = False
    """On a GPU, compute without CUDA graphs: a quicker start and less memory, slower sampling."""


Kind = TypeVar("Kind", LocalOptions, VllmOptions, InsideOptions)


def read_options(kind: type[Kind], table: Mapping[str, object]) -> Kind:
    """The table as options of that kind; ConfigError names each that doesn't fit, and what is allowed."""
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        known = list(kind.model_fields)
        lines = []
        for problem in error.errors():
            name = str(problem["loc"][0])
            if problem["type"] == "extra_forbidden":
                lines.append(
                    f"engine.options.{name} is not an option of this engine.{did_you_mean(name, known)} "
                    f"It has: {', '.join(known)}."
                )
            else:
                allowed = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
                lines.append(f"engine.options.{name} is {table.get(name)!r}; allowed: {allowed}.")
        raise ConfigError("\n".join(lines)) from None
