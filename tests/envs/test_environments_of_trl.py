"""Environments written for TRL's environment_factory: their methods are tools, their reset takes the row."""

from collections.abc import Mapping

import pytest

from muster.envs import Failed, InlineStage, Order, from_trl
from muster.envs.trl import TrlEnvironment, is_trl
from toy_environments import Echo


class Counter:
    """As TRL's documentation has them: a counter that the model may raise."""

    def __init__(self) -> None:
        self.count = self.goal = 0

    def reset(self, goal: int, **columns: object) -> str | None:
        """Begins at 0."""
        self.goal = goal
        return f" Reach {goal}." if columns.get("tells") else None

    def increment(self, step: int) -> int:
        """
        Raises the counter.

        Args:
            step: By how much.

        Returns:
            The counter.
        """
        self.count += step
        return self.count

    def _hidden(self) -> None: ...


class Paid(Counter):
    """Gives its own reward."""

    def get_reward(self) -> float:
        """1 at the goal."""
        return float(self.count == self.goal)


def by_distance(environments: list[Counter], goal: list[int], **_: object) -> list[float]:
    """A reward function as TRL calls it."""
    return [-abs(one.count - wanted) for one, wanted in zip(environments, goal, strict=True)]


Distant = from_trl(Counter, by_distance)

ROW = {"prompt": "Count.", "messages": [{"role": "user", "content": "Count."}], "goal": 5}
CALL = '<tool_call>{"name": "increment", "arguments": {"step": 5}}</tool_call>'


def play(name: str, row: Mapping[str, object], *texts: str) -> tuple[object, dict[str, float]]:
    """The opening, and the parts at the end."""
    stage = InlineStage(f"test_environments_of_trl:{name}")
    [opening] = stage.ask([Order(0, "reset", row=row)])
    for text in texts:
        stage.ask([Order(0, "step", text=text)])
    [given] = stage.ask([Order(0, "reward")])
    assert not isinstance(opening, Failed)
    assert not isinstance(given, Failed), given
    return opening["messages"], given["parts"]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "test_environments_of_trl", sys.modules[__name__])


def test_public_methods_are_the_tools():
    assert [one.name for one in TrlEnvironment(Paid()).tools] == ["increment"]
    schema = TrlEnvironment(Counter()).tools[0].parameters
    step = {"type": "integer", "description": "By how much."}
    assert schema == {"type": "object", "properties": {"step": step}, "required": ["step"]}


def test_what_reset_gives_goes_behind_the_last_message():
    assert play("Paid", ROW)[0] is None
    assert play("Paid", {**ROW, "tells": True})[0] == [{"role": "user", "content": "Count. Reach 5."}]


def test_a_method_changes_the_environment_that_gives_the_reward():
    assert play("Paid", ROW, CALL, "Done.")[1] == {"Paid": 1.0}
    assert play("Paid", ROW, "Done.")[1] == {"Paid": 0.0}


def test_a_reward_function_is_given_the_environment():
    assert play("Distant", ROW, CALL, CALL, "Done.")[1] == {"by_distance": -5.0}


def test_without_either_there_is_no_reward_of_its_own():
    assert play("Counter", ROW, CALL)[1] == {}


def test_a_method_that_has_to_be_awaited_is_refused():
    class Waiting:
        def reset(self) -> None: ...

        async def look(self, place: str) -> str:
            """Looks."""
            return place

    with pytest.raises(TypeError, match="look has to be awaited"):
        TrlEnvironment(Waiting())


def test_only_what_lacks_our_methods_is_taken_for_one_of_trl():
    assert is_trl(Counter())
    assert not is_trl(Echo())
