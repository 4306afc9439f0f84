"""A trained model put to use: measured on held-out data, asked for completions, exported.

What is used may be a run's folder, its `final` model, one of its checkpoints, an adapter, or any model.
"""

import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from muster import assemble, checkpoint, hub, pretrained
from muster.clock import Clock
from muster.config import Config, ModelConfig, load
from muster.data import encode_prompts
from muster.devices import settling
from muster.engine_setup import engine_options, in_turn, is_vllm
from muster.engines.base import Sampling
from muster.engines.local import LocalEngine
from muster.episodes import without_end
from muster.errors import CheckpointError, ConfigError
from muster.export import Gguf, Proof, export_model, form_of, model_card
from muster.inputs import load_held_out, load_training
from muster.policy import Policy
from muster.records import EvalReport, Message, Prompt, Sample, StreamKey
from muster.rewards import check_columns
from muster.run import TOLERANCE, TOLERANCE_LOW_PRECISION, Watchers
from muster.selfcheck import self_check
from muster.staging import end_ids
from muster.store import Line, held_out_scores, read_metrics

PROBES = (
    "Muster gathers a group of answers to one question and makes the better ones more likely.",
    "Question: what is 17 + 25?\nAnswer: ",
)
"""Texts on which an export is compared with what it was made from."""


class Place(NamedTuple):
    """Where a policy comes from."""

    model: ModelConfig
    checkpoint: Path | None
    """Its trained weights, where they are a checkpoint's."""


def evaluate(
    config: Config, *, model_path: Path | None = None, watchers: Watchers | None = None
) -> EvalReport:
    """Held-out results under the configuration, of another model than its own where one is named.

    Without held-out data in the configuration, `data.path` is what is measured on.
    """
    told = watchers or Watchers()
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    engine_options(config)
    config = in_turn(config)
    place = locate(model_path, config) if model_path else Place(config.model, None)
    data = config.data
    with ExitStack() as stack:
        grader = stack.enter_context(closing(assemble.start_grader(config, told.say)))
        stage = assemble.start_stage(config, told.say)
        if stage is not None:
            stack.enter_context(closing(stage))
        samples = load_held_out(config) or load_training(config)
        check_columns(grader.rewards, samples[0].columns, data.eval_path or data.path)
        tokenizer = pretrained.load_tokenizer(place.model.path, told.say)
        items = assemble.encode(config, tokenizer, samples[: config.eval.prompts], told.say, stage)
        scene = assemble.make_scene(config, tokenizer, items, stage)
        policy = load_policy(place, tokenizer, seed=config.run.seed, say=told.say)
        clock = Clock(told.progress, settling(policy.device))
        sampling = assemble.make_sampling(config, policy)
        # vLLM in this process loads the model that is measured.
        measured = config.model_copy(update={"model": place.model})
        collector = assemble.make_collector(measured, policy, grader, 0, clock, scene)
        with closing(collector.engine):
            if is_vllm(collector.engine):
                # A server may hold anything: what vLLM says is held against this policy first.
                self_check(
                    policy,
                    collector.engine,
                    items,
                    sampling=sampling,
                    reference=None,
                    tolerance=TOLERANCE,
                    engine_tolerance=TOLERANCE_LOW_PRECISION,
                )
            return assemble.make_evaluation(config, items, sampling, num_steps=0).run(
                int(place.checkpoint.name) if place.checkpoint else 0, collector, clock
            )


