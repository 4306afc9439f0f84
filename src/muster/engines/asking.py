"""What vLLM is asked for, on servers and in this process: the same settings and seeds, the same refusals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from muster.engines.base import Sampling, refuse_empty
from muster.engines.sampler import seed_of
from muster.errors import ConfigError
from muster.records import Completion, Prompt

Groups = list[list[Completion]]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Some completions of one prompt: a group may be cut over several servers."""

    prompt: Prompt
    place: int
    """Of the prompt in the call."""
    start: int
    """Index in the group of the first completion."""
    count: int


def cut(prompts: Sequence[Prompt], group_size: int, num_servers: int) -> list[Ask]:
    """One request a group, or as many parts of it as it takes to keep every server busy.

    A completion is the same however its group is cut: its seed follows from its index in the group.
    """
    num_parts = min(group_size, -(-num_servers // len(prompts)))
    bounds = [group_size * part // num_parts for part in range(num_parts + 1)]
    return [
        Ask(prompt=prompt, place=place, start=start, count=end - start)
        for place, prompt in enumerate(prompts)
        for start, end in pairwise(bounds)
    ]


def settings_of(ask: Ask, sampling: Sampling) -> dict[str, object]:
    """The sampling parameters for vLLM; each is given, so that no default of its own or of the model's wins.

    `ignore_eos` is always set: what ends a completion is in `stop_token_ids` then, and nothing else does.
    vLLM gives the completion of index i the seed plus i.
    """
    stops = [] if sampling.ignore_eos else sorted(sampling.stop_ids)
    texts = [] if sampling.ignore_eos else list(sampling.stop_strings)
    return {
        "n": ask.count,
        "seed": seed_of(ask.prompt.stream) + ask.start,
        "max_tokens": sampling.max_tokens,
        "min_tokens": 0,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": stops,
        "stop": texts,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "detokenize": bool(texts),
        # Of the sampled token alone or, under top-k, of all that it left: that is how the kept set is known.
        "logprobs": sampling.top_k,
    }


def refuse_unknown_sets(*, top_k: int, top_p: float, min_p: float) -> None:
    """Refuses truncated sampling whose kept sets vLLM doesn't report, and which training needs."""
    if not top_k and (top_p < 1 or min_p > 0):
        raise ConfigError(
            f"sampling.top_p is {top_p} and sampling.min_p {min_p}, and vLLM says what these left to choose "
            "from only among the top-k. Set sampling.top_k too, say 20, or leave both out."
        )


def sampled_by(
    ask_all: Callable[[Sequence[Prompt], Sampling], Groups], prompts: Sequence[Prompt], sampling: Sampling
) -> Groups:
    """`group_size` completions for each prompt, by what asks vLLM; raises where it can't answer."""
    refuse_empty(prompts)
    refuse_unknown_sets(top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p)
    if not prompts:
        return []
    if sampling.temperature > 0:
        return ask_all(prompts, sampling)
    # The likeliest tokens are the same each time, and vLLM gives them once only.
    once = ask_all(prompts, replace(sampling, group_size=1))
    return [group * sampling.group_size for group in once]
