"""The model, its adapter and the data, from the calls that load them."""

from collections.abc import Mapping

from muster.fromtrl.converting import adapter, rewards
from muster.fromtrl.draft import Arguments, Draft
from muster.fromtrl.options import (
    BITS_OPTIONS,
    EARLIER_OPTIONS,
    GRPO_OPTIONS,
    LORA_OPTIONS,
    TRAINER_OPTIONS,
    UNSLOTH_OPTIONS,
)
from muster.fromtrl.played import environment
from muster.fromtrl.reading import Found, Unread

LOADERS = ("FastLanguageModel.from_pretrained", "FastModel.from_pretrained")
ADAPTERS = ("FastLanguageModel.get_peft_model", "FastModel.get_peft_model")
BITS_DEFAULTS = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
NO_MODEL, NO_DATA = "smollm2-135m-instruct", "prompts.jsonl"
"""What is written where a script does not say."""


def from_model(draft: Draft, found: Found, grpo: Arguments, unsloth: Arguments) -> None:
    """Which model, in how many bits, with which adapter, and how long its texts may be."""
    trainer = Arguments(draft, "GRPOTrainer", found.of("GRPOTrainer"), TRAINER_OPTIONS)
    plain = found.of("AutoModelForCausalLM.from_pretrained")
    path = unsloth.get("model_name") or plain.get("model_name") or plain.get("pretrained_model_name_or_path")
    own = trainer.given.get("model")
    path = path or (own if isinstance(own, str) else None)
    if not isinstance(path, str):
        draft.tell(f"the model is not named by a literal: set model.path ({NO_MODEL} is written)")
        path = NO_MODEL
    draft.set("model.path", path, "as the script names it")
    if path.endswith(("-bnb-4bit", "-bnb-8bit")):
        draft.tell(
            f"model.path {path!r} is quantised already: name the full-precision model it was made from"
        )
    _bits(draft, found, unsloth, is_unsloth=bool(unsloth.given))
    own_adapter = found.of(*ADAPTERS)
    if own_adapter:
        args = Arguments(draft, "FastLanguageModel.get_peft_model", own_adapter, UNSLOTH_OPTIONS)
    else:
        args = Arguments(draft, "LoraConfig", found.of("LoraConfig"), LORA_OPTIONS)
    if args.given:
        adapter(draft, args, is_unsloth=bool(own_adapter))
        args.handled("model")
        args.tell_rest({"task_type": "CAUSAL_LM", "bias": "none"})
    elif "model.quantize" in draft.settings:
        draft.set("model.lora.rank", 32, "few bits can't be trained themselves")
    _texts(draft, unsloth, grpo)


def _bits(draft: Draft, found: Found, unsloth: Arguments, *, is_unsloth: bool) -> None:
    bits = Arguments(draft, "BitsAndBytesConfig", found.of("BitsAndBytesConfig"), BITS_OPTIONS)
    is_full = unsloth.flag("full_finetuning", False)
    four = unsloth.flag("load_in_4bit", is_unsloth and not is_full) or bits.flag("load_in_4bit", False)
    eight = unsloth.flag("load_in_8bit", False) or bits.flag("load_in_8bit", False)
    if four or eight:
        why = "load_in_4bit" if unsloth.has("load_in_4bit") or not is_unsloth else "Unsloth's default"
        draft.set("model.quantize", "nf4" if four and not eight else "int8", "load_in_8bit" if eight else why)
    bits.tell_rest(BITS_DEFAULTS)


def _texts(draft: Draft, unsloth: Arguments, grpo: Arguments) -> None:
    """Both limits, and room for both together."""
    completion = grpo.whole("max_completion_length", 512, 1)
    prompt, asked = grpo.whole("max_prompt_length", 0, 0), unsloth.whole("max_seq_length", 0, 0)
    needed = completion + (prompt or completion)
    total = max(asked, needed) if asked or prompt else max(4096, needed)
    draft.set(
        "model.max_tokens", total, "max_seq_length" if asked == total else "prompt and completion together"
    )
    if asked and total != asked:
        draft.tell(
            f"max_seq_length is {asked}, but max_prompt_length {prompt or completion} and "
            f"max_completion_length {completion} need {needed}, which is written as model.max_tokens"
        )
    if prompt:
        draft.set("data.max_prompt_tokens", prompt, "max_prompt_length")
        draft.tell("max_prompt_length cut longer prompts there; here they are refused (data.overlong)")


def from_trainer(draft: Draft, found: Found, grpo: Arguments) -> None:
    """Data, environment and rewards."""
    trainer = Arguments(draft, "GRPOTrainer", found.of("GRPOTrainer"), TRAINER_OPTIONS)
    played = environment(draft, found, trainer, grpo)
    functions = trainer.given.get("reward_funcs")
    names = rewards(found, functions, draft, played.takes) if functions is not None else []
    if played.takes or played.pays or (played.is_there and not names):
        names.append("environment")
    if not names:
        draft.tell("no reward function was found: set reward.use (rewards.py:reward is written)")
    draft.set("reward.use", names or ["rewards.py:reward"], "reward_funcs")
    weights = draft.settings.get("reward.weights")
    if isinstance(weights, list) and played.pays and not played.takes:
        # What an environment pays counts once, beside the weights of the functions.
        draft.settings["reward.weights"] = weights = [*weights, 1.0]
    if isinstance(weights, list) and len(weights) != len(names):
        draft.tell(f"reward_weights {weights} are not one for each of {names}: they are left out")
        del draft.settings["reward.weights"]
    _data(draft, found.of("load_dataset"))
    if "eval_dataset" in trainer.given:
        draft.tell("GRPOTrainer(eval_dataset=...): name held-out data as data.eval_path, then set eval.every")
    trainer.handled(
        "model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "peft_config",
        "tools", "environment_factory", "quantization_config",
    )  # fmt: skip
    trainer.tell_rest({})


def _data(draft: Draft, loaded: Mapping[str, object]) -> None:
    path, files = loaded.get("path"), loaded.get("data_files")
    if isinstance(path, str) and path in ("csv", "json", "parquet"):
        path = files
    if not isinstance(path, str):
        draft.tell(f"the data is not named by a literal: set data.path ({NO_DATA} is written)")
        path = NO_DATA
    draft.set("data.path", path, "as the script names it")
    for name, ours in (("name", "data.subset"), ("split", "data.split")):
        value = loaded.get(name)
        if isinstance(value, str) and files is None:
            draft.set(ours, value, name)
        elif isinstance(value, Unread):
            draft.tell(f"load_dataset({name}={value.text}) is computed there: set {ours}")
    draft.tell("a row becomes a prompt by its column `prompt`: what the script does to rows is data.map here")


def grpo_arguments(draft: Draft, found: Found) -> Arguments:
    """Those of the GRPOConfig."""
    return Arguments(draft, "GRPOConfig", found.of("GRPOConfig"), {**GRPO_OPTIONS, **EARLIER_OPTIONS})


def unsloth_arguments(draft: Draft, found: Found) -> Arguments:
    """Those of Unsloth's loader."""
    return Arguments(draft, "FastLanguageModel.from_pretrained", found.of(*LOADERS), UNSLOTH_OPTIONS)
