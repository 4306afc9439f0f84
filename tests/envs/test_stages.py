"""Environments in this process and in processes of their own: the same answers, and what failures cost."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from muster.envs import Failed, InlineStage, Order, Stage, StagePool
from muster.errors import ConfigError

ROW = {"prompt": "p", "messages": [{"role": "user", "content": "p"}]}
LIMIT_S = 0.6


@pytest.fixture(scope="module")
def pool() -> Iterator[StagePool]:
    """One process, so that what one episode does to it concerns the others."""
    pool = StagePool("toy_environments:Bad", workers=1, time_limit_s=LIMIT_S)
    yield pool
    pool.close()


def reset(*episodes: int) -> list[Order]:
    return [Order(episode, "reset", row=ROW) for episode in episodes]


def say(**texts: str) -> list[Order]:
    return [Order(int(name[1:]), "step", text=text) for name, text in texts.items()]


def heard(answers: Sequence[object]) -> list[object]:
    """The contents of what was answered, or why there is no answer."""
    return [
        one.reason if isinstance(one, Failed) else [m["content"] for m in one["messages"]]  # pyright: ignore[reportIndexIssue]
        for one in answers
    ]


def rewards(stage: Stage, *episodes: int) -> list[object]:
    answers = stage.ask([Order(episode, "reward") for episode in episodes])
    return [one.reason if isinstance(one, Failed) else one["parts"] for one in answers]


def test_an_environment_says_what_it_is():
    assert InlineStage("toy_environments:Patient").described.limits == (3, 3)
    lazy = InlineStage("toy_environments:Lazy").described
    assert lazy.limits == (4, None)
    assert [one["function"]["name"] for one in lazy.tools] == ["shout", "add"]
    assert InlineStage("calculator").described.tools[0]["function"]["name"] == "calculate"


def test_a_tool_is_answered_in_place_of_a_step():
    stage = InlineStage("toy_environments:Lazy")
    stage.ask(reset(0))
    call = '<tool_call>{"name": "add", "arguments": {"first": 2}}</tool_call>'
    [answer] = stage.ask(say(e0=f"{call} and <tool_call>nonsense</tool_call>"))
    assert not isinstance(answer, Failed)
    assert (answer["calls"], answer["failed"]) == (2, 1)
    assert answer["messages"][0] == {"role": "tool", "name": "add", "content": "3"}
    assert rewards(stage, 0) == [{"reward": 0.0}], "step was not asked"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise", "raised ValueError: no such move (toy_environments.py, line"),
        ("leave", "raised SystemExit: 3"),
        ("number", "raised TypeError: step gave 3; a text, a message, a list of messages or None"),
        ("nothing", "raised TypeError: step gave []"),
        ("assistant", "raised TypeError: step gave a message of role 'assistant'"),
    ],
)
def test_what_an_environment_does_wrong_costs_its_episode(pool: StagePool, text: str, reason: str):
    for stage in (InlineStage("toy_environments:Bad"), pool):
        stage.ask(reset(0, 1))
        failed, other = heard(stage.ask(say(e0=text, e1="hello")))
        assert str(failed).startswith(reason)
        assert other == ["You said hello"]
        assert rewards(stage, 1) == [{"length": 1.0, "kind": 0.5}]


@pytest.mark.parametrize(("text", "reason"), [("text", "'much'"), ("nan", "gave NaN")])
def test_a_reward_that_is_no_number_is_a_failure(text: str, reason: str):
    stage = InlineStage("toy_environments:Bad")
    stage.ask(reset(0))
    stage.ask(say(e0=text))
    [told] = rewards(stage, 0)
    assert reason in str(told)


def test_no_reward_is_an_abstention():
    stage = InlineStage("toy_environments:Bad")
    stage.ask(reset(0))
    stage.ask(say(e0="none"))
    assert rewards(stage, 0) == [{}]


@pytest.mark.parametrize(
    ("text", "reason"), [("hang", "timed out after 0.6 s"), ("die", "ended its process")]
)
def test_an_episode_that_takes_its_process_along_costs_no_other(pool: StagePool, text: str, reason: str):
    pool.ask(reset(0, 1, 2))
    pool.ask(say(e0="a", e1="b", e2="c"))
    began = time.monotonic()
    assert heard(pool.ask(say(e0="d", e1=text, e2="e"))) == [["You said d"], reason, ["You said e"]]
    assert time.monotonic() - began < 5
    assert rewards(pool, 0, 2) == [{"length": 2.0, "kind": 0.5}] * 2, "all that was said was said again"


def test_an_episode_that_can_not_be_repeated_fails_with_its_process(tmp_path: Path):
    file = tmp_path / "counting.py"
    file.write_text(
        "import os\n"
        "from pathlib import Path\n"
        "class Counting:\n"
        "    def reset(self, row): return None\n"
        "    def step(self, text):\n"
        "        if text == 'die': os._exit(1)\n"
        f"        place = Path({str(tmp_path / 'count')!r})\n"
        "        count = int(place.read_text()) + 1 if place.exists() else 0\n"
        "        place.write_text(str(count))\n"
        "        return str(count)\n"
        "    def reward(self): return 1\n"
    )
    pool = StagePool(f"{file}:Counting", workers=1, time_limit_s=5)
    pool.ask(reset(0, 1))
    assert heard(pool.ask(say(e0="a"))) == [["0"]]
    died, other = heard(pool.ask(say(e1="die", e0="b")))
    assert died == "ended its process"
    assert "did not repeat itself" in str(other)
    file.write_text(file.read_text() + "\n")
    pool.ask(reset(0))
    pool.ask(say(e0="die"))
    [refused] = heard(pool.ask(reset(1)))
    assert "was changed while the run was on" in str(refused)
    pool.close()


def test_what_is_drawn_follows_from_the_order_alone():
    first, second = InlineStage("toy_environments:Drawing"), InlineStage("toy_environments:Drawing")
    orders = [Order(0, "reset", "r", row=ROW), Order(1, "reset", "r", row=ROW)]
    first.ask(orders)
    second.ask(orders[::-1])
    steps = [Order(0, "step", "a", text="x"), Order(1, "step", "b", text="x")]
    one, two = heard(first.ask(steps))
    assert one != two
    assert heard(second.ask(steps[::-1])) == [two, one]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("calculater", "Did you mean 'calculator'"),
        ("nowhere.py:Thing", "there is no file 'nowhere.py'"),
        ("toy_environments:Nothing", "has no 'Nothing'"),
        ("toy_environments:Unfinished", "has no step"),
        ("toy_environments:os", "a class is expected"),
    ],
)
def test_what_is_no_environment_is_refused_by_name(spec: str, says: str):
    with pytest.raises(ConfigError, match=says):
        InlineStage(spec)


def test_a_pool_refuses_what_a_process_can_not_load():
    with pytest.raises(ConfigError, match="has no step"):
        StagePool("toy_environments:Unfinished", workers=1)


def played(name: str, row: dict[str, object], *texts: str) -> tuple[list[object], object]:
    """What a built-in environment answers, and what it gives in the end."""
    stage = InlineStage(name)
    stage.ask([Order(0, "reset", row={**ROW, **row})])
    answers = [answer for text in texts for answer in stage.ask([Order(0, "step", text=text)])]
    [given] = rewards(stage, 0)
    return [one["messages"] for one in answers if not isinstance(one, Failed)], given


def test_the_calculator_pays_for_the_right_number_and_for_its_use():
    call = '<tool_call>{"name": "calculate", "arguments": {"expression": "53 * 31"}}</tool_call>'
    said, given = played("calculator", {"answer": 1643}, call, "The answer is 1,643.")
    assert said == [[{"role": "tool", "name": "calculate", "content": "1643"}], None]
    assert given == {"right": 1.0, "near": 0.3, "called": 0.2}
    _, given = played("calculator", {"answer": "100"}, "It is 90.")
    assert given == {"right": 0.0, "near": pytest.approx(0.27), "called": 0.0}
    assert played("calculator", {"answer": 100}, "No idea.")[1] == {"right": 0.0, "near": 0.0, "called": 0.0}


def test_the_game_hints_and_pays_for_finding_soon():
    row: dict[str, object] = {"secret": 7, "low": 1, "high": 20}
    said, given = played("guessing_game", row, "15", "Perhaps 3?", "4 or 5", "7")
    assert [None if one is None else one[0]["content"] for one in said] == [  # pyright: ignore[reportIndexIssue]
        "My number is lower than 15. Guess again.",
        "My number is higher than 3. Guess again.",
        "That is not one number. Guess again.",
        None,
    ]
    assert given == {"found": 1.0, "near": 0.5, "soon": pytest.approx(0.125)}
    assert played("guessing_game", row, "17")[1] == {
        "found": 0.0,
        "near": pytest.approx(0.5 * (1 - 10 / 19)),
        "soon": 0.0,
    }
