"""The trained model written: an adapter folder, full weights, or a GGUF file; published once it is proven."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from muster.adapters import carried_over
from muster.errors import CheckpointError
from muster.export.card import Form
from muster.export.gguf import Gguf, as_stored, refuse_unfit, special_of, tokens_of, write_gguf
from muster.export.held import NUM_TOKENS, Held, Reading, ask, fingerprint_of_tokens
from muster.export.process import Reader, read_fresh
from muster.export.proof import Proof, divergence, prove, start_of
from muster.files import need_room, staged, staged_file, write_atomic, write_by
from muster.policy import Policy
from muster.pretrained import load_model, stop_ids
from muster.quiet import quiet

TOLERANCE = 1e-3
"""Nats by which logprobs of the read-back model may differ: merging an adapter rounds."""

CARD = "README.md"


def form_of(policy: Policy, *, merge: bool = False, gguf: Gguf | None = None) -> Form:
    """What an export of the policy is: an adapter, or full weights."""
    return "adapter" if isinstance(policy.model, PeftModel) and not merge and gguf is None else "weights"


def export_model(
    policy: Policy,
    target: Path,
    *,
    card: str,
    probes: Sequence[tuple[int, ...]],
    base_path: str,
    merge: bool = False,
    gguf: Gguf | None = None,
    read_back: Reader = read_fresh,
) -> Proof:
    """Writes the policy to a folder, or with `gguf` to a file, that appears only once it was proven.

    An adapter is written as peft writes it, or merged into full weights: with `merge`, and always in a
    GGUF. A fresh process reads back what was written; its tensors, adapter scale, tokenizer, chat template
    and stop tokens must be equal, and its logprobs on the probes within a tolerance of the policy's.
    Raises CheckpointError with all that differs, and leaves what was at `target` before.

    An adapter that was trained on a quantised base is written for the full one, and merged into that. The
    policy to be equal to is then the adapter on the full base, and the proof says how far that is from the
    one that was trained.
    """
    held = Held.of(probes, policy.tokenizer)
    trained, policy = policy, on_full_base(policy, base_path)
    model = policy.model
    if isinstance(model, PeftModel) and form_of(policy, merge=merge, gguf=gguf) == "weights":
        model = _merged(model)
    expected = _expected(policy, model, held, gguf)
    start = start_of(policy, base_path, held)
    tolerance = TOLERANCE if gguf is None else gguf.tolerance
    with (staged if gguf is None else staged_file)(target) as staging:
        if gguf is None:
            _write(model, policy, staging)
            write_atomic(staging / CARD, card.encode())
        else:
            _write_gguf(model, policy, staging, gguf)
        proof = prove(expected, read_back(staging, held), start, tolerance=tolerance)
        if policy is trained:
            return proof
        return replace(proof, from_quantized=divergence(trained, expected, held))


def on_full_base(policy: Policy, base_path: str) -> Policy:
    """The policy; where its base is quantised, its adapter on that base as it was before."""
    if policy.quantized is None:
        return policy
    assert isinstance(policy.model, PeftModel)
    # Not on a GPU: what was trained in 4 bits need not fit there in 32.
    base = load_model(base_path, dtype=torch.float32)
    return Policy(
        carried_over(policy.model, base), policy.tokenizer, max_tokens=NUM_TOKENS, pack_prefixes=False
    )


def _write(model: PreTrainedModel | PeftModel, policy: Policy, staging: Path) -> None:
    """Lets the libraries write, each in the formats that it reads again.

    Beside an adapter, too, lies the generation config: the tokens that end a completion are part of it.
    """
    needed = sum(param.nbytes for param in _written(model))
    need_room(staging, needed)
    parts = (model, policy.tokenizer, policy.base.generation_config or GenerationConfig())
    with quiet():
        for part in parts:
            write_by(cast(Callable[[Path], object], part.save_pretrained), staging, needed)


def _written(model: PreTrainedModel | PeftModel) -> list[nn.Parameter]:
    """The parameters that go to disk: of an adapter, those that are trained."""
    is_adapter = isinstance(model, PeftModel)
    return [param for param in model.parameters() if param.requires_grad or not is_adapter]


def _write_gguf(model: PreTrainedModel | PeftModel, policy: Policy, path: Path, gguf: Gguf) -> None:
    stops = stop_ids(policy.base, policy.tokenizer)
    tokenizer = policy.tokenizer
    assert isinstance(model, PreTrainedModel)
    refuse_unfit(model, tokenizer, stops)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    needed = sum(param.numel() for param in model.parameters()) * gguf.itemsize
    need_room(path, needed)
    write_by(partial(write_gguf, model, tokenizer, stops, gguf), path, needed)


def _expected(policy: Policy, model: PreTrainedModel | PeftModel, held: Held, gguf: Gguf | None) -> Reading:
    """What has to be read back: the policy's answer, with the tensors that were to be written."""
    trained = ask(policy.model, policy.tokenizer, held)
    if model is policy.model and gguf is None:
        return trained
    if gguf is not None and isinstance(model, PreTrainedModel):
        model = as_stored(model if model is not policy.model else copy.deepcopy(model), gguf)
    written = ask(model, policy.tokenizer, replace(held, prompts=())).said
    if gguf is not None:
        tokens = tokens_of(policy.tokenizer, policy.base.config.vocab_size)
        vocabulary = fingerprint_of_tokens({token: number for number, token in enumerate(tokens)})
        written = replace(written, special=special_of(policy.tokenizer), vocabulary=vocabulary)
    return replace(trained, said=written)


def _merged(adapted: PeftModel) -> PreTrainedModel:
    """A copy of the model with its adapter folded in; the model itself keeps its bits."""
    try:
        merged = copy.deepcopy(adapted).merge_and_unload(safe_merge=True)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"the adapter can't be merged into its model: {error}") from error
    left = [name for name, _ in merged.named_parameters() if "lora_" in name or ".base_layer." in name]
    if not isinstance(merged, PreTrainedModel) or left:
        raise CheckpointError(f"merging left parts of the adapter behind: {left[:3]}. Export the adapter.")
    return merged.eval()
