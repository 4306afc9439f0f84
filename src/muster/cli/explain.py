"""`muster explain`: teaching pictures, in the terminal, as JSON, or as a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.flags import Json, about

if TYPE_CHECKING:
    # Only a type: `muster --help` does not wait for rich's tables.
    from muster.pictures import Picture

Html = Annotated[
    Path | None, about("Write the picture with its figures to one page that opens offline.", "--html")
]
"""For a verb's signature."""


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
    ```
    """
    from muster.explain import explain_advantages

    return _show(
        explain_advantages(rewards, eps) if rewards else explain_advantages(eps=eps), html, as_json=json
    )


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


PICTURES = {"clip": clip, "advantages": advantages, "weights": weights}
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
