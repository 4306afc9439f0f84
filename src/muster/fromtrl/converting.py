"""The settings that the found arguments mean, with TRL's defaults where they are other than Muster's."""

import math
from collections.abc import Collection, Sequence
from pathlib import PurePath

from muster.fromtrl.draft import Arguments, Draft
from muster.fromtrl.played import placed
from muster.fromtrl.reading import Found, Unread

OPTIMIZERS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw_8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "sgd": "sgd",
}
SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}
SAPO = (("pos", 1.0), ("neg", 1.05))
VESPO = (
    ("k_positive", "vespo_k_pos", 2.0),
    ("lambda_positive", "vespo_lambda_pos", 3.0),
    ("k_negative", "vespo_k_neg", 3.0),
    ("lambda_negative", "vespo_lambda_neg", 2.0),
)
"""Options of the two, TRL's names and defaults."""
UNSLOTH_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TRACKERS = ("wandb", "trackio", "tensorboard")
PEFT_TARGETS = ("q_proj", "v_proj")
"""What peft takes for Llama-like models where a LoraConfig names none."""


def from_grpo(draft: Draft, args: Arguments) -> None:
    """All that a GRPOConfig says; `draft` has the model's settings and the engine already."""
    per_step = _batches(draft, args)
    _sampling(draft, args)
    _algorithm(draft, args)
    _objective(draft, args)
    _optimizer(draft, args)
    _schedule(draft, args, per_step)
    _length(draft, args, per_step)
    _precision(draft, args)
    _trackers(draft, args)


def _trackers(draft: Draft, args: Arguments) -> None:
    """Where a run is sent to as it goes on."""
    names = [str(name) for name in _listed(args.get("report_to", "none"))]
    if known := [name for name in names if name in TRACKERS]:
        draft.set("run.trackers", known, "report_to")
    for name in names:
        if name not in (*TRACKERS, "none"):
            draft.tell(
                f"GRPOConfig(report_to={name!r}) has no counterpart: trackers are {', '.join(TRACKERS)}"
            )


