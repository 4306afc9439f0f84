"""Scripts of TRL with tools and environments as runs, and the line of Python that puts one together."""

import ast
import inspect
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import BitsAndBytesConfig

from muster.envs import InlineStage, Order
from muster.fromtrl import BITS_OPTIONS, TRAINER_OPTIONS, Converted, converted, read

SCRIPT = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from my_rewards import brevity

class Counter:
    def reset(self, goal, **columns):
        self.count = 0

    def increment(self, step: int) -> int:
        '''Raises the counter.

        Args:
            step: By how much.
        '''
        self.count += step
        return self.count

def near(environments, goal, **columns):
    return [-abs(one.count - wanted) for one, wanted in zip(environments, goal)]

def plain(completions, **columns):
    return [float(len(messages)) for messages in completions]

def add(first: int, second: int) -> int:
    '''Adds.'''
    return first + second

trainer = GRPOTrainer(
    model="owner/model",
    TRAINER
    args=GRPOConfig("out", ARGS),
    train_dataset=load_dataset("json", data_files="goals.jsonl", split="train"),
)
"""


def of_script(folder: Path, trainer: str, args: str = "max_steps=3", script: str = SCRIPT) -> Converted:
    path = folder / "train.py"
    path.write_text(script.replace("TRAINER", trainer).replace("ARGS", args), encoding="utf-8")
    return converted(read(path))


def made_by(found: Converted) -> str:
    """What follows `Played = ` in the report."""
    [line] = [line for line in found.report if "Played = " in line]
    return line.partition("Played = ")[2]


def test_a_class_for_the_factory_is_the_environment_as_it_is(tmp_path):
    found = of_script(tmp_path, "reward_funcs=plain, environment_factory=Counter,")
    assert found.config.data.environment == "environments.py:Counter"
    assert found.config.reward.use == ("rewards.py:plain",)
    told = "\n".join(found.report)
    assert "environment Counter: move it from train.py to environments.py" in told
    assert "an environment ends after 8 turns where it has no max_turns" in told
    assert "environment_factory=" not in told, "it isn't left over"


def test_an_environment_that_pays_is_a_reward_beside_the_functions(tmp_path):
    paying = SCRIPT.replace(
        "    def increment", "    def get_reward(self):\n        return 1.0\n\n    def increment"
    )
    found = of_script(tmp_path, "environment_factory=Counter,", script=paying)
    assert found.config.reward.use == ("environment",)
    trainer = "environment_factory=Counter, reward_funcs=[plain, brevity],"
    found = of_script(tmp_path, trainer, "reward_weights=[0.5, 2.0]", paying)
    assert found.config.reward.use == ("rewards.py:plain", "my_rewards:brevity", "environment")
    assert found.config.reward.weights == (0.5, 2.0, 1.0)


def test_tools_a_limit_and_a_function_that_reads_environments_are_put_together(tmp_path):
    trainer = "reward_funcs=[near, plain], environment_factory=Counter, tools=[add],"
    found = of_script(tmp_path, trainer, "max_tool_calling_iterations=3")
    assert found.config.data.environment == "environments.py:Played"
    assert found.config.reward.use == ("rewards.py:plain", "environment")
    assert made_by(found) == "from_trl(Counter, near, tools=[add], max_turns=4)"
    assert made_by(of_script(tmp_path, "tools=[add], reward_funcs=plain,")) == "from_trl(tools=[add])"
    assert made_by(of_script(tmp_path, "environment_factory=lambda: Counter(), reward_funcs=plain,")) == (
        "from_trl(lambda: Counter())"
    )


def test_what_the_report_says_is_an_environment_that_runs(tmp_path):
    trainer = "reward_funcs=near, environment_factory=Counter, tools=[add],"
    line = made_by(of_script(tmp_path, trainer, "max_tool_calling_iterations=3"))
    named = "".join(
        f"{ast.unparse(node)}\n"
        for node in ast.parse(SCRIPT.replace("TRAINER", "").replace("ARGS", "")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    )
    text = f"from muster.envs import from_trl\n{named}Played = {line}\n"
    (tmp_path / "environments.py").write_text(text, encoding="utf-8")
    stage = InlineStage(f"{tmp_path / 'environments.py'}:Played")
    assert stage.described.limits.max_turns == 4
    assert [one["function"]["name"] for one in stage.described.tools] == ["add", "increment"]
    row = {"prompt": "Count.", "messages": [{"role": "user", "content": "Count."}], "goal": 5}
    calls = [
        {"name": "increment", "arguments": {"step": 2}},
        {"name": "add", "arguments": {"first": 1, "second": 2}},
    ]
    turn = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
    stage.ask([Order(0, "reset", row=row)])
    [answered] = stage.ask([Order(0, "step", text=turn)])
    assert [message["content"] for message in answered["messages"]] == ["2", "3"]  # pyright: ignore[reportIndexIssue]
    [given] = stage.ask([Order(0, "reward")])
    assert given["parts"] == {"near": -3.0}  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(
    ("trainer", "args", "says"),
    [
        ("environment_factory={'a': Counter}, reward_funcs=plain,", "max_steps=3", "one environment a run"),
        ("reward_funcs=plain,", "max_tool_calling_iterations=3", "the max_turns of an environment, 4"),
        ("environment_factory=Imported, reward_funcs=plain,", "max_steps=3", "where Imported has get_reward"),
    ],
)
def test_what_is_no_environment_here_is_told(tmp_path, trainer, args, says):
    found = of_script(tmp_path, trainer, args)
    assert any(says in line for line in found.report), found.report


def test_arguments_of_the_trainer_and_of_bits_are_all_known_and_on_the_page():
    bits = inspect.signature(BitsAndBytesConfig.__init__).parameters
    assert list(BITS_OPTIONS) == [name for name in bits if name not in ("self", "kwargs")]
    package = find_spec("trl")
    assert package is not None
    assert package.submodule_search_locations is not None
    source = Path(package.submodule_search_locations[0], "trainer", "grpo_trainer.py")
    # Read, not imported: that would load all that trains.
    [trainer] = [
        node
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "GRPOTrainer"
    ]
    [init] = [node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    assert list(TRAINER_OPTIONS) == [argument.arg for argument in init.args.args][1:]
    page = (Path(__file__).parents[2] / "docs" / "coming-from-trl.md").read_text(encoding="utf-8")
    for options in (TRAINER_OPTIONS, BITS_OPTIONS):
        assert [name for name, text in options.items() if f"| `{name}` | {text} |\n" not in page] == []
