"""`muster explain`: teaching pictures, in the terminal, as JSON, or as a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.flags import Json, Overrides, about, as_mapping
from muster.errors import ConfigError

if TYPE_CHECKING:
    from muster.config import Config

    # Only a type: `muster --help` does not wait for rich's tables.
    from muster.pictures import Picture

Html = Annotated[
    Path | None, about("Write the picture with its figures to one page that opens offline.", "--html")
]
"""For a verb's signature."""


def kl(
    *,
    model: Annotated[
        str, about("The model: a run, a folder, a hub id; without it, the embedded one.")
    ] = "smollm2-135m-instruct",
    text: Annotated[
        str | None, about("The text whose next tokens are looked at; its end is the prompt of the bars.")
    ] = None,
    temperature: Annotated[float, about("Of the policy; the reference has 1.")] = 0.9,
    draws: Annotated[int, about("Tokens drawn at each place of the text.")] = 1000,
    top: Annotated[int, about("How many of the likeliest next tokens are shown.")] = 10,
    seed: Annotated[int, about("The same seed draws the same tokens.")] = 3407,
    html: Html = None,
    json: Json = False,
) -> int:
    """The KL estimators against the exact divergence on a real model: mean, bias, spread, gradient.

    **Examples**

    ```text
    muster explain kl
    muster explain kl --text "The capital of France is" --temperature 0.7
    muster explain kl --model my-run --html kl.html
    ```
    """
    from muster.cli.targets import model_of

    path = model_of(model)
    from muster.explain import explain_kl

    given = {} if text is None else {"text": text}
    picture = explain_kl(path, **given, temperature=temperature, num_draws=draws, num_top=top, seed=seed)
    return _show(picture, html, as_json=json)


def clip(
    *,
    recipe: Annotated[
        tuple[str, ...], about("Recipes whose objectives are drawn; without any, all of them.")
    ] = (),
    html: Html = None,
    json: Json = False,
) -> int:
    """The objective of each recipe and its gradient over the ratio, for a good token and a bad one.

    **Examples**

    ```text
    muster explain clip
    muster explain clip --recipe grpo --recipe dapo --html clip.html
    ```
    """
    from muster.explain import explain_clip

    return _show(explain_clip(recipe), html, as_json=json)


def advantages(
    *,
    rewards: Annotated[
        tuple[str, ...], about("Rewards of a group: 1,0,0,0.5; a dash has none. May be given again.")
    ] = (),
    second: Annotated[
        tuple[str, ...],
        about("A second reward of the same rollouts, group by group; shows how both combine."),
    ] = (),
    eps: Annotated[float | None, about("Replaces the number that is added to a deviation.")] = None,
    html: Html = None,
    json: Json = False,
) -> int:
    """How the rewards of groups become advantages under each choice.

    **Examples**

    ```text
    muster explain advantages
    muster explain advantages --rewards 1,0,0,0.5
    muster explain advantages --rewards 1,0 --rewards 1,1 --eps 1e-6
    muster explain advantages --rewards 1,0,1,0 --second 0.1,0.1,0.2,0.2
    ```
    """
    from muster.explain import explain_advantages

    groups = {"groups": rewards} if rewards else {}
    return _show(explain_advantages(**groups, eps=eps, second=second), html, as_json=json)


def weights(
    *,
    lengths: Annotated[str, about("Tokens of the completions, with commas between them.")] = "16,64,256",
    limit: Annotated[int, about("The completion limit, in tokens.")] = 256,
    html: Html = None,
    json: Json = False,
) -> int:
    """What each token of short and long completions counts in the loss.

    **Examples**

    ```text
    muster explain weights
    muster explain weights --lengths 2,4 --limit 8
    ```
    """
    from muster.errors import ConfigError
    from muster.explain import explain_weights

    try:
        numbers = [int(text) for text in lengths.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"--lengths is {lengths!r}; allowed: whole numbers with commas between them, as in 16,64,256."
        ) from error
    return _show(explain_weights(numbers, limit), html, as_json=json)


