"""The README of an exported model: what it was trained from and how, its held-out result, how to load it.

Names, paths and settings come from people and models: each is quoted, so that none ends the front matter,
a code block or a line.
"""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Literal

from huggingface_hub import try_to_load_from_cache

from muster.config import Config, to_toml
from muster.store import held_out_score

Form = Literal["adapter", "weights"]

PACKAGES = ("muster-rl", "torch", "transformers", "peft")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
LICENSE = re.compile(r"^license:[ \t]*[\"']?([A-Za-z0-9][A-Za-z0-9._-]*)[\"']?[ \t]*$", re.MULTILINE)
FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*$", re.MULTILINE | re.DOTALL)

# What YAML takes for a line break or refuses, beyond what JSON escapes: DEL and C1 controls, line and
# paragraph separators, a byte-order mark, halves of surrogate pairs.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")

LOADING = {
    "weights": """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
""",
    "adapter": """from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
merged = model.merge_and_unload()  # full weights, where they are wanted
""",
}


def license_of(base: str) -> str | None:
    """The licence that the base model's own card names, in its folder or the hub's cache; never the net."""
    folder = Path(base)
    card: object = folder / "README.md" if folder.is_dir() else None
    if card is None and HUB_ID.fullmatch(base):
        card = try_to_load_from_cache(base, "README.md")
    try:
        text = Path(card).read_text(encoding="utf-8") if isinstance(card, str | Path) else ""
    except (OSError, ValueError):
        return None
    front = FRONT_MATTER.match(text)
    found = LICENSE.search(front[1]) if front else None
    return found[1] if found else None


def model_card(config: Config, metrics: Sequence[Mapping[str, object]], *, form: Form) -> str:
    """The card's Markdown, with front matter for a hub; `metrics` are the run's, a line per step."""
    parts = [
        _front_matter(config, form),
        f"# {code(PurePath(config.model.path).name)}, fine-tuned with Muster\n",
        _story(config, metrics, form),
        _held_out(metrics),
        "## Loading\n",
        "FOLDER is this folder, or its name on a hub.\n",
        f"```python\n{LOADING[form]}```\n",
        "## Settings\n",
        block(to_toml(_without_folders(config)).strip(), "toml"),
        "## Versions\n",
        "\n".join(f"- {name} {_version(name)}" for name in PACKAGES) + "\n",
    ]
    return "\n".join(part for part in parts if part)


def _front_matter(config: Config, form: Form) -> str:
    entries: dict[str, str | list[str]] = {
        "library_name": "peft" if form == "adapter" else "transformers",
        "tags": ["muster", "sft" if config.is_warm_start else "grpo", "text-generation"],
    }
    if HUB_ID.fullmatch(config.model.path) and not Path(config.model.path).exists():
        entries["base_model"] = config.model.path
    if (terms := license_of(config.model.path)) is not None:
        entries["license"] = terms
    lines = [
        f"{key}: {quoted(value) if isinstance(value, str) else '[' + ', '.join(map(quoted, value)) + ']'}"
        for key, value in entries.items()
    ]
    return "\n".join(["---", *lines, "---", ""])


def _story(config: Config, metrics: Sequence[Mapping[str, object]], form: Form) -> str:
    steps = [line["step"] for line in metrics if isinstance(line.get("step"), int)]
    sampled = config.sampling
    rows = {
        "base model": code(_place(config.model.path)),
        "weights": "a LoRA adapter" if form == "adapter" else "all of the model's",
        **_quantization(config),
        "data": code(_place(config.data.path)),
        **_lesson(config),
        "steps": str(steps[-1]) if steps else "0",
        "each step": f"{sampled.prompts_per_step} answers"
        if config.is_warm_start
        else f"{sampled.prompts_per_step} prompts, {sampled.group_size} completions of each",
        "seed": str(config.run.seed),
    }
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {key} | {cell(value)} |" for key, value in rows.items()), ""]
    )


