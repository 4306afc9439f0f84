"""What a script sets, read off its syntax tree: keyword arguments that are literals, and names for such.

The script is never run. What can't be read off, a value that is computed, is told by the text that stands
there.
"""

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.errors import ConfigError

CALLS = (
    "GRPOConfig",
    "LoraConfig",
    "GRPOTrainer",
    "FastLanguageModel.from_pretrained",
    "FastModel.from_pretrained",
    "FastLanguageModel.get_peft_model",
    "FastModel.get_peft_model",
    "AutoModelForCausalLM.from_pretrained",
    "BitsAndBytesConfig",
    "load_dataset",
)
"""Calls whose arguments say something about a run, by the end of their name."""

POSITIONAL: Mapping[str, tuple[str, ...]] = {
    "GRPOConfig": ("output_dir",),
    "GRPOTrainer": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset"),
    "from_pretrained": ("model_name",),
    "load_dataset": ("path", "name"),
}
"""Names of arguments that are given without one, by the last part of the call's name."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

MAX_BYTES = 4_000_000
"""Of a script or a JSON: a larger file is none."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A value that is no literal."""

    text: str
    """As it stands in the script."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The arguments of the calls that were found, by call."""

    source: str
    calls: Mapping[str, Mapping[str, object]]
    """Each value a literal, or `Unread`."""
    repeated: tuple[str, ...] = ()
    """Further calls of one that was read already, each with its line."""
    functions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Functions that the script defines itself, each with its parameters."""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Classes that it defines itself, each with its methods."""
    imports: Mapping[str, str] = field(default_factory=dict)
    """Names that it imports, as `module:name`."""

    def of(self, *names: str) -> Mapping[str, object]:
        """The arguments of the first of these calls that was found; empty without one."""
        return next((self.calls[name] for name in names if name in self.calls), {})


def read(path: Path) -> Found:
    """What a script, or a `.json` of `GRPOConfig` arguments, sets; ConfigError for anything else."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(
                f"{path} has {path.stat().st_size:,} bytes; a script has at most {MAX_BYTES:,}."
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}. Name a script or a JSON of arguments.") from error
    return _of_json(path, text) if path.suffix == ".json" else _of_script(path, text)


def _of_json(path: Path, text: str) -> Found:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not JSON: {error}. Name a JSON object of GRPOConfig arguments."
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}; write an object of GRPOConfig arguments.")
    return Found(source=path.name, calls={"GRPOConfig": values})


def _of_script(path: Path, text: str) -> Found:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not Python: {error}. Name a script or a JSON of arguments.") from error
    names = dict(_assigned(tree))
    calls: dict[str, dict[str, object]] = {}
    repeated: list[str] = []
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(found, key=lambda node: node.lineno):
        if (name := _name_of(node)) is None:
            continue
        if name in calls:
            repeated.append(f"{name} on line {node.lineno}")
        else:
            calls[name] = dict(_arguments(node, name, names))
    if not calls:
        raise ConfigError(
            f"{path} calls none of {', '.join(CALLS[:4])}, so there is nothing to convert. Name the script "
            "that makes the GRPOConfig, or a JSON of its arguments."
        )
    return Found(
        source=path.name,
        calls=calls,
        repeated=tuple(repeated),
        functions={node.name: _parameters(node) for node in tree.body if isinstance(node, _FUNCTIONS)},
        classes={
            node.name: tuple(one.name for one in node.body if isinstance(one, _FUNCTIONS))
            for node in tree.body
            if isinstance(node, ast.ClassDef)
        },
        imports={
            alias.asname or alias.name: f"{node.module}:{alias.name}"
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        },
    )


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    found = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return tuple(one.arg for one in found)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that are given a value once, anywhere; a name of several values says nothing."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                # model, tokenizer = FastLanguageModel.from_pretrained(...): the first is the model.
                first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
                if isinstance(first, ast.Name):
                    found.setdefault(first.id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(node.value or ast.Constant(None))
    return ((name, values[0]) for name, values in found.items() if len(values) == 1)


def _name_of(call: ast.Call) -> str | None:
    """Which of the calls it is."""
    text = ast.unparse(call.func)
    return next((name for name in CALLS if text == name or text.endswith(f".{name}")), None)


def _arguments(call: ast.Call, name: str, names: Mapping[str, ast.expr]) -> Iterator[tuple[str, object]]:
    positional = POSITIONAL.get(name.rpartition(".")[2], ())
    for key, value in zip(positional, call.args, strict=False):
        yield key, _value(value, names)
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, _value(keyword.value, names)
            continue
        inner = names.get(keyword.value.id) if isinstance(keyword.value, ast.Name) else keyword.value
        if isinstance(inner, ast.Dict) and all(isinstance(key, ast.Constant) for key in inner.keys):
            for key, value in zip(inner.keys, inner.values, strict=True):
                assert isinstance(key, ast.Constant)
                yield str(key.value), _value(value, names)
        else:
            yield f"**{ast.unparse(keyword.value)}", Unread(text=ast.unparse(keyword.value))


def _value(node: ast.expr, names: Mapping[str, ast.expr], depth: int = 0) -> object:
    """The literal, a name of one followed; else what stands there."""
    if isinstance(node, ast.Name) and node.id in names and depth < 10:
        value = _value(names[node.id], names, depth + 1)
        return Unread(text=node.id) if isinstance(value, Unread) else value
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, names, depth + 1) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv):
        return _arithmetic(node, names, depth)
    return Unread(text=ast.unparse(node))


def _arithmetic(node: ast.BinOp, names: Mapping[str, ast.expr], depth: int) -> object:
    """Sums, differences and products of numbers, such as `max_seq_length - max_prompt_length`."""
    if depth > 10:
        return Unread(text=ast.unparse(node))
    left, right = (_value(side, names, depth + 1) for side in (node.left, node.right))
    if not all(isinstance(side, int | float) and abs(side) < 1e12 for side in (left, right)):
        return Unread(text=ast.unparse(node))
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case _:
            return left // right if right else Unread(text=ast.unparse(node))
