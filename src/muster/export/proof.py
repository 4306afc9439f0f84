"""Whether what was read back is what was trained, and not what the training started from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor

from muster import pretrained
from muster.errors import CheckpointError, MusterError
from muster.export.held import Held, Reading, Said, next_logprobs, trained_tensors
from muster.policy import Policy

NUM_NAMED = 3
"""How many differing tensors a message names."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the comparison found."""

    difference: float
    """Largest difference in nats between the logprobs read back and those of the trained policy."""
    moved: float | None
    """The same between the trained policy and the model that training started from; None if that is gone."""
    is_untrained: bool
    """The weights are those of the start: at a learning rate of 0, or where no step had a signal."""
    from_quantized: float | None = None
    """Mean KL divergence, in nats a token, of the policy that was trained on a quantised base from what was
    written, the adapter on the full base; None where nothing was quantised."""

    def __str__(self) -> str:
        """In words, for a person."""
        whose = "the policy's" if self.is_untrained else "the trained policy's"
        if self.from_quantized is not None:
            whose = "those of the adapter on the full base"
        text = f"logprobs differ by at most {self.difference:.2g} nats from {whose}"
        if self.is_untrained:
            text += ", whose weights are still those of the base model: nothing was learned"
        elif self.moved is not None:
            text += f", which are up to {self.moved:.2g} from the base model's"
        if self.from_quantized is not None:
            text += (
                ". The policy in training, on the quantised base, is another: its KL divergence from this "
                f"one is {self.from_quantized:.2g} nats a token"
            )
        return text


@dataclass(frozen=True)
class Start:
    """The model that training started from, as far as a proof needs it."""

    logprobs: Sequence[Tensor]
    is_untrained: bool
    """The policy's weights are still those."""


def start_of(policy: Policy, base_path: str, held: Held) -> Start | None:
    """The base model's answer: an adapter's with the adapter off, else that of the model read anew.

    None where full weights were trained on a model that is not there any more.
    """
    if isinstance(policy.model, PeftModel):
        with policy.model.disable_adapter():
            logprobs = next_logprobs(policy.model, held.prompts)
        # The product of an adapter's matrices is zero as long as the second one is.
        seconds = [tensor for name, tensor in trained_tensors(policy.model) if "lora_B" in name]
        return Start(logprobs, bool(seconds) and not any(tensor.any() for tensor in seconds))
    try:
        base = pretrained.load_model(base_path, dtype=torch.float32)
    except MusterError:
        return None
    theirs = dict(trained_tensors(base))
    is_untrained = all(
        name in theirs and torch.equal(tensor.detach().cpu(), theirs[name].detach())
        for name, tensor in trained_tensors(policy.base)
    )
    return Start(next_logprobs(base, held.prompts), is_untrained)


def divergence(trained: Policy, written: Reading, held: Held) -> float:
    """Mean KL divergence of the trained policy from what was written, in nats a token of the held prompts."""
    pairs = zip(next_logprobs(trained.model, held.prompts), written.logprobs, strict=True)
    kls = [(ours.exp() * (ours - theirs)).sum(-1) for ours, theirs in pairs]
    return float(torch.cat(kls).mean()) if kls else 0.0


def prove(expected: Reading, read: Reading, start: Start | None, *, tolerance: float) -> Proof:
    """The figures where what was `read` is what was `expected`, its logprobs within the tolerance.

    Raises CheckpointError with everything that differs. Where training moved the logprobs by more than
    rounding, those read back must also be nearer to the trained policy than to the start.
    """
    difference = _largest(expected.logprobs, read.logprobs)
    moved = None if start is None else _largest(expected.logprobs, start.logprobs)
    wrong = list(_differences(expected.said, read.said))
    if not difference <= tolerance:
        wrong.append(
            f"its logprobs differ by {difference:.3g} nats from the trained policy's (at most {tolerance:g} "
            "is rounding)"
        )
    if start is not None and moved is not None and moved > tolerance:
        from_start = _largest(read.logprobs, start.logprobs)
        if not from_start >= moved / 2:
            wrong.append(
                f"its logprobs are {from_start:.3g} nats from the base model's, and the trained policy's are "
                f"{moved:.3g}: what was written is the model before training"
            )
    if wrong:
        raise CheckpointError(
            f"what was written is not the trained model: {'; '.join(wrong)}. Nothing was published, and the "
            "checkpoints are whole."
        )
    return Proof(difference=difference, moved=moved, is_untrained=start is not None and start.is_untrained)


def _largest(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """In nats; NaN where one of them is, infinite where they don't line up."""
    if [tensor.shape for tensor in ours] != [tensor.shape for tensor in theirs]:
        return float("inf")
    differences = [(mine - other).abs().max() for mine, other in zip(ours, theirs, strict=True)]
    return float(torch.stack([torch.zeros(()), *differences]).max())


def _differences(written: Said, read: Said) -> Iterator[str]:
    yield from _tensor_differences(written.tensors, read.tensors)
    if written.scales != read.scales:
        ours, theirs = (sorted(set(said.scales.values())) for said in (written, read))
        yield f"the adapter is scaled by {theirs} instead of {ours} (lora_alpha, use_rslora and r set it)"
    if written.vocabulary != read.vocabulary:
        yield "the tokenizer has other tokens"
    if odd := [n for n, ids in enumerate(written.texts) if n >= len(read.texts) or ids != read.texts[n]]:
        yield f"the tokenizer cuts {len(odd)} of {len(written.texts)} texts in another way"
    if written.template != read.template:
        what = "is missing" if read.template is None else "is another one"
        yield f"the chat template {what}"
    elif written.conversation != read.conversation:
        yield "a conversation becomes other tokens"
    for name, number in written.special.items():
        if number != read.special.get(name):
            yield f"the tokenizer's {name} token is {read.special.get(name)} instead of {number}"
    if list(written.stop_ids) != list(read.stop_ids):
        yield f"completions end at tokens {list(read.stop_ids)} instead of {list(written.stop_ids)}"


def _tensor_differences(written: Mapping[str, str], read: Mapping[str, str]) -> Iterator[str]:
    absent, surplus = sorted(written.keys() - read.keys()), sorted(read.keys() - written.keys())
    other = sorted(name for name in written.keys() & read.keys() if written[name] != read[name])
    for names, what in ((absent, "missing"), (surplus, "too many"), (other, "of other values")):
        if names:
            shown = ", ".join(names[:NUM_NAMED]) + (", ..." if len(names) > NUM_NAMED else "")
            yield f"{len(names)} of {len(written)} tensors are {what} ({shown})"
