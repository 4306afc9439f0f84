"""`muster sft`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from muster.cli.flags import Json, Overrides, Profile, Requeue, Resume, about, as_mapping
from muster.cli.train import TABLE_EVERY, carry_out, source_of
from muster.errors import ConfigError


def sft(
    source: Annotated[
        Path | None,
        about("Data with answers, a TOML file, or the folder of a run to train on its configuration."),
    ] = None,
    /,
    *,
    resume: Resume = False,
    requeue: Requeue = False,
    table_every: Annotated[
        int, about("Steps between tables of answers on the terminal; 0 prints none.")
    ] = TABLE_EVERY,
    profile: Profile = False,
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Warm a model up on given answers.

    Learns the answers of prompt-answer pairs, or every answer of conversations, and nothing else; then
    `muster train` goes on from the model in the run's folder, `runs/NAME/final`. Stops, resumes and is shown
    like any run.

    **Examples**

    ```text
    muster sft answers.jsonl --model.path smollm2-135m-instruct
    muster sft warm.toml
    muster sft warm.toml --optim.lr 1e-5 --run.epochs 2
    muster sft warm.toml --resume
    ```
    """
    settings = settings_of(source, as_mapping(overrides))
    is_toml = source is not None and (source.is_dir() or source.suffix == ".toml")
    file = source_of(source) if is_toml else None
    return carry_out(
        file,
        settings,
        stem_of=source,
        resume=resume,
        requeue=requeue,
        profile=profile,
        as_json=json,
        table_every=table_every,
    )


def settings_of(source: Path | None, settings: Mapping[str, str]) -> dict[str, str]:
    """The flags with what the verb itself sets: the recipe, and the data where the source is no TOML file."""
    if "algo.recipe" in settings:
        raise ConfigError("--algo.recipe has no use here: `muster sft` learns given answers. Leave it out.")
    own = {"algo.recipe": "sft"}
    if source is not None and not source.is_dir() and source.suffix != ".toml":
        if "data.path" in settings:
            raise ConfigError(f"data is given twice: {source} and --data.path {settings['data.path']}.")
        own["data.path"] = str(source)
    return {**settings, **own}