def _batches(draft: Draft, args: Arguments) -> int:
    """Prompts, group and minibatches; the updates of a step."""
    group = args.whole("num_generations", 8, 1)
    device = args.whole("per_device_train_batch_size", 8, 1)
    cumulated = args.whole("gradient_accumulation_steps", 1, 1)
    parts = args.whole("steps_per_generation", cumulated, 1)
    rows = args.whole("generation_batch_size", device * parts, 1)
    parts = max(1, rows // device)
    prompts, left = divmod(rows, group)
    if left or not prompts:
        draft.tell(
            f"a generation of {rows} rows doesn't hold whole groups of num_generations = {group}; "
            f"{max(prompts, 1)} prompts a step are written"
        )
    prompts = max(prompts, 1)
    minibatches, passes = max(1, parts // cumulated), args.whole("num_iterations", 1, 1)
    draft.set("sampling.prompts_per_step", prompts, f"{rows} rows a generation, on one process, over {group}")
    draft.set("sampling.group_size", group, "num_generations")
    if minibatches > 1:
        draft.set("algo.minibatches", minibatches, "steps_per_generation / gradient_accumulation_steps")
    if passes > 1:
        draft.set("algo.passes", passes, "num_iterations")
    return minibatches * passes


def _sampling(draft: Draft, args: Arguments) -> None:
    draft.set("sampling.max_tokens", args.whole("max_completion_length", 512), "max_completion_length")
    for name, default in (("temperature", 1.0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        value = args.number(name, default)
        if value != default:
            draft.set(f"sampling.{name}", max(value, 0) if name == "top_k" else value, name)
    template = args.get("chat_template_kwargs")
    if isinstance(template, dict) and template:
        draft.set("data.chat_template_kwargs", template, "chat_template_kwargs")
    more = args.get("generation_kwargs")
    for name, value in more.items() if isinstance(more, dict) else ():
        if name == "stop_strings":
            draft.set("sampling.stop", [str(text) for text in _listed(value)], "stop_strings")
        else:
            draft.tell(f"GRPOConfig(generation_kwargs={{{name!r}: {value!r}}}) has no counterpart")


def _algorithm(draft: Draft, args: Arguments) -> None:
    scale = args.get("scale_rewards", "group")
    names = {
        "group": "zscore",
        "True": "zscore",
        "batch": "batch_scaled",
        "none": "center",
        "False": "center",
    }
    name = names.get(str(scale))
    if name is None:
        draft.tell(f"GRPOConfig(scale_rewards={scale!r}) is not known; zscore is written")
    draft.set("algo.recipe", "grpo", "what follows says where TRL's loss is another")
    draft.set("algo.advantage", name or "zscore", "scale_rewards")
    beta = args.number("beta", 0.0)
    is_corrected = args.flag("use_bias_correction_kl", True)
    if beta:
        draft.set("algo.kl_coef", beta, "beta")
        ratio = "differentiable" if is_corrected else "none"
        draft.set("algo.kl", {"use": "k3", "ratio": ratio}, "use_bias_correction_kl")
    share, drift = args.number("top_entropy_quantile", 1.0), args.number("off_policy_mask_threshold", 0.0)
    if share < 1:
        draft.set("algo.gate", {"use": "top_entropy", "share": share}, "top_entropy_quantile")
    if drift and share < 1:
        draft.tell(f"GRPOConfig(off_policy_mask_threshold={drift}): one gate only, and top_entropy is it")
    elif drift:
        draft.set(
            "algo.gate", {"use": "off_policy_sequence", "max_drift": drift}, "off_policy_mask_threshold"
        )
    if entropy := args.number("entropy_coef", 0.0):
        draft.set("algo.entropy_coef", entropy, "entropy_coef, weighted as the loss is")
    masks = args.flag("mask_truncated_completions", False)
    draft.set("algo.truncated", "mask" if masks else "score", "mask_truncated_completions")
    _correction(draft, args)
    if weights := args.get("reward_weights"):
        draft.set("reward.weights", list(_listed(weights)), "reward_weights")
    combine = args.get("multi_objective_aggregation", "sum_then_normalize")
    if combine != "sum_then_normalize":
        draft.set("reward.combine", combine, "multi_objective_aggregation")


def _correction(draft: Draft, args: Arguments) -> None:
    """TRL corrects for a sampler of its own only, which is vLLM."""
    uses = "engine.kind" in draft.settings
    corrects = args.flag("vllm_importance_sampling_correction", True)
    mode = str(args.get("vllm_importance_sampling_mode", "sequence_mask"))
    cap = args.number("vllm_importance_sampling_clip_max", args.number("vllm_importance_sampling_cap", 3.0))
    low = args.number("vllm_importance_sampling_clip_min", 0.0)
    if not (uses and corrects):
        draft.set("algo.correction", "none", "TRL has one for vLLM only")
        return
    level, _, kind = mode.partition("_")
    if kind == "mask":
        chosen: dict[str, object] = {"use": "mask_outside", "low": low, "high": cap, "level": level}
    else:
        chosen = {"use": "truncate", "cap": cap, "level": level}
        if low:
            draft.tell(
                f"GRPOConfig(vllm_importance_sampling_clip_min={low}): truncation has no lower bound here"
            )
    draft.set("algo.correction", chosen, "vllm_importance_sampling_mode")


def _objective(draft: Draft, args: Arguments) -> None:
    """`loss_type` is two choices here: a loss per token, and what each token counts."""
    kind = str(args.get("loss_type", "dapo"))
    weights = {"grpo": "by_sequence", "sapo": "by_sequence", "dr_grpo": "by_limit", "luspo": "by_sum"}
    if kind not in {*weights, "dapo", "bnpo", "cispo", "vespo"}:
        draft.tell(f"GRPOConfig(loss_type={kind!r}) is not known; dapo, TRL's default, is written")
        kind = "dapo"
    low = args.number("epsilon", 0.2)
    high, cap = args.number("epsilon_high", low), args.number("delta", 0.0)
    by_sequence = args.get("importance_sampling_level", "token") == "sequence"
    chosen: dict[str, object] = {"use": "gspo" if by_sequence else "clip", "low": low, "high": high}
    if cap:
        chosen["cap"] = cap
    match kind:
        case "cispo":
            chosen = {"use": "cispo", "cap": high}
        case "sapo":
            positive, negative = (args.number(f"sapo_temperature_{sign}", tau) for sign, tau in SAPO)
            chosen = {"use": "sapo", "tau_positive": positive, "tau_negative": negative}
        case "vespo":
            options = {ours: args.number(theirs, default) for ours, theirs, default in VESPO}
            chosen = {"use": "vespo", **options}
        case _:
            pass
    if by_sequence and chosen["use"] in ("cispo", "sapo"):
        draft.tell(f"GRPOConfig(importance_sampling_level='sequence'): {kind} has token ratios here")
    draft.set("algo.objective", chosen, f'loss_type "{kind}", epsilon')
    draft.set("algo.weights", weights.get(kind, "by_token"), f'loss_type "{kind}"')


def _optimizer(draft: Draft, args: Arguments) -> None:
    name = str(args.get("optim", "adamw_torch_fused"))
    ours = OPTIMIZERS.get(name)
    if ours is None:
        draft.tell(
            f"GRPOConfig(optim={name!r}) has no counterpart; adamw is written (optim.name takes any class)"
        )
    draft.set("optim.name", ours or "adamw", f"optim = {name!r}")
    betas = [args.number("adam_beta1", 0.9), args.number("adam_beta2", 0.999)]
    eps = args.number("adam_epsilon", 1e-8)
    if ours != "sgd":
        draft.set("optim.options", {"betas": betas, "eps": eps}, "adam_beta1, adam_beta2, adam_epsilon")
    draft.set("optim.lr", args.number("learning_rate", 1e-6), "learning_rate")
    draft.set("optim.weight_decay", args.number("weight_decay", 0.0), "weight_decay")
    norm = args.number("max_grad_norm", 1.0)
    if norm > 0:
        draft.set("optim.max_grad_norm", norm, "max_grad_norm")
    else:
        draft.set("optim.max_grad_norm", 1e9, "max_grad_norm 0: never clipped")


def _schedule(draft: Draft, args: Arguments, per_step: int) -> None:
    kind = str(args.get("lr_scheduler_type", "linear"))
    more = args.get("lr_scheduler_kwargs")
    settings = more if isinstance(more, dict) else {}
    shape = SCHEDULES.get(kind.removesuffix("_with_min_lr"))
    if shape is None:
        draft.tell(f"GRPOConfig(lr_scheduler_type={kind!r}) has no counterpart; linear is written")
    draft.set("optim.schedule", shape or "linear", "lr_scheduler_type")
    for name, value in settings.items():
        if name in ("min_lr", "min_lr_rate") and shape == "cosine" and isinstance(value, int | float):
            top = args.number("learning_rate", 1e-6) or 1.0
            rate = value / top if name == "min_lr" else value
            draft.set("optim.final_fraction", rate, f"lr_scheduler_kwargs: {name}")
        else:
            draft.tell(f"GRPOConfig(lr_scheduler_kwargs={{{name!r}: {value!r}}}) has no counterpart")
    warmup, ratio = args.number("warmup_steps", 0), args.number("warmup_ratio", 0.0)
    if 0 < warmup < 1:
        warmup, ratio = 0, warmup
    if warmup:
        steps = math.ceil(warmup / per_step)
        draft.set(
            "optim.warmup",
            steps,
            f"warmup_steps, {per_step} updates a step" if per_step > 1 else "warmup_steps",
        )
    elif ratio:
        draft.set("optim.warmup", ratio, "warmup_ratio")


def _length(draft: Draft, args: Arguments, per_step: int) -> None:
    """How long, how often saved and evaluated: TRL counts updates, Muster rounds of rollouts."""
    steps = args.whole("max_steps", -1)
    epochs = args.number("num_train_epochs", 3.0)
    if steps > 0:
        draft.set("run.steps", math.ceil(steps / per_step), f"max_steps {steps}, {per_step} updates a step")
    else:
        draft.set("run.epochs", max(1, math.ceil(epochs)), "num_train_epochs")
        if epochs != int(epochs):
            draft.tell(
                f"GRPOConfig(num_train_epochs={epochs}): epochs are whole here; "
                f"{math.ceil(epochs)} is written"
            )
    if "run.seed" not in draft.settings or args.has("seed"):
        draft.set("run.seed", args.whole("seed", 42, 0), "seed")
    strategy = args.get("save_strategy", "steps")
    if strategy == "steps":
        every = args.number("save_steps", 500)
        if every < 1:
            draft.tell(f"GRPOConfig(save_steps={every}): a share of the run is not known here; 0 is written")
        draft.set("run.save_every", math.ceil(every / per_step) if every >= 1 else 0, "save_steps")
    elif strategy != "no":
        draft.tell(f"GRPOConfig(save_strategy={strategy!r}): set run.save_every to steps or minutes")
    if (keep := args.whole("save_total_limit", 0)) > 0:
        draft.set("run.keep", keep, "save_total_limit")
    else:
        draft.tell("TRL keeps every checkpoint without save_total_limit; here run.keep = 2 and the best stay")
    folder = PurePath(str(args.get("output_dir", "trl-run")))
    draft.set("run.name", str(args.get("run_name", "")) or folder.name, "output_dir or run_name")
    if str(folder.parent) not in ("", "."):
        draft.set("run.dir", str(folder.parent), "output_dir")
    if args.get("shuffle_dataset", True) is False:
        draft.set("data.draw", "in_order", "shuffle_dataset")


def _precision(draft: Draft, args: Arguments) -> None:
    if args.flag("bf16", False) or args.flag("fp16", False):
        draft.set("model.dtype", "bfloat16", "bf16 or fp16; the weights stay float32")
        if args.flag("fp16", False):
            draft.tell("GRPOConfig(fp16=True): computed in bfloat16 here, which needs no loss scaling")
    else:
        draft.tell("TRL computes in bfloat16 on a GPU that has it; here set model.dtype for that")
    draft.settings.setdefault("model.gradient_checkpointing", args.flag("gradient_checkpointing", True))
    draft.comments.setdefault("model.gradient_checkpointing", "gradient_checkpointing, TRL's default")


def evaluation(draft: Draft, args: Arguments) -> None:
    """How often held-out data is measured, where there is some; else what was asked is told."""
    strategy = args.get("eval_strategy", args.get("evaluation_strategy", "no"))
    group = args.whole("num_generations_eval", args.whole("num_generations", 8))
    every = args.number("eval_steps", args.number("logging_steps", 10))
    if strategy in ("no", None):
        return
    if "data.eval_path" not in draft.settings:
        draft.tell(
            f"GRPOConfig(eval_strategy={strategy!r}): name held-out data as data.eval_path, then set "
            "eval.every"
        )
        return
    draft.set("eval.group_size", group, "num_generations_eval, or num_generations")
    if strategy == "steps" and every >= 1:
        draft.set("eval.every", int(every), "eval_steps")
    else:
        draft.tell(f"GRPOConfig(eval_strategy={strategy!r}): set eval.every to steps")


def adapter(draft: Draft, args: Arguments, *, is_unsloth: bool) -> None:
    """The table `model.lora`, from a LoraConfig or from Unsloth's get_peft_model."""
    rank = args.whole("r", 16 if is_unsloth else 8, 1)
    alpha = args.number("lora_alpha", 16 if is_unsloth else 8)
    if args.flag("use_rslora", False):
        alpha *= math.sqrt(rank)
    draft.set("model.lora.rank", rank, "r")
    draft.set("model.lora.alpha", float(alpha), "lora_alpha")
    default = UNSLOTH_TARGETS if is_unsloth else PEFT_TARGETS
    targets = args.get("target_modules", list(default))
    if not isinstance(targets, list | tuple | set) or not targets:
        draft.tell(f"{args.call}(target_modules={targets!r}) names no layers; those of a Llama are written")
        targets = list(UNSLOTH_TARGETS)
    draft.set("model.lora.targets", [str(target) for target in targets], "target_modules")
    if dropout := args.number("lora_dropout", 0.0):
        draft.tell(f"{args.call}(lora_dropout={dropout}): {args.options['lora_dropout']}; 0 is written")
    if is_unsloth:
        uses = args.get("use_gradient_checkpointing", "unsloth")
        draft.set("model.gradient_checkpointing", uses not in (False, "False"), "use_gradient_checkpointing")
        if args.has("random_state"):
            draft.set("run.seed", args.whole("random_state", 3407, 0), "random_state; one seed for all")


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else [value]


def rewards(found: Found, value: object, draft: Draft, elsewhere: Collection[str]) -> list[str]:
    """Where each reward function of the trainer is to be found, but those that are called elsewhere."""
    names: list[str] = []
    for item in _listed(value):
        text = item.text if isinstance(item, Unread) else str(item)
        if text in elsewhere:
            continue
        if text in found.imports or (isinstance(item, Unread) and text.isidentifier()):
            names.append(placed(draft, found, text, "rewards.py", "reward function"))
        else:
            draft.tell(f"GRPOTrainer(reward_funcs={text}): a reward model or a value; see reward.use")
    return names