def generate(
    model_path: str,
    prompts: Iterable[str | Sequence[Message]],
    *,
    system: str | None = None,
    raw: bool = False,
    max_tokens: int = 256,
    temperature: float = 1.0,
    n: int = 1,
    seed: int = 3407,
) -> Iterator[list[str]]:
    """`n` completions of each prompt, asked for one after the other: a text, or a conversation.

    A model that a run trained is asked as it was trained: with the run's system message unless
    another is given, its template options and its stop strings.
    """
    if raw and system is not None:
        raise ConfigError("a raw prompt has no system message; leave one of the two out.")
    _refuse_no_completion(n=n, max_tokens=max_tokens, temperature=temperature)
    run = run_around(Path(model_path))
    config = load(run / "config.toml") if run else None
    place = locate(Path(model_path), config)
    tokenizer = pretrained.load_tokenizer(place.model.path)
    policy = load_policy(place, tokenizer, seed=seed)
    room = _room(policy, place.model)
    if max_tokens >= room:
        raise ConfigError(
            f"max_tokens is {max_tokens}, but prompt and completion share {room} tokens. Ask for fewer."
        )
    asking = Asking(config, system, raw, room - max_tokens)
    sampling = Sampling(
        group_size=n,
        max_tokens=max_tokens,
        temperature=temperature,
        stop_ids=pretrained.stop_ids(policy.base, tokenizer),
        stop_strings=config.sampling.stop if config else (),
    )
    engine, ends = LocalEngine(policy), end_ids(policy)
    engine.tune(n)
    for number, prompt in enumerate(prompts):
        ids = asking.ids(prompt, str(number), tokenizer)
        [completions] = engine.generate([Prompt(ids=ids, key=StreamKey(seed, 0, number, 0))], sampling)
        yield [str(tokenizer.decode(without_end(completion.ids, ends))) for completion in completions]


