"""What runs in the fresh process: reads a folder or a file back as anyone would, and answers what is asked.

It is given the export and the questions, and nothing of the process that wrote it.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from peft import PeftModel
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from muster import pretrained
from muster.converted import named_ends, read_gguf
from muster.errors import CheckpointError
from muster.export.held import Held, Reading, ask
from muster.quiet import quiet


class Loaded(NamedTuple):
    """What was read back."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    stops: tuple[int, ...] | None
    """Where the export names them beside the model."""


def read(source: Path, held: Held) -> Reading:
    """The answer of what lies in the folder, or in the GGUF file."""
    torch.set_num_threads(held.threads)
    loaded = _load(source)
    return ask(loaded.model.eval(), loaded.tokenizer, held, stops=loaded.stops)


def _load(source: Path) -> Loaded:
    if source.is_file():
        model, tokenizer = read_gguf(source)
        return Loaded(model, tokenizer, named_ends(source))
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(str(source), trust_remote_code=False)
    adapter = source / "adapter_config.json"
    if not adapter.is_file():
        return Loaded(pretrained.load_model(str(source), dtype=torch.float32), tokenizer, None)
    base = pretrained.load_model(_base_of(adapter), dtype=torch.float32)
    with quiet():
        base.generation_config = GenerationConfig.from_pretrained(str(source))
        adapted = PeftModel.from_pretrained(base, str(source))
    return Loaded(_peft(adapted), tokenizer, None)


def _base_of(adapter: Path) -> str:
    base = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise CheckpointError("its adapter_config.json doesn't name the model that the adapter is for")
    return base


def _peft(model: object) -> PeftModel:
    if not isinstance(model, PeftModel):
        raise CheckpointError(f"peft read a {type(model).__name__} from it")
    return model


def answer(request: Mapping[str, object]) -> None:
    """Reads what the request names, and leaves the answer in its scratch folder."""
    source, scratch, held = (request[key] for key in ("source", "scratch", "held"))
    os.chdir(str(request["directory"]))
    if not isinstance(held, dict):
        raise TypeError("a request holds what is asked")
    read(Path(str(source)), Held.from_plain(held)).save(Path(str(scratch)))


def main() -> None:
    """Answers the one request on standard input; ends with the reason on standard error where it can't."""
    try:
        answer(json.load(sys.stdin))
    except Exception as error:
        sys.exit(reason(error))


def serve(address: str) -> None:
    """Answers requests at a Unix socket, one after the other, until standard input closes."""
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        while True:
            connection, _ = listening.accept()
            # Whoever asked may be gone: nobody waits for the answer then.
            with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
                connection.sendall(_answered(stream.readline()).encode() + b"\n")


def _answered(request: bytes) -> str:
    """Nothing where the request was answered, else the reason."""
    try:
        answer(json.loads(request))
    except Exception as error:
        return reason(error)
    return ""


def _leave_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def reason(error: Exception) -> str:
    """The error in one line."""
    text = " ".join(str(error).split()) or "no reason given"
    return text if isinstance(error, CheckpointError) else f"{type(error).__name__}: {text}"
