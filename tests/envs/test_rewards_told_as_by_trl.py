"""What reward functions of TRL are told of an episode, and tools as TRL tells a model of them."""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers.utils.chat_template_utils import get_json_schema

from muster.clock import Clock
from muster.engines.base import Sampling
from muster.engines.fake import FakeEngine
from muster.envs import Failed, Glue, InlineStage, Order, from_trl, tool
from muster.envs.trl import TrlEnvironment, is_trl
from muster.episodes import Play, Played, Scene, Start
from muster.records import GradingRequest, Message, Prompt, Sample, StreamKey
from muster.rewards import InlineGrader, load_rewards
from muster.rewards.calling import Logged, TrainerState
from muster.toolcalls import with_calls
from tiny import END, ids_of, tiny_tokenizer

SEEN: list[dict[str, Any]] = []
"""What the reward function was called with."""


class Counter:
    """A counter of TRL's documentation."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self, goal: int, **columns: object) -> str:
        """Begins at 0."""
        self.count = 0
        return f" Reach {goal}."

    def increment(self, step: int) -> dict[str, int]:
        """Raises the counter.

        Args:
            step: By how much.
        """
        self.count += step
        return {"count": self.count}

    async def get_reward(self) -> float:
        """Awaited, as a judge's would be."""
        return 0.5


def seeing(environments: list[Counter], **told: Any) -> list[float | None]:
    """Keeps what it is told."""
    SEEN.append({"environments": environments, **told})
    told["log_metric"]("count", environments[0].count)
    told["log_extra"]("goals", told["goal"])
    return [float(environments[0].count)]


async def abstaining(environments: list[Counter], **_: Any) -> list[float | None]:
    """Has no verdict."""
    return [None]


def two(environments: list[Counter], **_: Any) -> list[float]:
    """One too many."""
    return [1.0, 2.0]


Seen = from_trl(Counter, [seeing, abstaining], max_turns=3)
Wrong = from_trl(Counter, two)

CALL = '<tool_call>{"name": "increment", "arguments": {"step": 5}}</tool_call>'
OPENING: tuple[Message, ...] = ({"role": "user", "content": "Count. Reach 5."},)
BEGUN = "<|im_start|>user\nCount. Reach 5.<|im_end|>\n<|im_start|>assistant\n"
CALLED = {"type": "function", "function": {"name": "increment", "arguments": {"step": 5}}}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_rewards_told_as_by_trl", sys.modules[__name__])
    SEEN.clear()


def played(*turns: str) -> tuple[Played, Logged]:
    """One episode by a script, as the fourth step of nine."""
    tokenizer, logged = tiny_tokenizer(), Logged()
    play = Play(
        scene=Scene(
            stage=InlineStage("test_rewards_told_as_by_trl:Seen"),
            glue=Glue(tokenizer, {}, OPENING),
            max_tokens=512,
        ),
        engine=FakeEngine(
            lambda prompt: [turns[prompt.branch.turn if prompt.branch else 0]], num_vocab=259, encode=ids_of
        ),
        tokenizer=tokenizer,
        end_ids=frozenset({2}),
        sampling=Sampling(group_size=1, max_tokens=256, stop_ids=frozenset({2})),
        clock=Clock(),
        step=4,
        num_steps=9,
        logged=logged,
    )
    sample = Sample(
        id="0", messages=({"role": "user", "content": "Count."},), columns={"goal": 5, "note": "x"}
    )
    prompt = Prompt(ids=ids_of(BEGUN), key=StreamKey(seed=3, step=4, slot=0, attempt=0))
    [[one]] = play.groups([Start(sample, OPENING, prompt)])
    return one, logged


def test_a_reward_function_is_told_every_turn_and_what_tools_answered():
    one, logged = played(f"I count.\n{CALL}", f"{CALL}{CALL}", "Done.")
    [told] = SEEN
    assert told["prompts"] == [[*OPENING]], "with what reset gave behind it"
    assert told["completions"] == [
        [
            {"role": "assistant", "content": "I count.", "tool_calls": [CALLED]},
            {"role": "tool", "name": "increment", "content": "{'count': 5}"},
            {"role": "assistant", "content": "", "tool_calls": [CALLED, CALLED]},
            {"role": "tool", "name": "increment", "content": "{'count': 10}"},
            {"role": "tool", "name": "increment", "content": "{'count': 15}"},
            {"role": "assistant", "content": "Done."},
        ]
    ]
    assert told["completion_ids"] == [list(one.completion.ids)], "results among them"
    assert [environment.count for environment in told["environments"]] == [15]
    assert (told["goal"], told["note"]) == ([5], ["x"])
    assert told["trainer_state"] == TrainerState(global_step=4, max_steps=9)
    assert set(told) == {
        "prompts", "completions", "completion_ids", "environments", "goal", "note", "trainer_state",
        "log_metric", "log_extra",
    }  # fmt: skip
    assert one.episode.parts == {"seeing": 15.0, "Counter": 0.5}
    assert (logged.metrics, logged.extras) == ({"count": [15.0]}, {"goals": [5]})


