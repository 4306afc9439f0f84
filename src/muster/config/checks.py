"""What no single field can check: numbers that have to fit each other, and settings that would be ignored."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from muster.config.messages import Problem, wrong
from muster.config.sections import Config, DataConfig
from muster.config.warm_start import useless
from muster.redaction import HIDDEN, secrets_in

ELEMENTWISE = ("adamw", "sgd")
"""Optimizers that step each number of a weight by its own gradients alone."""


def reward_names(use: Sequence[str]) -> list[str]:
    """The names of rewards in options and metrics: their functions' own, numbered from the second on."""
    plain = [spec.rpartition(":")[2] for spec in use]
    earlier = [plain[:place].count(name) for place, name in enumerate(plain)]
    return [f"{name}_{count + 1}" if count else name for name, count in zip(plain, earlier, strict=True)]


def problems(config: Config) -> Iterator[Problem]:
    """Every rule over several fields that the configuration breaks."""
    for rule in (_model, _layout, _data, _schedule, _evaluation, _length_of_run, _secrets):
        yield from rule(config)
    for rule in (useless,) if config.is_warm_start else (_lengths, _answers, _rewards, _sampling, _algorithm):
        yield from rule(config)


def _model(config: Config) -> Iterator[Problem]:
    model = config.model
    if model.lora and model.lora.dropout > 0:
        yield wrong(
            "model.lora.dropout",
            model.lora.dropout,
            "0: with dropout the policy in training is not the policy that sampled, and every ratio is wrong",
        )
    if model.lora and model.adapter:
        yield wrong(
            "model.lora",
            {"rank": model.lora.rank},
            "nothing beside model.adapter, which brings its own rank and targets; leave one of the two out",
            ("model.adapter",),
        )
    if model.quantize and not model.lora and not model.adapter:
        yield wrong(
            "model.quantize",
            model.quantize,
            "with an adapter only, since weights of so few bits can't be trained themselves; add a table "
            "[model.lora], or name a trained model.adapter",
            ("model.lora", "model.adapter"),
        )


def _layout(config: Config) -> Iterator[Problem]:
    if config.run.layout == "replicate":
        return
    model, optim = config.model, config.optim
    if model.lora or model.adapter or model.quantize:
        yield wrong(
            "run.layout",
            config.run.layout,
            '"replicate" with an adapter, or weights of 4 or 8 bits: what is frozen has no gradient and no '
            "optimizer to divide",
            ("model.lora", "model.adapter", "model.quantize"),
        )
    if optim.name not in ELEMENTWISE:
        yield wrong(
            "optim.name",
            optim.name,
            f'{" or ".join(ELEMENTWISE)} where run.layout is "shard": a rank steps its rows of a matrix '
            "without the others",
            ("run.layout",),
        )
    if config.is_warm_start:
        yield wrong("run.layout", config.run.layout, '"replicate" in a warm start')
    if config.engine.kind == "vllm":
        yield wrong(
            "run.layout",
            config.run.layout,
            '"replicate" with servers, which are given all weights by one rank',
            ("engine.kind",),
        )


def _lengths(config: Config) -> Iterator[Problem]:
    limit, completion = config.model.max_tokens, config.sampling.max_tokens
    if completion >= limit:
        yield wrong(
            "sampling.max_tokens",
            completion,
            f"less than model.max_tokens, which is {limit} and holds the prompt too; "
            f"set sampling.max_tokens = {limit // 2} or model.max_tokens = {completion * 2}",
            ("model.max_tokens",),
        )
        return
    prompt = config.data.max_prompt_tokens
    if prompt and prompt + completion > limit:
        yield wrong(
            "data.max_prompt_tokens",
            prompt,
            f"at most {limit - completion}, since prompt and completion share model.max_tokens: "
            f"{prompt} + {completion} = {prompt + completion} is more than {limit}; "
            f"lower it or set model.max_tokens = {prompt + completion}",
            ("model.max_tokens", "sampling.max_tokens"),
        )