def next_token(
    file: Annotated[Path | None, about("A TOML file, whose step is taken; without it, a small one.")] = None,
    /,
    *,
    prompt: Annotated[
        str | None, about("The prompt; without it, the first that the file's run would draw.")
    ] = None,
    answer: Annotated[str, about("With a prompt, the column `answer` that rewards may ask for.")] = "",
    top: Annotated[int, about("How many of the likeliest next tokens are shown.")] = 10,
    html: Html = None,
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Take one real step on one group, and show how the probability of the next token moves.

    Nothing is kept. Without a file: a LoRA adapter on the embedded model, 32 completions of 4 tokens,
    rewarded where they contain the answer.

    **Examples**

    ```text
    muster explain next-token
    muster explain next-token --prompt "The sky today is" --answer grey --optim.lr 3e-4
    muster explain next-token run.toml --html step.html
    ```
    """
    from muster.cli.output import log_line
    from muster.cli.train import source_of
    from muster.config import load

    settings = as_mapping(overrides)
    if file is None:
        settings = {**_SMALL_STEP, **settings}
        prompt, answer = prompt or _PROMPT, answer or _ANSWER
    config = load(source_of(file), settings)
    _refuse_code_of(file, config)
    from muster.explain import explain_next_token

    picture = explain_next_token(config, prompt=prompt, answer=answer, num_top=top, say=log_line)
    return _show(picture, html, as_json=json)


def step(
    file: Annotated[Path | None, about("A TOML file, or the folder of a run.")] = None,
    /,
    *,
    html: Html = None,
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Say in numbers what one step of a configuration does. No model is loaded.

    **Examples**

    ```text
    muster explain step run.toml
    muster explain step run.toml --algo.minibatches 4 --algo.passes 2 --algo.kl_coef 0.04
    ```
    """
    from muster.cli.output import log_line
    from muster.cli.train import source_of
    from muster.config import load

    config = load(source_of(file), as_mapping(overrides))
    _refuse_code_of(file, config)
    from muster.explain import explain_step

    return _show(explain_step(config, log_line), html, as_json=json)


def _refuse_code_of(file: Path | None, config: "Config") -> None:
    """Refuses to import what a run's folder names, which may be anybody's, and a warm start."""
    from muster.config import own_code

    if config.is_warm_start:
        raise ConfigError(
            "a warm start learns given answers: there is no group, no reward and no ratio to explain."
        )
    for place, use in own_code(config) if file is not None and file.is_dir() else ():
        raise ConfigError(
            f"{file} is a run's folder, whose {place} is {use!r}: no code is run because a folder names it. "
            "Name the TOML file that the run was made from."
        )


_PROMPT, _ANSWER = "My favourite colour is", " blue"
_SMALL_STEP = {
    "model.path": "smollm2-135m-instruct",
    "model.lora.rank": "32",
    "data.path": "none",
    "data.raw": "true",
    "reward.use": "contains_answer",
    "sampling.group_size": "32",
    "sampling.max_tokens": "4",
    "optim.lr": "1e-3",
}
"""The step that is taken without a file."""

PICTURES = {
    "kl": kl,
    "clip": clip,
    "advantages": advantages,
    "weights": weights,
    "next-token": next_token,
    "step": step,
}
"""By the word after `explain`."""


def _show(picture: "Picture", html: Path | None, *, as_json: bool) -> int:
    """Prints the picture, or writes it to a page."""
    from muster.cli.drawing import draw
    from muster.cli.output import PatientConsole, print_line
    from muster.store import to_json

    if html is not None:
        _write(picture, html)
    if as_json:
        print_line(to_json(picture.to_plain()))
    elif html is None:
        draw(picture, PatientConsole(highlight=False))
    return 0


def _write(picture: "Picture", file: Path) -> None:
    from muster.cli.output import log_line
    from muster.errors import ConfigError
    from muster.files import write_atomic
    from muster.view.picture_page import picture_page

    if not file.absolute().parent.is_dir():
        raise ConfigError(
            f"--html is {file}, but there is no folder {file.absolute().parent}. Make it first."
        )
    page = picture_page(picture).encode("utf-8")
    write_atomic(file, page)
    log_line(f"wrote {file}: {len(page) / 1e6:.1f} MB, opens without a network")
