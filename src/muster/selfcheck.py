"""What must hold on the real model before a run: measured on a few rollouts, stopped at where it doesn't."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from muster.batch import Batch, Row, collate
from muster.engines.base import Engine, Sampling
from muster.errors import ModelError
from muster.gather import Item
from muster.policy import Policy, Weights
from muster.records import Prompt, StreamKey

NUM_COMPLETIONS, NUM_TOKENS = 2, 12

SUSPECTS = {
    "packed_against_plain": "its attention does something that shared prompts don't reproduce",
    "sampler_against_trainer": "the engine's weights, settings or cache are not the trainer's",
    "head_against_model": "it does something to its logits that Muster doesn't know",
    "padding": "its logprobs depend on padding",
    "kl_to_reference": "the reference is not the policy at start",
}
"""What a difference points at, by the name of its number."""
SAMPLER = "sampler_against_trainer"
BEFORE_TEMPERATURE = (
    "it says the logprobs before temperature, top-k, top-p and min-p. vLLM gives those after them "
    "when it is started with --logprobs-mode processed_logprobs, as `muster engine serve` does"
)
"""What it is where the model's plain logprobs explain the difference."""


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """Largest differences found, in nats except for the logits; all are 0 in exact arithmetic."""

    packed_against_plain: float | None
    """Logprobs with shared prompts against plain padded rows; None where prompts aren't shared."""
    sampler_against_trainer: float | None
    """What the engine said against what the trainer says of the same tokens; None where nothing samples."""
    head_against_model: float
    """Our logits against those of the model's own forward, in logits."""
    padding: float
    """Plain logprobs of a row alone against the same row padded to a longer one."""
    kl_to_reference: float | None
    """Mean k1 against the reference before any update; None without one."""

    def numbers(self) -> dict[str, float | None]:
        """By name, for logs."""
        return asdict(self)


def self_check(
    policy: Policy,
    engine: Engine,
    items: Sequence[Item],
    *,
    sampling: Sampling,
    reference: Weights | None,
    tolerance: float,
    sampled_by: Weights | None = None,
    engine_tolerance: float | None = None,
) -> SelfCheck:
    """Samples a few short completions and compares every path that must agree.

    `sampled_by` names the weights that the engine holds where it lags behind the policy, and
    `engine_tolerance` what is allowed of one that computes elsewhere. Raises ModelError with the numbers
    where a difference is above the tolerance.
    """
    batch = _sample(engine, items, sampling)
    with policy.using(sampled_by):
        check = _compared(policy, batch, sampling.temperature)
        kl = None if reference is None else _distance(policy, batch, sampling.temperature, reference)
    of_engine = tolerance if engine_tolerance is None else engine_tolerance

    def suspects() -> str:
        is_before = _is_before_temperature(policy, batch, sampling, sampled_by, of_engine)
        return f"{SUSPECTS[SAMPLER]}: {BEFORE_TEMPERATURE}" if is_before else SUSPECTS[SAMPLER]

    check = replace(check, kl_to_reference=kl)
    # Who holds a part of the weights computes nothing that the other ranks don't.
    looks = {SAMPLER: suspects} if policy.held.rows is None else {}
    return _refuse_above(tolerance, check, policy, {SAMPLER: of_engine}, looks)


def check_given(policy: Policy, batch: Batch, *, temperature: float, tolerance: float) -> SelfCheck:
    """The same where nothing samples: every path that scores must agree on these rows."""
    check = _compared(policy, batch, temperature)
    return _refuse_above(tolerance, replace(check, sampler_against_trainer=None), policy)


def _compared(policy: Policy, batch: Batch, temperature: float) -> SelfCheck:
    """The differences of the policy as it is, the reference's not among them."""
    with torch.no_grad():
        logprobs = policy.score(batch, temperature=temperature).logprobs.cpu()
        plain = policy.score(batch, temperature=temperature, plain=True).logprobs.cpu()
        alone = policy.score(batch.select([0]), temperature=temperature, plain=True).logprobs.cpu()
    return SelfCheck(
        packed_against_plain=_largest(logprobs - plain) if policy.packs else None,
        sampler_against_trainer=_largest(logprobs - batch.sampler_logprobs),
        head_against_model=_head_difference(policy, batch.prompts[0]),
        padding=_largest(plain[:1] - alone),
        kl_to_reference=None,
    )


def _distance(policy: Policy, batch: Batch, temperature: float, reference: Weights) -> float:
    """|Mean k1| of the policy as it is against the reference."""
    with torch.no_grad():
        ours = policy.score(batch, temperature=temperature).logprobs
        with policy.using(reference):
            theirs = policy.score(batch, temperature=temperature).logprobs
    return float((ours - theirs).sum().abs() / batch.mask.sum())


def _refuse_above(
    tolerance: float,
    check: SelfCheck,
    policy: Policy,
    allowed: Mapping[str, float] | None = None,
    causes: Mapping[str, Callable[[], str]] | None = None,
) -> SelfCheck:
    """The check, where no difference in it is above the tolerance, or above its own that is allowed.

    `causes` look closer at what is above; else the usual suspects are named.
    """
    own, looks = allowed or {}, causes or {}
    wrong = {
        name: value
        for name, value in check.numbers().items()
        if value is not None and not value <= own.get(name, tolerance)
    }
    if wrong:
        suspects = {name: looks[name]() if name in looks else SUSPECTS[name] for name in wrong}
        listed = "; ".join(
            f"{name} is {value:.3g}: {suspects[name]} (allowed: {own.get(name, tolerance):g})"
            for name, value in wrong.items()
        )
        raise ModelError(
            f"the start-up check found differences that are too large on this "
            f"{policy.base.config.model_type} model, and training on them would be wrong. {listed}."
        )
    return check


def _sample(engine: Engine, items: Sequence[Item], sampling: Sampling) -> Batch:
    """A few short completions of uneven prompts, on streams that no step uses."""
    chosen = [min(items, key=lambda item: len(item.ids)), max(items, key=lambda item: len(item.ids))]
    prompts = [Prompt(ids=item.ids, key=StreamKey(0, 0, slot, 1)) for slot, item in enumerate(chosen)]
    few = Sampling(
        group_size=NUM_COMPLETIONS,
        max_tokens=min(NUM_TOKENS, sampling.max_tokens),
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        ignore_eos=True,
    )
    groups = engine.generate(prompts, few)
    rows = [Row(number, completion, 0.0) for number, group in enumerate(groups) for completion in group]
    return collate([prompt.ids for prompt in prompts], rows)


def _is_before_temperature(
    policy: Policy, batch: Batch, sampling: Sampling, sampled_by: Weights | None, tolerance: float
) -> bool:
    """The engine's logprobs are the model's own, without any setting of sampling."""
    if sampling.temperature == 1 and batch.kept is None:
        return False
    with torch.no_grad(), policy.using(sampled_by):
        plain = policy.score(replace(batch, kept=None), temperature=1.0).logprobs.cpu()
    return _largest(plain - batch.sampler_logprobs) <= tolerance


def _head_difference(policy: Policy, prompt: tuple[int, ...]) -> float:
    ids = torch.tensor([prompt], device=policy.device)
    with torch.no_grad(), policy.precision(), policy.whole():
        whole = policy.base(input_ids=ids, use_cache=False).logits
        ours = policy.logits(policy.backbone(input_ids=ids, use_cache=False).last_hidden_state)
    return _largest(whole.to(ours.dtype) - ours)


def _largest(differences: torch.Tensor) -> float:
    return float(differences.abs().max()) if differences.numel() else 0.0
