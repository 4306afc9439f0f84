"""transformers' continuous batching: rows join and leave a batch at any token, keys and values lie in pages.

Its own code is in `transformers/generation/continuous_batching`. Without flash attention, so on every CPU,
there is no way to attend to pages: for each layer and token the keys and values of all rows are gathered
into one row, and a dense mask keeps the rows apart.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

PAGE_TOKENS = 16
"""Of a page: a row wastes less than one, and all whole pages of a prompt are shared."""
BATCH_TOKENS = 512
"""Tokens of one forward at most, prompts included; a prompt that doesn't fit is cut."""
SPARE = 1.25
"""Pages beyond what the rows need: below 15% of free ones it takes no new rows."""
ATTENTIONS = ("sdpa", "eager")
"""Those that it takes on a CPU; it has a form of its own of the second one."""


class Setting(NamedTuple):
    """What is chosen among by trying."""

    attention: str
    at_once: int
    """Rows of a batch, at most."""


class Work(NamedTuple):
    """Completions of exact lengths: each prompt is continued by `each` rows of its length."""

    prompts: Sequence[Sequence[int]]
    lengths: Sequence[int]
    each: int
    at_once: int
    """Rows side by side, at most."""

    @property
    def rows(self) -> int:
        """All of them."""
        return len(self.prompts) * self.each

    @property
    def tokens(self) -> int:
        """To be sampled, in all rows."""
        return sum(self.lengths) * self.each

    def cut(self, tokens: int) -> "Work":
        """The same with no more than that many tokens a row."""
        return self._replace(lengths=[min(tokens, length) for length in self.lengths])


class Row(NamedTuple):
    """A completion."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]


def settings_for(work: Work) -> list[Setting]:
    """What is tried: each attention, with as many rows at once as there may be and with a quarter."""
    sizes = dict.fromkeys((work.at_once, max(1, work.at_once // 4)))
    return [Setting(attention, size) for attention in ATTENTIONS for size in sizes]


def num_pages(work: Work) -> int:
    """Pages that hold every row at its longest, and some to spare."""
    longest = max(map(len, work.prompts)) + max(work.lengths)
    return math.ceil(SPARE * work.rows * math.ceil(longest / PAGE_TOKENS))


@contextmanager
def opened(model: PreTrainedModel, work: Work, setting: Setting) -> Generator[Any]:
    """Its manager with its pages laid out; the model's attention is another one meanwhile.

    The end token is none, so rows end at their length. Prompts are computed once for their rows, which are
    forked from the first of them, and logprobs come with the tokens, since a trainer needs them.
    """
    sampling = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, num_return_sequences=work.each
    )
    batching = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=num_pages(work),
        max_batch_tokens=BATCH_TOKENS,
        max_requests_per_batch=setting.at_once,
        allow_block_sharing=True,
        auto_switch_to_flash=False,
        return_logprobs=True,
        seed=0,
    )
    # The type of a loaded model says neither what attention it has nor that it can do this.
    engine: Any = model
    before = engine.config._attn_implementation
    engine.set_attn_implementation(setting.attention)
    try:
        with engine.continuous_batching_context_manager(
            generation_config=sampling, continuous_batching_config=batching
        ) as manager:
            yield manager
    finally:
        engine.set_attn_implementation(before)


def sample_paged(manager: Any, work: Work) -> list[Row]:
    """The completions, in the order in which they ended; RuntimeError where one failed.

    Raises AssertionError where they are of other lengths.
    """
    for prompt, length in zip(work.prompts, work.lengths, strict=True):
        manager.add_request(list(prompt), max_new_tokens=length)
    rows: list[Row] = []
    while len(rows) < work.rows:
        output = manager.get_result(timeout=1.0)
        if output is None:
            if not manager.is_running():
                raise RuntimeError(f"continuous batching ended after {len(rows)} of {work.rows} rows")
            continue
        if output.error is not None:
            raise RuntimeError(f"continuous batching failed: {output.error}")
        rows.append(Row(list(output.prompt_ids), list(output.generated_tokens), list(output.logprobs)))
    lengths = sorted(len(row.ids) for row in rows)
    assert lengths == sorted(length for length in work.lengths for _ in range(work.each)), lengths
    return rows


@torch.no_grad()
def difference(model: PreTrainedModel, row: Row) -> float:
    """By how many nats a row's logprobs differ at most from those of the model's plain forward."""
    ids = torch.tensor([row.prompt + row.ids])
    logits = model(input_ids=ids).logits[0, len(row.prompt) - 1 : -1].float()
    own = logits.log_softmax(dim=-1).gather(1, torch.tensor(row.ids)[:, None])[:, 0]
    return float((own - torch.tensor(row.logprobs)).abs().max())