def _data(config: Config) -> Iterator[Problem]:
    data = config.data
    if data.raw and data.system is not None:
        yield wrong(
            "data.system",
            data.system,
            "nothing where data.raw is true: a raw prompt has no messages; leave one of the two out",
            ("data.raw",),
        )
    if data.raw and data.chat_template_kwargs:
        yield wrong(
            "data.chat_template_kwargs",
            data.chat_template_kwargs,
            "nothing where data.raw is true: no chat template is used; leave one of the two out",
            ("data.raw",),
        )
    if data.raw and data.environment is not None:
        yield wrong(
            "data.environment",
            data.environment,
            "nothing where data.raw is true: turns are made by the chat template; leave one of the two out",
            ("data.raw",),
        )
    if data.eval_path == data.path and data.eval_split in (None, data.split):
        yield wrong(
            "data.eval_path",
            data.eval_path,
            "other data than data.path: what is trained on is not held out",
            ("data.path", "data.eval_split", "data.split"),
        )


def _answers(config: Config) -> Iterator[Problem]:
    if config.data.completion != DataConfig.model_fields["completion"].default:
        yield wrong(
            "data.completion",
            config.data.completion,
            "nothing where completions are sampled: `muster sft` learns given ones; leave it out",
            ("algo.recipe",),
        )


def _rewards(config: Config) -> Iterator[Problem]:
    reward = config.reward
    names = reward_names(reward.use)
    if not reward.use:
        yield wrong("reward.use", [], "a list of texts, not empty: without a reward no answer is better")
    if "environment" in reward.use and config.data.environment is None:
        yield wrong(
            "reward.use",
            list(reward.use),
            "rewards that can judge what is there: `environment` takes over what data.environment gives, and "
            "none is named",
            ("data.environment",),
        )
    if len(set(reward.use)) < len(reward.use):
        yield wrong("reward.use", list(reward.use), "each reward once; give it more weight instead")
    if reward.weights is not None and len(reward.weights) != len(names):
        yield wrong(
            "reward.weights",
            list(reward.weights),
            f"one weight for each of the {len(names)} rewards in reward.use ({', '.join(names)}), "
            f"not {len(reward.weights)}; set reward.weights = {[1.0] * len(names)}",
            ("reward.use",),
        )
    for key in reward.options:
        if key not in names:
            yield wrong(
                f"reward.options.{key}",
                dict(reward.options[key]),
                f"options of a reward in reward.use: {', '.join(names)}",
                ("reward.use", "reward.options"),
            )
    for key, convention in reward.convention.items():
        if key not in names:
            yield wrong(
                f"reward.convention.{key}",
                convention,
                f"the convention of a reward in reward.use: {', '.join(names)}",
                ("reward.use", "reward.convention"),
            )
    if odd := [name for name in reward.in_process if name not in names]:
        yield wrong("reward.in_process", odd, f"rewards in reward.use: {', '.join(names)}", ("reward.use",))


def _sampling(config: Config) -> Iterator[Problem]:
    sampling = config.sampling
    if sampling.group_size < 2:
        yield wrong(
            "sampling.group_size",
            sampling.group_size,
            "at least 2: the advantage compares the completions of one prompt with each other, and one alone "
            "would never be better or worse; set sampling.group_size = 4 or more",
        )
    if config.engine.ahead and sampling.sync_every > 1:
        yield wrong(
            "engine.ahead",
            config.engine.ahead,
            f"0 where sampling.sync_every is above 1, which is {sampling.sync_every}: what samples ahead is "
            "given the weights of every step; leave one of the two out",
            ("sampling.sync_every",),
        )
    if config.engine.ahead and config.data.environment is not None:
        yield wrong(
            "engine.ahead",
            config.engine.ahead,
            "0 beside data.environment: a turn is sampled after the reply to the last; leave one of the "
            "two out",
            ("data.environment",),
        )
    if sampling.ignore_eos and config.data.environment is not None:
        yield wrong(
            "sampling.ignore_eos",
            True,
            "false beside data.environment: a turn that can't end is not answered",
            ("data.environment",),
        )
    if sampling.ignore_eos and sampling.stop:
        yield wrong(
            "sampling.stop",
            list(sampling.stop),
            "nothing where sampling.ignore_eos is true: no stop is looked for; leave one of the two out",
            ("sampling.ignore_eos",),
        )


