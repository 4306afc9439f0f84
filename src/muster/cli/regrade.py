"""`muster regrade`."""

from typing import Annotated

from muster.cli.flags import Json, Overrides, about, as_mapping


def regrade(
    target: Annotated[str, about("The run's name, or its folder.")],
    /,
    *,
    reward: Annotated[
        tuple[str, ...],
        about("Score the rollouts by this: a name, module:function or file.py:function; again for more."),
    ] = (),
    recipe: Annotated[str | None, about("Weigh them by this recipe; without it, the run's own.")] = None,
    steps: Annotated[str | None, about("Regrade these steps only: 1-5,16.")] = None,
    name: Annotated[
        str | None, about("Keep the regrade under this name; without it, after what was asked.")
    ] = None,
    no_keep: Annotated[bool, about("Print only, and leave the run's folder as it is.")] = False,
    trust: Annotated[
        bool, about("Let functions and reward options that the run's config.toml names be used.")
    ] = False,
    json: Json = False,
    overrides: Overrides = (),
) -> int:
    """Put a run's stored rollouts under another reward or recipe, without sampling again.

    Shows how scores, advantages, clip shares and the coefficient of each token, what multiplies the gradient
    of its logprob, would change. The result goes into the run's folder, where `muster view` finds it.

    **Examples**

    ```text
    muster regrade demo-1 --recipe dr_grpo
    muster regrade demo-1 --reward grade.py:stricter --steps 1-20
    muster regrade demo-1 --reward.weights "[1.0, 0.2]"
    muster regrade demo-1 --algo.objective clip --algo.objective.high 0.28
    ```
    """
    from muster.cli.inspector import parse_steps
    from muster.cli.output import PatientConsole, log_line, print_line
    from muster.cli.regraded import print_regrade
    from muster.cli.targets import needed_run_folder, readable
    from muster.store import keep_regrade, read_meta, to_json

    folder = needed_run_folder(target)
    read_meta(folder)
    chosen = None if steps is None else parse_steps(steps)
    # After what was typed is known to be right: this waits for torch.
    from muster.regrade import Asked
    from muster.regrade import regrade as regraded_by

    settings = as_mapping(overrides)
    asked = Asked(rewards=reward, recipe=recipe, settings=settings, steps=chosen, name=name, trusts=trust)
    with readable(folder):
        found = regraded_by(folder, asked, say=log_line)
    kept = None if no_keep else keep_regrade(folder, found.regrade, found.rollouts)
    if json:
        print_line(to_json({**found.regrade.to_plain(), "file": None if kept is None else str(kept)}))
    else:
        print_regrade(found.regrade, folder, kept, PatientConsole())
    return 0
