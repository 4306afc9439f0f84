"""`muster generate`."""

import sys
from collections.abc import Iterator
from typing import Annotated

from muster.cli.flags import Json, about

Messages = list[dict[str, str]]


def generate(
    target: Annotated[str, about("A run or a model: name, folder or hub id.")],
    prompt: Annotated[str | None, about("The user's message; with --raw, the text to go on from.")] = None,
    /,
    *,
    chat: Annotated[bool, about("Talk with the model.")] = False,
    n: Annotated[int, about("Completions per prompt.", "--n", "-n")] = 1,
    temperature: Annotated[float, about("Divides the logits; 0 always takes the likeliest token.")] = 1.0,
    max_tokens: Annotated[int, about("Longest completion, in tokens.")] = 256,
    system: Annotated[str | None, about("System message put before the prompt.")] = None,
    raw: Annotated[bool, about("Give the prompt to the model as it is, without chat template.")] = False,
    seed: Annotated[int, about("The same seed gives the same completions.")] = 3407,
    json: Json = False,
) -> int:
    """Sample completions of a run's model, or of any model.

    Without a prompt, each line of standard input is one. With `--chat`, lines are turns of one
    conversation.

    **Examples**

    ```text
    muster generate demo-1 "Ada is 36 years old."
    muster generate demo-1 "Ada is 36 years old." -n 4 --temperature 0.7
    muster generate smollm2-135m-instruct --chat
    muster generate gpt2 --raw "This is" --max-tokens 30 --json
    ```
    """
    from muster.cli.targets import model_of
    from muster.errors import ConfigError

    if chat and (raw or n > 1 or prompt is not None):
        raise ConfigError(
            "--chat is a conversation of one answer a turn; leave out --raw, -n and the prompt."
        )
    turns = Turns(system) if chat else None
    model = model_of(target)

    from muster.using import generate as sample

    answers = sample(
        model,
        turns.prompts() if turns else _prompts(prompt),
        system=None if chat else system,
        raw=raw,
        max_tokens=max_tokens,
        temperature=temperature,
        n=n,
        seed=seed,
    )
    for completions in answers:
        if turns:
            turns.answer(completions[0])
        _print(completions, as_json=json)
    return 0


def _prompts(prompt: str | None) -> Iterator[str]:
    """The prompt, or the lines of standard input."""
    if prompt is not None:
        yield prompt
        return
    for line in sys.stdin:
        yield line.rstrip("\n")


class Turns:
    """A conversation that grows by a line of input and an answer at a time."""

    def __init__(self, system: str | None) -> None:
        self._messages: Messages = [{"role": "system", "content": system}] if system else []

    def prompts(self) -> Iterator[Messages]:
        """The conversation so far, each time with the next line of input; ends with the input."""
        while True:
            print("> ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                return
            self._messages.append({"role": "user", "content": line.rstrip("\n")})
            yield list(self._messages)

    def answer(self, text: str) -> None:
        """Adds the model's answer."""
        self._messages.append({"role": "assistant", "content": text})


def _print(completions: list[str], *, as_json: bool) -> None:
    from muster.cli.text import escape_block
    from muster.store import to_json

    if as_json:
        print(to_json({"completions": completions}), flush=True)
        return
    for place, text in enumerate(completions, start=1):
        if len(completions) > 1:
            print(f"--- {place} of {len(completions)}")
        print(escape_block(text), flush=True)
