"""The environment that a trainer is handed: a factory, tools, and how often tools are called."""

from collections.abc import Sequence
from typing import NamedTuple

from muster.fromtrl.draft import Arguments, Draft
from muster.fromtrl.reading import Found, Unread

FILE, NAME = "environments.py", "Played"
"""Where the environment goes that has to be put together, and what it is called."""


class Played(NamedTuple):
    """What an environment means for the rewards."""

    is_there: bool = False
    takes: tuple[str, ...] = ()
    """Reward functions that ask for `environments`, which `from_trl` calls."""
    pays: bool = False
    """It gives a reward of its own."""


def environment(draft: Draft, found: Found, trainer: Arguments, grpo: Arguments) -> Played:
    """Sets `data.environment` where the trainer has a factory or tools.

    A class alone is one as it is. What comes with tools, a limit or a function that reads the environments is
    put together by `from_trl`, in a line that the report gives.
    """
    factory, tools = _texts(trainer.given.get("environment_factory")), _texts(trainer.given.get("tools"))
    calls = grpo.whole("max_tool_calling_iterations", 0, 0)
    if len(factory) > 1 or any(text.startswith("{") for text in factory):
        draft.tell(
            f"GRPOTrainer(environment_factory={', '.join(factory)}): one environment a run here; write one "
            "that looks at the row's column `environment`"
        )
        return Played()
    if not (factory or tools):
        if calls:
            told = f"GRPOConfig(max_tool_calling_iterations={calls})"
            draft.tell(f"{told}: the max_turns of an environment, {calls + 1}")
        return Played()
    takes = tuple(
        text
        for text in _texts(trainer.given.get("reward_funcs"))
        if "environments" in found.functions.get(text, ())
    )
    if factory and factory[0].isidentifier() and not (tools or calls or takes):
        spec = placed(draft, found, factory[0], FILE, "environment")
        draft.set("data.environment", spec, "environment_factory")
    else:
        draft.set("data.environment", f"{FILE}:{NAME}", "environment_factory, tools")
        draft.tell(
            f"write {FILE} beside the run's file, with what it names from {found.source}, and in it: from "
            f"muster.envs import from_trl; {NAME} = {_put_together(factory, takes, tools, calls)}"
        )
    if not calls:
        draft.tell(
            "tools are called any number of times there; here an environment ends after 8 turns where it has "
            "no max_turns"
        )
    return Played(is_there=True, takes=takes, pays=bool(factory) and _pays(draft, found, factory[0]))


def _pays(draft: Draft, found: Found, factory: str) -> bool:
    """The class gives a reward of its own; told where the script doesn't show it."""
    if factory not in found.classes:
        draft.tell(f'where {factory} has get_reward, "environment" belongs into reward.use')
    return "get_reward" in found.classes.get(factory, ())


def placed(draft: Draft, found: Found, text: str, file: str, what: str) -> str:
    """Where a run finds a name of the script; told to be moved where the script itself defines it."""
    if text in found.imports:
        return found.imports[text]
    draft.tell(
        f"{what} {text}: move it from {found.source} to {file} beside the run's file, since loading it from "
        "the script would run the script"
    )
    return f"{file}:{text}"


def _put_together(factory: Sequence[str], takes: Sequence[str], tools: Sequence[str], calls: int) -> str:
    """The call that makes the environment."""
    reward = takes[0] if len(takes) == 1 else f"[{', '.join(takes)}]"
    parts = [
        *(factory or ["None"] * bool(takes)),
        *([reward] if takes else []),
        *([f"tools=[{', '.join(tools)}]"] if tools else []),
        # TRL counts the rounds of calls; after the last one the policy speaks once more.
        *([f"max_turns={calls + 1}"] if calls else []),
    ]
    return f"from_trl({', '.join(parts)})"


def _texts(value: object) -> list[str]:
    """What was handed over as it stands in the script; nothing for None."""
    items = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return [item.text if isinstance(item, Unread) else str(item) for item in items]
