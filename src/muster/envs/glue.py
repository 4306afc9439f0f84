"""What the chat template puts between turns, as token ids: tokens that the policy is given, never its own.

A turn is followed by the end of the turn, the reply's messages, and the start of the next turn. That text is
the difference between the conversation rendered without the reply and with it; what the policy said stands
in both as a mark, so its tokens are never decoded to be encoded again. A template that puts a conversation
together otherwise (drops earlier thinking, say) is refused: the policy would be trained on contexts that it
never meets once it is used.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.data import render_chats
from muster.data.encoding import Tokenizer, token_ids
from muster.errors import ConfigError, DataError
from muster.records import Message, Sample

_SAID = "(what was said)"
_THOUGHT = "<think>\n(a thought)\n</think>\n\n(what was said)"
_MAX_KEPT = 10_000
"""Replies whose glue is remembered: hints and the like come again and again."""


class Joint(NamedTuple):
    """What stands between two turns."""

    ids: tuple[int, ...]
    """From the end of the turn on."""
    text: str

    def after(self, ids: Sequence[int]) -> tuple[int, ...]:
        """What follows these ids: without the token that ends a turn, where they end with it."""
        return self.ids[1:] if ids and ids[-1] == self.ids[0] else self.ids


class Glue:
    """The joints of one chat template, found by rendering and checked against whole conversations."""

    def __init__(
        self, tokenizer: Tokenizer, options: Mapping[str, object], opening: Sequence[Message]
    ) -> None:
        """Reads off how a turn begins and ends; `opening` is any prompt of the run."""
        self._tokenizer = tokenizer
        self._options = dict(options)
        self._opening = tuple(opening)
        self._kept: dict[str, Joint] = {}
        self._checked: set[str] = set()
        [self._begun] = self._render([()], begins=True)
        [self._before] = self._render([(_said(_SAID),)], begins=False)
        if not self._before.startswith(self._begun + _SAID):
            raise self._refusal("what it puts before a turn to come is not what it puts before one that was")

    def between(self, replies: Sequence[Sequence[Message]]) -> list[Joint]:
        """The joint of each reply; ConfigError where the template rewrites what came before it."""
        for role in dict.fromkeys(str(message["role"]) for reply in replies for message in reply):
            self.check(role)
        names = [json.dumps(list(reply), sort_keys=True) for reply in replies]
        if len(self._kept) + len(names) > _MAX_KEPT:
            self._kept.clear()
        fresh = {name: reply for name, reply in zip(names, replies, strict=True) if name not in self._kept}
        texts = self._between(list(fresh.values()))
        for name, text, ids in zip(fresh, texts, token_ids(texts, self._tokenizer), strict=True):
            self._kept[name] = Joint(ids, text)
        return [self._kept[name] for name in names]

    def check(self, role: str) -> None:
        """Holds two replies of the role, put together from joints, against the whole rendered."""
        if role in self._checked:
            return
        first, second = _reply(role, "(a reply)"), _reply(role, "(another reply)")
        joints = self._between([(first,), (second,)])
        conversation = (_said(_THOUGHT), first, _said(_SAID), second)
        [whole] = self._render([conversation], begins=True)
        if whole != f"{self._begun}{_THOUGHT}{joints[0]}{_SAID}{joints[1]}":
            raise self._refusal(
                f"a conversation goes on otherwise than it began once a {role} message follows: it drops "
                "earlier thinking, or writes an earlier turn anew"
            )
        self._checked.add(role)

    def _between(self, replies: Sequence[Sequence[Message]]) -> list[str]:
        """The texts of the joints."""
        wholes = self._render([(_said(_SAID), *reply) for reply in replies], begins=True)
        end = self._before.rpartition(_SAID)[2]
        for whole in wholes:
            if not whole.startswith(self._before) or whole == self._before:
                raise self._refusal("a turn reads otherwise once another one follows")
        return [end + whole.removeprefix(self._before) for whole in wholes]

    def _render(self, conversations: Sequence[Sequence[Message]], *, begins: bool) -> list[str]:
        """The opening and each of these after it as text; up to the next turn where that `begins`."""
        samples = [
            Sample(id="(between turns)", messages=(*self._opening, *messages)) for messages in conversations
        ]
        try:
            return render_chats(samples, self._tokenizer, self._options, add_generation_prompt=begins)
        except DataError as error:
            raise self._refusal(f"it refuses such a conversation ({error})") from error

    def _refusal(self, why: str) -> ConfigError:
        name = str(getattr(self._tokenizer, "name_or_path", "") or "the tokenizer")
        return ConfigError(
            f"the chat template of {name} can't be used with data.environment: {why}. Give one that only "
            "adds to a conversation, as data.chat_template_kwargs.chat_template, or train another model."
        )


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _reply(role: str, text: str) -> Message:
    return {"role": role, "content": text} | ({"name": "a_tool"} if role == "tool" else {})
