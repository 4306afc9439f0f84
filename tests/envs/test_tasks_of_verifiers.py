"""Tasks written for verifiers v1: a prompt, an answer, and marked rewards that read the conversation."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.envs import Failed, InlineStage, Order, from_verifiers


def marked(weight: float = 1.0, priority: int = 0) -> Any:
    """What verifiers' `@reward(weight=..., priority=...)` leaves on a function."""

    def mark(function: Any) -> Any:
        function.reward, function._vf_weight, function.reward_priority = True, weight, priority
        return function

    return mark


class Sum:
    """As verifiers' README has tasks: data, and rewards that ask for it and the trace by name."""

    def __init__(self, **data: object) -> None:
        self.data = SimpleNamespace(**{"system_prompt": None, **data})
        self.config = SimpleNamespace(judges=[], rewards={}, stops={})

    @marked(weight=2.0)
    async def right(self, task: Any, trace: Any) -> float:
        """Awaited, as most are."""
        return float(trace.last_reply == task.answer)

    @marked(weight=0.5, priority=1)
    async def counted(self, trace: Any) -> dict[str, float]:
        """Several by name, one of which another reward reads."""
        trace.record_metric("letters", len(trace.last_reply))
        return {"turns": trace.num_turns, "messages": len(trace.messages)}

    @marked()
    def brief(self, trace: Any, runtime: object = None) -> float | None:
        """Called after the other, for its lower priority; a runtime it can do without."""
        return -trace.metrics["letters"] if runtime is None else None


class Sums:
    """A taskset."""

    tasks: Sequence[object] = (
        Sum(prompt="1 + 1?", answer="2"),
        Sum(prompt=[SimpleNamespace(role="user", content="2 + 3?")], answer="5", system_prompt="Add."),
    )

    def __iter__(self) -> Iterator[object]:
        return iter(self.tasks)


Played = from_verifiers(Sums)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "test_tasks_of_verifiers", sys.modules[__name__])


def told(*orders: Order) -> list[Any]:
    """What a stage over the tasks answers, one order after the other."""
    stage = InlineStage("test_tasks_of_verifiers:Played")
    return [stage.ask([order])[0] for order in orders]


def row_of(place: int, **changes: object) -> dict[str, object]:
    row = Played.rows()[place]
    messages = row["prompt"]
    assert isinstance(messages, list)
    return {"messages": messages, "prompt": messages[-1]["content"], "task": row["task"], **changes}


def test_rows_hold_the_prompts_and_which_task_it_is(tmp_path: Path):
    Played.write(tmp_path / "sums.jsonl")
    first, second = map(json.loads, (tmp_path / "sums.jsonl").read_text().splitlines())
    assert first == {"prompt": [{"role": "user", "content": "1 + 1?"}], "task": 0}
    assert second["prompt"] == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "2 + 3?"},
    ]


def test_an_answer_gets_each_reward_times_its_weight():
    opening, end, given = told(
        Order(0, "reset", row=row_of(1)), Order(0, "step", text=" 5 "), Order(0, "reward")
    )
    assert opening["messages"] is None
    assert end["messages"] is None
    assert given["parts"] == {"turns": 0.5, "messages": 1.5, "right": 2.0, "brief": -1.0}


def test_a_row_of_other_data_costs_its_rollout():
    for row, said in (({"task": 7}, "the row's task is 7, and there are 2"), ({"prompt": "9?"}, "of task 0")):
        [failed] = told(Order(0, "reset", row=row_of(0, **row)))
        assert isinstance(failed, Failed)
        assert said in failed.reason


def test_what_a_trace_is_not_told_is_said_by_name():
    class Curious(Sum):
        @marked()
        def right(self, trace: Any) -> float:
            return trace.timing.total

    Sums.tasks, before = [Curious(prompt="1 + 1?", answer="2")], Sums.tasks
    try:
        environment = from_verifiers(Sums)()
        environment.reset({"task": 0, "prompt": "1 + 1?"})
        environment.step("2")
        with pytest.raises(AttributeError, match=r"trace\.timing is nothing that Muster can tell"):
            environment.reward()
    finally:
        Sums.tasks = before


def refused(task: object) -> str:
    class One(Sums):
        tasks = (task,)

    with pytest.raises(ValueError) as caught:
        from_verifiers(One).rows()
    return str(caught.value)


def test_tasks_that_need_a_server_a_container_or_a_judge_are_refused_before_work_starts():
    class Boxed(Sum):
        NEEDS_CONTAINER = True

    class Served(Sum):
        @classmethod
        def toolsets(cls, config: object) -> list[object]:
            return [object()]

    class Prepared(Sum):
        async def setup(self, trace: Any, runtime: Any) -> None:
            await runtime.run("make")

    class Run(Sum):
        @marked()
        def right(self, runtime: Any) -> float:
            return runtime.exit_code

    class Mute(Sum):
        right = counted = brief = None

    data = {"prompt": "1 + 1?", "answer": "2"}
    assert "Boxed needs a container" in refused(Boxed(**data))
    assert "Served has toolsets" in refused(Served(**data))
    assert "Prepared.setup needs a runtime" in refused(Prepared(**data))
    assert "its reward right asks for runtime" in refused(Run(**data))
    assert "no method that is marked" in refused(Mute(**data))
    judged = Sum(**data)
    judged.config.judges = ["one"]
    assert "has judges in its configuration" in refused(judged)
    assert "has no prompt" in refused(Sum(prompt=None))
    assert "is no text" in refused(Sum(prompt=[{"role": "user", "content": [{"type": "image_url"}]}]))


def test_tasks_without_end_or_without_one_are_refused():
    class Endless(Sums):
        bounded = False

    class Empty(Sums):
        tasks = ()

    with pytest.raises(ValueError, match=r"Endless has no last task; bound it with take\(n\)"):
        from_verifiers(Endless).rows()
    with pytest.raises(ValueError, match="Empty has no task"):
        from_verifiers(Empty).rows()