def export(
    config: Config, source: Path, target: Path, *, merge: bool = False, gguf: Gguf | None = None
) -> Proof:
    """Writes what `source` holds to a folder of its own, or a GGUF file, read back and compared.

    `source` is a run's folder, or a checkpoint (`best` is one) or `final` in it. With `merge`, and in a
    GGUF, an adapter becomes part of full weights.
    """
    target = target.absolute()
    if target.exists() and (gguf is not None or not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already and not empty. Name one that is new.")
    place = locate(source, config)
    tokenizer = pretrained.load_tokenizer(place.model.path)
    policy = load_policy(place, tokenizer, seed=config.run.seed)
    run = run_around(source)
    return export_model(
        policy,
        target,
        card=model_card(config, _course(run, place), form=form_of(policy, merge=merge, gguf=gguf)),
        probes=[tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in PROBES],
        base_path=config.model.path,
        merge=merge,
        gguf=gguf,
    )


def _course(run: Path | None, place: Place) -> list[Line]:
    """Metrics of the run up to the checkpoint: what came after it is another model's."""
    lines = read_metrics(run) if run else []
    if place.checkpoint is None:
        return lines
    return [line for line in lines if line["step"] <= int(place.checkpoint.name)]


def push(
    config: Config, source: Path, repo: str, *, merge: bool = False, public: bool = False
) -> tuple[str, Proof]:
    """Exports what `source` holds, verified, and sends it to the hub; its address there and the proof.

    An adapter whose model lies on this machine alone would load nowhere else, so it has to be merged.
    """
    hub.refuse_bad_name(repo)
    with tempfile.TemporaryDirectory(prefix="muster-push-") as folder:
        target = Path(folder) / "model"
        proof = export(config, source, target, merge=merge)
        adapter = target / "adapter_config.json"
        if adapter.is_file() and (Path(base := _base_of(adapter)).exists()):
            raise ConfigError(
                f"the adapter is for {base}, which is on this machine alone, so nobody could load it from a "
                "hub. Push full weights with --merge."
            )
        return hub.push(target, repo, public=public), proof


class Asking(NamedTuple):
    """How a prompt becomes token ids."""

    config: Config | None
    """Of the run that trained the model; None for any other."""
    system: str | None
    raw: bool
    max_prompt_tokens: int

    def ids(
        self, prompt: str | Sequence[Message], name: str, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[int, ...]:
        """The ids of a text, as the user's message or as it is, or of a conversation."""
        data = self.config.data if self.config else None
        kwargs: Mapping[str, object] = data.chat_template_kwargs if data else {}
        [encoded] = encode_prompts(
            [self._sample(prompt, name)],
            tokenizer,
            max_prompt_tokens=self.max_prompt_tokens,
            chat_template_kwargs=kwargs,
        ).prompts
        return encoded.ids

    def _sample(self, prompt: str | Sequence[Message], name: str) -> Sample:
        if not isinstance(prompt, str):
            return Sample(id=name, messages=tuple(prompt))
        data = self.config.data if self.config else None
        if self.raw or (data is not None and data.raw and self.system is None):
            return Sample(id=name, text=prompt)
        system = data.system if data is not None and self.system is None else self.system
        first: tuple[Message, ...] = ({"role": "system", "content": system},) if system is not None else ()
        return Sample(id=name, messages=(*first, {"role": "user", "content": prompt.strip()}))


def run_around(path: Path) -> Path | None:
    """The folder of the run that the path is, or lies in as `final` or a checkpoint; None outside a run."""
    if not path.is_dir() and not _names_best(path):
        return None
    folders = [path.absolute(), *path.absolute().parents[:2]]
    return next((folder for folder in folders if (folder / "meta.json").is_file()), None)


def locate(source: Path, config: Config | None) -> Place:
    """What to load for a run's folder, a checkpoint, an adapter or a model; `config` is the run's."""
    if (source / "meta.json").is_file():
        source = _newest(source)
    if _names_best(source):
        source = _best(source.parent)
    if source.is_dir() and source.parent.name == "checkpoints":
        if config is None:
            raise ConfigError(f"{source} is a checkpoint without its run: no meta.json is above it.")
        if reason := checkpoint.damage(source):
            raise CheckpointError(f"{source} is not a whole checkpoint: {reason}. Name another one.")
        return Place(_without_checkpointing(config.model), source)
    settings = _without_checkpointing(config.model) if config else ModelConfig(path=str(source))
    adapter = source / "adapter_config.json"
    if adapter.is_file() and not (source / "config.json").is_file():
        base = config.model.path if config else _base_of(adapter)
        return Place(_naming(settings, base, str(source)), None)
    return Place(_naming(settings, str(source), None), None)


def load_policy(
    place: Place, tokenizer: PreTrainedTokenizerBase, *, seed: int, say: assemble.Say = lambda _: None
) -> Policy:
    """The policy of that place, on the device that there is."""
    policy = assemble.load_policy(place.model, tokenizer, seed=seed, say=say)
    if place.checkpoint is not None:
        saved = checkpoint.load(place.checkpoint, policy.device)
        checkpoint.put_weights(dict(policy.trainable()), saved.weights, place.checkpoint)
    return policy


def _newest(run: Path) -> Path:
    """The newest whole checkpoint of a run or, where it has none, its `final` model."""
    found, _ = checkpoint.find(run / "checkpoints")
    place = found or run / "final"
    if not place.is_dir():
        raise ConfigError(f"{run} holds neither a whole checkpoint nor a final model yet. Wait for one.")
    return place


def _names_best(source: Path) -> bool:
    """The path is `checkpoints/best` of a run, which no folder is called."""
    return source.name == "best" and source.parent.name == "checkpoints" and not source.exists()


def _best(checkpoints: Path) -> Path:
    """The checkpoint with the highest held-out reward."""
    found = checkpoint.best(checkpoints, held_out_scores(checkpoints.parent))
    if found is None:
        raise ConfigError(
            f"{checkpoints} holds no checkpoint of a step that was evaluated. Name one by its step."
        )
    return found


def _naming(settings: ModelConfig, path: str, adapter: str | None) -> ModelConfig:
    # Full weights are what they are; only below an adapter is there something to quantise.
    quantize = settings.quantize if adapter else None
    return settings.model_copy(update={"path": path, "adapter": adapter, "lora": None, "quantize": quantize})


def _without_checkpointing(settings: ModelConfig) -> ModelConfig:
    """Nothing is trained here, so nothing is worth computing again."""
    return settings.model_copy(update={"gradient_checkpointing": False})


def _base_of(adapter: Path) -> str:
    try:
        base = json.loads(adapter.read_bytes())["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{adapter} does not name the model that the adapter is for.") from error
    return str(base)


def _refuse_no_completion(*, n: int, max_tokens: int, temperature: float) -> None:
    """Refuses numbers that no completion can be sampled with, before a model is loaded."""
    if n < 1:
        raise ConfigError(f"n is {n}; allowed: at least 1 completion per prompt.")
    if max_tokens < 1:
        raise ConfigError(f"max_tokens is {max_tokens}; allowed: at least 1 token.")
    if not 0 <= temperature < math.inf:
        raise ConfigError(f"temperature is {temperature}; allowed: 0, the likeliest token, or more.")


def _room(policy: Policy, settings: ModelConfig) -> int:
    """Tokens that prompt and completion may have together."""
    positions = getattr(policy.base.config.get_text_config(), "max_position_embeddings", None)
    return min(settings.max_tokens, positions) if isinstance(positions, int) else settings.max_tokens
