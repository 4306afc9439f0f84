"""What is measured: one record that both trainers are set up from, and prompts of an exact length."""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
TRAIN_DATA = EXAMPLES / "data" / "json_extraction.train.csv"
HELD_OUT_DATA = EXAMPLES / "data" / "json_extraction.heldout.csv"

NEW_TOKENS = 64
"""Tokens of every completion: the end token is ignored, or barred, on both sides."""
KL_COEF = 0.04
"""Of the KL term, with the k3 estimator, where a workload has a reference."""
LORA_RANK = 32
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ROWS_AT_ONCE = 16
"""Rows of TRL's micro-batch; a larger step accumulates."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training run as both trainers are told it: nothing is set on one side alone."""

    name: str
    model: str
    """A folder that transformers reads."""
    data: str
    """JSON lines with a `prompt` each, drawn in this order."""
    reward: str
    """`spread` or `extraction`."""
    num_prompts: int
    """Prompts of a step."""
    group_size: int
    new_tokens: int
    fixed_length: bool
    """Every completion has exactly `new_tokens` tokens."""
    threads: int
    kl_coef: float = 0.0
    lora_rank: int = 0
    """0 trains all weights."""
    quantize: str | None = None
    """Kind of the base's weights; None keeps them whole."""
    optimizer: str = "adamw"
    gradient_checkpointing: bool = False
    lr: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999
    warmup_steps: int = 0
    held_out: str | None = None
    eval_prompts: int = 64
    eval_every: int = 0
    """Steps between held-out evaluations; 0 never evaluates."""
    seed: int = 3407

    @property
    def rows(self) -> int:
        """Completions of a step."""
        return self.num_prompts * self.group_size

    def write(self, folder: Path) -> Path:
        """Writes the job where a worker reads it."""
        path = folder / f"{self.name}.job.json"
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        return path


def read_job(path: str) -> Job:
    """The job that was written there."""
    return Job(**json.loads(Path(path).read_text(encoding="utf-8")))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A step of fixed size whose seconds and memory are compared."""

    name: str
    group_size: int
    prompt_tokens: int
    kl_coef: float
    lora_rank: int = 0
    num_prompts: int = 2
    rounds: int = 3
    """Measured steps on each side, unless asked for otherwise."""

    def job(self, model: str, data: Path, threads: int) -> Job:
        """The workload as a job on a model."""
        return Job(
            name=self.name,
            model=model,
            data=str(data),
            reward="spread",
            num_prompts=self.num_prompts,
            group_size=self.group_size,
            new_tokens=NEW_TOKENS,
            fixed_length=True,
            threads=threads,
            kl_coef=self.kl_coef,
            lora_rank=self.lora_rank,
        )


WORKLOADS = (
    Workload(name="S", group_size=8, prompt_tokens=66, kl_coef=KL_COEF),
    Workload(name="L", group_size=16, prompt_tokens=254, kl_coef=0.0, rounds=2),
    Workload(name="S_lora", group_size=8, prompt_tokens=66, kl_coef=KL_COEF, lora_rank=LORA_RANK),
)


def prompt_ids(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of a user message as a chat, as both trainers render it."""
    chat = [{"role": "user", "content": text}]
    rendered = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    return tokenizer(rendered, add_special_tokens=False)["input_ids"]


def exact_prompts(tokenizer: PreTrainedTokenizerBase, count: int, tokens: int) -> list[str]:
    """User messages, all different, whose chats have exactly that many tokens.

    Words of the demo's data, filled up with digits. Raises ValueError where that many tokens can't be
    hit: fewer than the chat template needs, or a tokenizer that joins digits.
    """
    words = " ".join(read_prompts(TRAIN_DATA)[:128]).split()
    return [_exact(words[37 * number :], tokenizer, tokens) for number in range(count)]


def _exact(words: Sequence[str], tokenizer: PreTrainedTokenizerBase, tokens: int) -> str:
    low, high = 0, len(words)
    while high - low > 1:
        middle = (low + high) // 2
        fits = len(prompt_ids(" ".join(words[:middle]), tokenizer)) <= tokens
        low, high = (middle, high) if fits else (low, middle)
    for kept in range(low, max(low - 4, -1), -1):
        text = " ".join(words[:kept])
        missing = tokens - len(prompt_ids(text, tokenizer))
        for filler in range(max(missing, 0) + 1):
            filled = text + "".join(str(place % 10) for place in range(filler))
            if len(prompt_ids(filled, tokenizer)) == tokens:
                return filled
    raise ValueError(f"no prompt of exactly {tokens} tokens can be made with this model's chat template")


def read_prompts(path: Path) -> list[str]:
    """The `prompt` column of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [row["prompt"] for row in csv.DictReader(file)]


def write_prompts(path: Path, prompts: Sequence[str]) -> Path:
    """A JSON-lines file of prompts."""
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts), encoding="utf-8")
    return path