def test_what_the_policy_never_heard_is_not_told():
    played(CALL, CALL, CALL)
    [told] = SEEN
    assert [message["role"] for message in told["completions"][0]] == [
        "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip


def test_a_function_that_gives_other_than_one_number_fails_its_episode():
    stage = InlineStage("test_rewards_told_as_by_trl:Wrong")
    row = {"prompt": "Count.", "messages": [{"role": "user", "content": "Count."}], "goal": 5}
    stage.ask([Order(0, "reset", row=row)])
    [failed] = stage.ask([Order(0, "reward")])
    assert isinstance(failed, Failed)
    assert "the reward function two gave [1.0, 2.0]; a list of one is expected" in failed.reason


def test_functions_in_reward_use_read_calls_too():
    one, _ = played(CALL, "Done.")
    request = GradingRequest(
        sample=Sample(id="0", messages=OPENING), prompt_text="", completion=one.completion, text="",
        plain_text="", episode=one.episode,
    )  # fmt: skip
    seen: list[object] = []

    def count_calls(completions: list[list[dict[str, Any]]]) -> list[float]:
        seen.append(completions)
        return [float(sum(len(m.get("tool_calls", ())) for m in messages)) for messages in completions]

    [score] = InlineGrader(load_rewards([count_calls], None, {})).grade([request], step=1, num_steps=1)
    assert score.value == 1.0
    assert seen == [SEEN[0]["completions"]]


def of_trl(path: str) -> Path:
    found = importlib.util.find_spec("trl")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0], path)


@pytest.mark.parametrize(
    "text",
    [
        "Done.",
        CALL,
        f"I count.\n{CALL}",
        f"{CALL}\n{CALL}",
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
    ],
)
def test_messages_are_those_that_trl_reads_off_the_tokens(text: str):
    # TRL's own template for Qwen3 and its kin, by which it parses with transformers' parser.
    tree = ast.parse(of_trl("chat_template_utils.py").read_text(encoding="utf-8"))
    [template] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "qwen3_template"
    ]
    tokenizer = tiny_tokenizer()
    tokenizer.response_template = template
    theirs = tokenizer.parse_response(list(ids_of(text + END)), prefix=list(ids_of(BEGUN)))
    assert isinstance(theirs, dict)
    ours = with_calls({"role": "assistant", "content": text})
    assert {"content": "", **theirs} == ours


def harbor() -> ModuleType:
    """TRL's environments in Harbor's sandboxes, from their file: the package wants what isn't needed here."""
    spec = importlib.util.spec_from_file_location("harbor_of_trl", of_trl("experimental/harbor/_env.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_environment_that_trl_ships_is_taken_as_it_is():
    shipped = harbor().HarborBashEnv

    class Boxed(shipped):
        """Harbor's, without the sandbox."""

        def __init__(self) -> None:
            self._env = None

        def reset(self, task_dir: str, **columns: object) -> str:
            self.task_dir = task_dir
            return self.PROMPT_SUFFIX

        def _exec(self, command: str, timeout: int = 180) -> str:
            return f"{command} in {self.task_dir}"

        def __del__(self) -> None: ...

    def paid(environments: list[Any], **_: object) -> list[float]:
        return [environment.reward for environment in environments]

    assert is_trl(Boxed()), "its reward is a number that is read, no method"
    environment = TrlEnvironment(Boxed(), [paid])
    [bash] = environment.tools
    theirs = get_json_schema(shipped.bash)["function"]
    del theirs["return"]
    assert bash.schema == {"type": "function", "function": theirs}
    messages = [{"role": "user", "content": "Do it."}]
    opening = environment.reset({"messages": messages, "prompt": "Do it.", "task_dir": "/box"})
    assert opening == [{"role": "user", "content": f"Do it.{shipped.PROMPT_SUFFIX}"}]
    assert bash.function(command="ls") == "ls in /box"


def test_tools_are_told_as_transformers_tells_them():
    def look(place: str, days: int = 1, marks: list[int] = []) -> str:  # noqa: B006
        """
        Looks at a place.

        Twice.

        Args:
            place: Where to look, and
                how long.
            days (`int`, *optional*): How many.
            marks: What to see.

        Returns:
            What is seen.
        """
        return place

    theirs = get_json_schema(look)["function"]
    del theirs["return"]
    assert tool(look).schema == {"type": "function", "function": theirs}
