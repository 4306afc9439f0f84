"""A guessing game: several turns with a hint after each guess."""

import re
from collections.abc import Mapping

from muster.records import Message

_NUMBER = re.compile(r"\d+")
_PLAYED = ((1, 20), 13, (10, 15, 13))
"""A game that the opening shows played: its range, its secret, its guesses."""


def _asked(low: int, high: int) -> Message:
    text = (
        f"Guess my number. It is between {low} and {high}. "
        "Answer with one number and nothing else; I say whether mine is higher or lower."
    )
    return {"role": "user", "content": text}


def _hint(guess: int, secret: int) -> str:
    return f"My number is {'higher' if guess < secret else 'lower'} than {guess}. Guess again."


def _played() -> list[Message]:
    """A whole game, up to the word that it is over."""
    (low, high), secret, guesses = _PLAYED
    messages = [_asked(low, high)]
    for guess in guesses:
        said = "That is my number." if guess == secret else _hint(guess, secret)
        messages += [{"role": "assistant", "content": str(guess)}, {"role": "user", "content": said}]
    return messages


class GuessingGame:
    """The row's `secret` is to be found between its `low` and `high`; each guess is answered higher or lower.

    The opening shows a game played: small models seldom answer with a bare number otherwise.
    Parts: `found`, 1 for the secret; `near`, up to 0.5, by how near the best guess came; `soon`, up to 0.5,
    by how many turns were left.
    """

    max_turns = 5
    max_turn_tokens = 12

    def __init__(self) -> None:
        self._low = self._high = self._secret = 0
        self._distance = 1.0
        self._num_guesses = 0
        self._is_found = False

    def reset(self, row: Mapping[str, object]) -> list[Message]:
        """Shows a game, then says between which numbers to guess in this one."""
        self._low, self._high = int(str(row["low"])), int(str(row["high"]))
        self._secret = int(str(row["secret"]))
        *shown, last = _played()
        asked = _asked(self._low, self._high)
        return [*shown, {**last, "content": f"{last['content']} Another one. {asked['content']}"}]

    def step(self, text: str) -> str | None:
        """Higher or lower; the end once the number is found."""
        self._num_guesses += 1
        found = _NUMBER.findall(text)
        if len(found) != 1:
            return "That is not one number. Guess again."
        guess = int(found[0][:18])
        distance = abs(guess - self._secret) / max(self._high - self._low, 1)
        self._distance = min(self._distance, distance)
        self._is_found = guess == self._secret
        return None if self._is_found else _hint(guess, self._secret)

    def reward(self) -> dict[str, float]:
        """Found, near and soon."""
        left = self.max_turns - self._num_guesses
        return {
            "found": float(self._is_found),
            "near": 0.5 * (1.0 - self._distance),
            "soon": 0.5 * left / (self.max_turns - 1) if self._is_found else 0.0,
        }
