"""The process that samples ahead of a run: `python -m muster.sampling_process`; nobody calls it by hand.

It loads the run's model as the run did, and samples by the weights that it is told of. It ends with the run,
however that ends, and takes away what the run laid ready for it.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import torch
from safetensors.torch import load_file

from muster import pretrained
from muster.assemble import load_policy
from muster.checkpoint import put_weights
from muster.config import ModelConfig
from muster.engines.local import LocalEngine
from muster.engines.plain import as_prompt, as_sampling, plain_groups
from muster.engines.products import restored
from muster.files import discard
from muster.policy import Policy
from muster.rewards.pool.trees import volunteer_for_the_memory_killer

PROGRESS_S = 0.2
"""Between two words of progress."""

Tell = Callable[..., None]
"""Sends its keywords as one line of JSON."""


def main() -> None:
    """Carries out orders until there are no more."""
    # Where memory runs out the run should live: it can be saved.
    volunteer_for_the_memory_killer()
    answers = os.fdopen(os.dup(1), "wb")
    # What a library prints is not an answer.
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


def serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    """Answers every order with a line; an order that fails is answered with the reason."""
    lines: SimpleQueue[bytes | None] = SimpleQueue()
    is_over = threading.Event()

    def listen() -> None:
        for line in orders:
            lines.put(line)
        is_over.set()
        lines.put(None)

    def tell(**said: object) -> None:
        answers.write(json.dumps(said).encode() + b"\n")
        answers.flush()

    # On a thread of its own, so that the end of the run is noticed while something is being sampled.
    threading.Thread(target=listen, daemon=True).start()
    sampler: Sampler | None = None
    folder = ""
    while (line := lines.get()) is not None:
        order = json.loads(line)
        folder = order.get("folder", folder)
        try:
            sampler, said = _carried_out(sampler, order, tell, is_over)
            tell(**said)
        except OSError:
            break
    if folder:
        discard(Path(folder))


def _carried_out(
    sampler: "Sampler | None", order: Mapping[str, Any], tell: Tell, is_over: threading.Event
) -> "tuple[Sampler | None, Mapping[str, object]]":
    """What samples, which the first order makes, and the answer to the order."""
    try:
        if sampler is not None:
            return sampler, sampler.carry_out(order)
        sampler = Sampler(order, tell, is_over)
        return sampler, sampler.described()
    except RunOverError:
        raise
    except Exception as error:
        return sampler, {"failed": f"{type(error).__name__}: {error}"}


class RunOverError(OSError):
    """Nobody waits for what is being sampled."""


class Sampler:
    """The model and the engine on it."""

    def __init__(self, begin: Mapping[str, Any], tell: Tell, is_over: threading.Event) -> None:
        torch.set_num_threads(begin["threads"])
        self._tell, self._told_at, self._is_over = tell, 0.0, is_over
        self._held: str | None = None
        """Path of the weights that were taken last."""
        self.policy = _load(begin)
        self.engine = LocalEngine(self.policy, max_rows=begin["max_rows"], progress=self._progress)
        self.engine.tune(begin["num_rows"], begin["products"])

    def described(self) -> dict[str, object]:
        """How it computes, and what on."""
        return {
            "products": self.engine.choice._asdict(),
            "threads": torch.get_num_threads(),
            "quantized": self.policy.quantized,
        }

    def carry_out(self, order: Mapping[str, Any]) -> dict[str, object]:
        """The answer to an order."""
        if order["do"] == "compute":
            torch.set_num_threads(order["threads"])
            self.engine.choice = restored(order["products"])
            return self.described()
        self._take(order["weights"], order["version"])
        prompts = [as_prompt(prompt) for prompt in order["prompts"]]
        groups = self.engine.generate(prompts, as_sampling(order["sampling"]))
        return {"completions": plain_groups(groups)}

    def _take(self, path: str, version: int) -> None:
        """Copies weights into the model, unless it has them."""
        if path == self._held:
            return
        tensors = load_file(path, device=str(self.policy.device))
        put_weights(dict(self.policy.trainable()), tensors, Path(path))
        self.engine.load_weights(self.policy.trainable(), version)
        self._held = path

    def _progress(self, done: int, total: int) -> None:
        if self._is_over.is_set():
            raise RunOverError
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_S:
            self._told_at = now
            self._tell(progress=[done, total])


def _load(begin: Mapping[str, Any]) -> Policy:
    """The run's policy at its start."""
    # Nothing is trained here, so nothing is worth computing again.
    settings = ModelConfig.model_validate_json(begin["model"])
    settings = settings.model_copy(update={"gradient_checkpointing": False})
    tokenizer = pretrained.load_tokenizer(settings.path)
    return load_policy(settings, tokenizer, seed=begin["seed"], say=lambda _: None)


if __name__ == "__main__":
    main()