def _algorithm(config: Config) -> Iterator[Problem]:
    algo, sampling = config.algo, config.sampling
    rollouts = sampling.prompts_per_step * sampling.group_size
    if sampling.group_size > 1 and algo.minibatches > rollouts:
        yield wrong(
            "algo.minibatches",
            algo.minibatches,
            f"at most {rollouts}: a step has prompts_per_step {sampling.prompts_per_step} x group_size "
            f"{sampling.group_size} = {rollouts} rollouts, and each minibatch needs one; "
            f"set algo.minibatches = {_divisor_at_most(rollouts, 4)}",
            ("sampling.prompts_per_step", "sampling.group_size"),
        )
    if algo.kl_in == "reward" and algo.kl_coef == 0:
        yield wrong(
            "algo.kl_in",
            algo.kl_in,
            "with algo.kl_coef above 0 only: without a coefficient there is no penalty; "
            "set algo.kl_coef = 0.01",
            ("algo.kl_coef",),
        )
    if algo.kl_in == "reward" and config.reward.combine == "normalize_then_sum":
        yield wrong(
            "algo.kl_in",
            algo.kl_in,
            '"loss" where reward.combine is "normalize_then_sum": normalised like a reward, the penalty '
            "would be as strong at every algo.kl_coef",
            ("reward.combine",),
        )
    if algo.overlong_zone and algo.truncated not in (None, "penalize"):
        yield wrong(
            "algo.overlong_zone",
            algo.overlong_zone,
            f'with algo.truncated = "penalize" only, which is "{algo.truncated}"',
            ("algo.truncated",),
        )
    if algo.overlong_zone and algo.overlong_zone > sampling.max_tokens:
        yield wrong(
            "algo.overlong_zone",
            algo.overlong_zone,
            f"at most sampling.max_tokens, which is {sampling.max_tokens}",
            ("sampling.max_tokens",),
        )


def _divisor_at_most(number: int, limit: int) -> int:
    """The largest divisor up to the limit: minibatches of one size."""
    return max(size for size in range(1, limit + 1) if number % size == 0)


def _schedule(config: Config) -> Iterator[Problem]:
    optim = config.optim
    if optim.final_fraction and optim.schedule == "constant":
        yield wrong(
            "optim.final_fraction",
            optim.final_fraction,
            'with optim.schedule = "linear" or "cosine" only: a constant schedule does not fall',
            ("optim.schedule",),
        )


def _evaluation(config: Config) -> Iterator[Problem]:
    if config.eval.every and not config.data.has_eval:
        yield wrong(
            "eval.every",
            config.eval.every,
            "0 without held-out data; name some with data.eval_path or data.eval_split",
            ("data.eval_path", "data.eval_split"),
        )
    longest, limit = config.eval.max_tokens, config.model.max_tokens
    if longest and longest >= limit:
        yield wrong(
            "eval.max_tokens",
            longest,
            f"less than model.max_tokens, which is {limit} and holds the prompt too",
            ("model.max_tokens",),
        )


def _length_of_run(config: Config) -> Iterator[Problem]:
    run = config.run
    if run.steps is not None and run.epochs is not None:
        yield wrong(
            "run.epochs",
            run.epochs,
            f"nothing beside run.steps, which is {run.steps}; give one of the two "
            "(--run.steps null takes a file's away)",
            ("run.steps",),
        )
    if PurePath(run.dir).name == "..":
        yield wrong("run.dir", run.dir, "a folder of its own for runs, such as runs")


def _secrets(config: Config) -> Iterator[Problem]:
    """A configuration is written into the run's folder and the model's card, which others read."""
    for name in Config.model_fields:
        for path in secrets_in(getattr(config, name).model_dump(), name):
            yield Problem(
                tuple(path.split(".")),
                f"is {HIDDEN}; allowed: no secret, since the configuration is written into the run's folder. "
                'Put it into an environment variable and name that here (as in key_env = "NAME"), or read it '
                "in the reward itself",
            )