def _quantization(config: Config) -> dict[str, str]:
    """What a reader must know where the policy that was trained is not quite the one published."""
    kind = config.model.quantize
    if kind is None:
        return {}
    return {
        "trained on": f"the base in {kind}; this is its adapter on the base in full precision. Held-out "
        "results are those of the quantised policy"
    }


def _lesson(config: Config) -> dict[str, str]:
    """What the model learned from."""
    if config.is_warm_start:
        return {"learned from": "given answers (supervised fine-tuning): the loss is on the answers alone"}
    return {
        "reward": ", ".join(code(_name_alone(name)) for name in config.reward.use),
        "recipe": code(config.algo.recipe),
    }


def _held_out(metrics: Sequence[Mapping[str, object]]) -> str:
    """The result before training and after, with 95 % intervals over prompts."""
    measured = [line for line in metrics if held_out_score(line) is not None]
    if not measured:
        return "## Held-out result\n\nNothing was held out.\n"
    chosen = measured if len(measured) == 1 else [measured[0], measured[-1]]
    if chosen[-1].get("eval_reward") is None:
        return _held_out_loss(chosen)
    rows = [
        f"| {line['step']} | {_number(line['eval_reward'])} | {_number(line.get('eval_reward/low'))} to "
        f"{_number(line.get('eval_reward/high'))} | {_number(line.get('eval_num_prompts'))} |"
        for line in chosen
    ]
    header = [
        "## Held-out result",
        "",
        "| step | mean reward | 95 % interval | prompts |",
        "|---|---|---|---|",
    ]
    return "\n".join([*header, *rows, ""])


def _held_out_loss(chosen: Sequence[Mapping[str, object]]) -> str:
    """The same of given answers: how likely the model finds those that it did not learn."""
    names = ("eval_loss", "eval_perplexity", "eval_mean_token_accuracy", "eval_num_completions")
    rows = [
        f"| {line['step']} | {' | '.join(_number(line.get(name)) for name in names)} |" for line in chosen
    ]
    header = [
        "## Held-out result",
        "",
        "| step | loss | perplexity | token accuracy | answers |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*header, *rows, ""])


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "-"


def quoted(text: str) -> str:
    """A YAML scalar in double quotes, on one line."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def code(text: str) -> str:
    """The text as inline code: on one line, with more backticks around it than it has in a row."""
    line = " ".join(_UNSAFE.sub("\ufffd", text).split())
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") or not line else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def cell(text: str) -> str:
    """The text in a cell of a table, which a bar would end, in code too."""
    return text.replace("|", "\\|")


def block(text: str, language: str) -> str:
    """The text as a code block, with a longer fence than any in it."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{_UNSAFE.sub(chr(0xFFFD), text)}\n{fence}\n"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _without_folders(config: Config) -> Config:
    """The settings without the folders that files lie in: they name a machine and its user."""
    data, model, run, reward = config.data, config.model, config.run, config.reward
    eval_path = None if data.eval_path is None else _place(data.eval_path)
    adapter = None if model.adapter is None else _place(model.adapter)
    return config.model_copy(
        update={
            "data": data.model_copy(update={"path": _place(data.path), "eval_path": eval_path}),
            "model": model.model_copy(update={"path": _place(model.path), "adapter": adapter}),
            "run": run.model_copy(update={"dir": PurePath(run.dir).name or "runs"}),
            "reward": reward.model_copy(update={"use": tuple(_name_alone(name) for name in reward.use)}),
        }
    )


def _place(path: str) -> str:
    """A hub id as it is; of a file or folder the name alone."""
    return PurePath(path).name if PurePath(path).is_absolute() or path.startswith(("~", ".")) else path


def _name_alone(spec: str) -> str:
    """A reward without the folder of its file."""
    file, colon, name = spec.rpartition(":")
    return f"{PurePath(file).name}:{name}" if colon else spec


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
