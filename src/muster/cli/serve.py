"""`muster engine serve`."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.flags import Json, Overrides, about, as_mapping

if TYPE_CHECKING:
    # Only types: `muster --help` does not wait for what stands behind them.
    from muster.serving import Command, Serving


def serve(
    file: Annotated[Path | None, about("The TOML file of the run that the server is for.")] = None,
    /,
    *,
    vllm_python: Annotated[Path, about("The Python of the environment that vLLM is installed in.")],
    model: Annotated[str | None, about("Without a file: the model, a folder or hub id.", "--model")] = None,
    lora_rank: Annotated[int | None, about("Without a file: the rank of the adapter to be trained.")] = None,
    port: Annotated[int, about("Port to answer on.")] = 8000,
    host: Annotated[
        str, about("Address to answer on; who can reach it can replace the model's weights.")
    ] = "127.0.0.1",
    key_env: Annotated[
        str | None, about("Variable that holds the API key that callers have to give.")
    ] = None,
    also: Annotated[
        str, about('More arguments for vLLM, as one text: --also="--tensor-parallel-size 2".')
    ] = "",
    print_only: Annotated[bool, about("Print the command line, and start nothing.")] = False,
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Start a vLLM server that a run with `engine.kind = "vllm"` samples on.

    Sets what the run needs of it: lengths, precision, logprobs after temperature, room for the adapter, calls
    that replace weights. Ends with Ctrl-C, and takes all its processes along.

    **Examples**

    ```text
    muster engine serve run.toml --vllm-python vllm-env/bin/python
    muster engine serve run.toml --vllm-python vllm-env/bin/python --port 8001
    muster engine serve --model smollm2-135m-instruct --vllm-python vllm-env/bin/python --print-only
    ```
    """
    from muster.errors import ConfigError

    if (file is None) == (model is None):
        raise ConfigError("give the run's TOML file, or --model: one of the two.")
    if file is not None and lora_rank is not None:
        raise ConfigError("--lora-rank goes with --model: a file has its own model.lora.rank.")
    serving = _serving(
        file, as_mapping(overrides), model, lora_rank, python=vllm_python, port=port, host=host
    )

    from dataclasses import replace

    from muster.serving import command_of
    from muster.serving import serve as run_server

    serving = replace(serving, key_env=key_env, more=tuple(shlex.split(also)))
    command = command_of(serving, _say)
    if print_only or json:
        _print(command, as_json=json)
        return 0
    return run_server(command, _say)


def _serving(
    file: Path | None,
    settings: dict[str, str],
    model: str | None,
    rank: int | None,
    *,
    python: Path,
    port: int,
    host: str,
) -> "Serving":
    from muster.config import load
    from muster.serving import Serving, serving_of

    if file is None:
        return Serving(python=python, model=str(model), rank=rank, port=port, host=host)
    return serving_of(load(file, settings), python=python, port=port, host=host)


def _print(command: "Command", *, as_json: bool) -> None:
    """The command as a shell takes it; a key is named, not shown."""
    from muster.redaction import HIDDEN
    from muster.store import to_json

    environment = {
        name: HIDDEN if name == "VLLM_API_KEY" else value for name, value in command.environment.items()
    }
    if as_json:
        print(to_json({"environment": environment, "arguments": command.arguments, "url": command.url}))
        return
    words = [f"{name}={value}" for name, value in environment.items()]
    print(" ".join([*words, *map(shlex.quote, command.arguments)]))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
