"""The configuration: one frozen model per section, each field documented by the string below it.

Free of torch. `load` and `from_mapping` make a `Config` and check what no single field can check.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import Field, model_validator

from muster.config.kinds import (
    BelowOne,
    ConventionName,
    Count,
    Interval,
    NoNames,
    NotNegative,
    OptionalChoice,
    Options,
    Positive,
    RunName,
    Section,
    Share,
    Text,
    Warmup,
)

DEFAULT_STEPS = 100
"""Steps of a run that names neither steps nor epochs."""
WARM_START = "sft"
"""The recipe that learns given answers instead of sampling its own: `muster sft`."""


class LoraConfig(Section):
    """Train a low-rank adapter instead of all weights (arXiv:2106.09685)."""

    rank: Positive = 32
    """Rank of the adapter's matrices."""
    alpha: Annotated[float, Gt(0)] = 32.0
    """The adapter's output is scaled by alpha / rank."""
    targets: Annotated[tuple[Text, ...], MinLen(1)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that get an adapter."""
    dropout: NotNegative = 0.0
    """Must stay 0: with dropout the trainer would not be the policy that sampled."""


class ModelConfig(Section):
    """What is trained, and in which precision."""

    path: Text
    """A hub id, a folder, a .gguf file, or `smollm2-135m-instruct` for the embedded model."""
    adapter: Text | None = None
    """Folder of a trained adapter to go on from; the reference is then the adapter as it is now."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the computation. The weights stay float32: small learning rates do not move bfloat16."""
    quantize: Literal["nf4", "int8"] | None = None
    """Keep the linear layers' weights in 4 or 8 bits (arXiv:2305.14314) below an adapter that is trained."""
    max_tokens: Annotated[int, Ge(2)] = 4096
    """Longest prompt and completion together, in tokens."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    lora: LoraConfig | None = None
    """A table, be it empty, trains an adapter; without it all weights are trained."""


class DataConfig(Section):
    """Where prompts come from and how a row becomes one."""

    path: Text
    """A CSV, JSON lines, JSON or Parquet file, a hub id, or a task: `reasoning_gym:chain_sum?max_terms=3`."""
    subset: Text | None = None
    """Subset of a data set on the hub."""
    split: Text = "train"
    """Split of a data set on the hub."""
    eval_path: Text | None = None
    """Held-out data, in the same forms as `path`; never trained on."""
    eval_split: Text | None = None
    """Held-out split of a data set on the hub: of `eval_path`, or of `path` without one."""
    prompt: Text = "prompt"
    """Column that holds the prompt: text, or a list of messages."""
    completion: Text = "completion"
    """Column that holds the answer that `muster sft` learns; a column `messages` may hold both instead."""
    system: str | None = None
    """System message put before every prompt of text."""
    raw: bool = False
    """Give the prompt to the model as it is, without chat template: for base models."""
    map: Text | None = None
    """A function from row to row: `module:function` or `file.py:function`."""
    environment: Text | None = None
    """What answers the policy for several turns: `calculator`, `guessing_game`, or `file.py:Name`."""
    chat_template_kwargs: Options = Field(default_factory=dict)
    """Handed to the model's chat template."""
    max_prompt_tokens: Positive | None = None
    """Longest prompt; without it, what `sampling.max_tokens` leaves of `model.max_tokens`."""
    overlong: Literal["refuse", "drop"] = "refuse"
    """What to do with a longer prompt: stop before the run, or leave it out and say how many."""
    draw: Literal["in_turn", "in_order", "by_signal"] = "in_turn"
    """Every prompt once per epoch, shuffled or in the order of the file; or more often those that teach."""

    @property
    def has_eval(self) -> bool:
        """Held-out data is named."""
        return self.eval_path is not None or self.eval_split is not None


class RewardConfig(Section):
    """What is good, as one function or several."""

    use: NoNames
    """A name, `module:function` or `file.py:function`, or a list of them."""
    weights: tuple[float, ...] | None = None
    """One weight per reward, in the order of `use`; without it, 1 each."""
    combine: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """Normalise the weighted sum within its group, or each reward before the sum."""
    options: Mapping[str, Options] = Field(default_factory=dict)
    """Parameters by reward name: `[reward.options.char_count]`."""
    max_failed_share: Share = 0.5
    """Stop the run when a larger share of a step's rollouts could not be scored."""
    workers: Positive | None = None
    """Processes that rewards run in; without it, as many as there are processors, at most 4."""
    time_limit_s: Annotated[float, Gt(0)] = 30.0
    """Seconds one call of a reward may take; then its process is killed and its rollouts count as failed."""
    in_process: NoNames = ()
    """Rewards that run in the process of the run, without a time limit: those with a model, or a GPU."""
    convention: Mapping[str, ConventionName] = Field(default_factory=dict)
    """How a reward is called, by its name, where its parameters don't tell: `answer` is f(text, answer)."""


class SamplingConfig(Section):
    """How completions are sampled."""

    prompts_per_step: Positive = 2
    """Prompts of one step; in a warm start, answers of one step."""
    group_size: int = 8
    """Completions per prompt; they are compared with each other, so at least 2."""
    max_tokens: Positive = 256
    """Longest completion, in tokens, the stop token included."""
    temperature: Annotated[float, Gt(0)] = 1.0
    """Divides the logits when sampling, and in every logprob of training."""
    top_k: Count = 0
    """Sample from the k likeliest tokens only; 0 keeps all."""
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Sample from the smallest set of likeliest tokens that reaches this probability; 1 keeps all."""
    min_p: BelowOne = 0.0
    """Leave out tokens less likely than this share of the likeliest; 0 keeps all."""
    stop: tuple[Text, ...] = ()
    """Texts that end a completion, beside the model's own end tokens."""
    ignore_eos: bool = False
    """Sample exactly `max_tokens` tokens whatever they are: episodes of fixed length."""
    sync_every: Positive = 1
    """Steps between refreshes of the policy that samples; 1 always samples with the newest."""


class AlgoConfig(Section):
    """The algorithm: a recipe, and what to choose otherwise in it."""

    recipe: Text = "grpo"
    """A named choice of functions: grpo, dr_grpo, dapo, gspo, cispo, rloo ...; `sft` is a warm start."""
    advantage: OptionalChoice = None
    """From the rewards of a group to advantages; without it, the recipe's."""
    objective: OptionalChoice = None
    """Per-token loss: `clip`, or `{ use = "clip", high = 0.28 }`; without it, the recipe's."""
    correction: OptionalChoice = None
    """Weight for the gap between sampler and trainer; without it, the recipe's."""
    gate: OptionalChoice = None
    """Which tokens take part; without it, the recipe's."""
    kl: OptionalChoice = None
    """Estimator of the KL divergence from the reference; without it, the recipe's."""
    weights: OptionalChoice = None
    """What each token counts in the loss; without it, the recipe's."""
    kl_coef: NotNegative = 0.0
    """Strength of the KL penalty; 0 needs no reference."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL penalty enters; in the reward it is k1 over the completion, unless `kl` says otherwise."""
    entropy_coef: float = 0.0
    """Strength of the entropy bonus; 0 is off."""
    truncated: Literal["score", "mask", "penalize"] | None = None
    """A completion cut at its limit: scored as any, out of the loss, or given DAPO's soft penalty.

    Without it, the recipe's.
    """
    overlong_zone: Positive | None = None
    """Tokens before the limit in which the soft penalty grows; without it, a fifth of the limit."""
    resample: Count | None = None
    """Rounds in which groups without signal are drawn again; 0 is off; without it, the recipe's."""
    minibatches: Positive = 1
    """Updates that share a step's rollouts in one pass."""
    passes: Positive = 1
    """How often every rollout is trained on."""


class OptimConfig(Section):
    """The optimizer, its schedule and its guards."""

    name: Text = "adamw"
    """`adamw`, `adamw_8bit`, `paged_adamw_8bit`, `sgd`, or a class such as `torch.optim.Adafactor`."""
    options: Options = Field(default_factory=dict)
    """The optimizer's own options, such as `{ betas = [0.9, 0.99] }`; its signature says which there are."""
    lr: NotNegative = 1e-6
    """Learning rate at the top of the schedule."""
    weight_decay: NotNegative = 0.0
    """Weight decay of matrices; of AdamW, the share, times `lr`, that each update takes away."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after warm-up."""
    warmup: Warmup = 0
    """Steps in which the learning rate rises from 0; a number below 1 is their share of the run."""
    final_fraction: Share = 0.0
    """Where the schedule ends, as a share of `lr`."""
    max_grad_norm: Annotated[float, Gt(0)] = 1.0
    """A gradient with a larger norm is scaled down to it."""
    max_skipped: Count = 5
    """Stop the run after more updates in a row with a gradient that isn't finite."""


class EngineConfig(Section):
    """What samples."""

    kind: Literal["local", "vllm", "vllm_inside"] = "local"
    """`local` and `vllm_inside` sample in this process, the latter with vLLM; `vllm` on servers over HTTP."""
    ahead: Count = 0
    """Steps that sampling runs ahead of the update, beside it, on weights as much older; 0 takes turns."""
    max_mismatch: Annotated[float, Gt(0)] = 0.05
    """Stop the run when sampler and trainer disagree more, as mean |logprob difference| in nats."""
    options: Options = Field(default_factory=dict)
    """The engine's own options, passed on as they are."""


class EvalConfig(Section):
    """Held-out evaluation; it never changes training."""

    every: Count = 0
    """Steps between evaluations; 0 evaluates at start and end only, where held-out data is named."""
    prompts: Positive = 64
    """How many held-out prompts, from the first on."""
    group_size: Positive = 1
    """Completions per held-out prompt; pass@k needs at least k."""
    max_tokens: Positive | None = None
    """Longest completion; without it, `sampling.max_tokens`."""
    at_start: bool = True
    """Evaluate before the first update too, so that there is something to compare with."""


class RunConfig(Section):
    """The run itself: how long, where, and what is kept."""

    name: RunName | None = None
    """Folder of the run in `dir`; without it, the configuration file's name and a number."""
    dir: Text = "runs"
    """Folder of all runs."""
    steps: Positive | None = None
    """How many steps; 100 where neither steps nor epochs are given."""
    epochs: Positive | None = None
    """How often every prompt is drawn, instead of `steps`."""
    seed: Count = 3407
    """Everything random follows from it."""
    save_every: Interval = 0
    """Steps between checkpoints, or minutes as text such as "10 min"; 0 saves at the end only."""
    keep: Positive = 2
    """How many of the newest checkpoints are kept, beside the best by held-out reward."""
    on_full_disk: Literal["stop", "go_on"] = "stop"
    """What a checkpoint that has no room is: the end of the run, or a warning."""
    layout: Literal["replicate", "shard"] = "replicate"
    """On several processes: each holds all weights, or they divide weights, gradients and optimizer."""
    threads: Positive | None = None
    """Threads of a CPU run; without it, what torch chooses."""
    budget_tokens: Positive | None = None
    """Tokens of one forward pass in training; without it, what the memory there is allows."""
    trackers: NoNames = ()
    """Where metrics, findings and samples are sent, too: `wandb`, `trackio`, `tensorboard`."""
    pause_on: NoNames = ()
    """Findings at which the run saves a checkpoint and stops: `mode-collapse`, `reward-hacking` ..."""

    @model_validator(mode="before")
    @classmethod
    def _default_length(cls, values: object) -> object:
        """A run that names no length has a stated one."""
        if isinstance(values, dict) and values.get("steps") is None and values.get("epochs") is None:
            return {**values, "steps": DEFAULT_STEPS}
        return values


class Config(Section):
    """All there is to set about a run; made by `load` and `from_mapping`."""

    model: ModelConfig
    data: DataConfig
    reward: RewardConfig
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    algo: AlgoConfig = Field(default_factory=AlgoConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    run: RunConfig = Field(default_factory=RunConfig)

    @property
    def is_warm_start(self) -> bool:
        """Given answers are learned, and nothing is sampled or scored: `muster sft`."""
        return self.algo.recipe == WARM_START

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt, in tokens, whether set or derived."""
        return self.data.max_prompt_tokens or self.model.max_tokens - self.sampling.max_tokens

    @property
    def eval_max_tokens(self) -> int:
        """Longest held-out completion, in tokens, whether set or derived."""
        return self.eval.max_tokens or self.sampling.max_tokens
