"""Ctrl-C and SIGTERM: the first lets the step end and saves, the second leaves at once."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Self


class SecondSignal(KeyboardInterrupt):
    """Asks to leave at once. No SystemExit: that of a reward in this process counts as its failure."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


class Stopping:
    """Takes the two signals while it is entered."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _take(self, number: int, _: FrameType | None) -> None:
        if self._received is not None:
            raise SecondSignal(128 + number)
        self._received = number
        self._say("stopping once this step is done and saved; a second time leaves at once")

    def is_requested(self) -> bool:
        """Someone asked to stop."""
        return self._received is not None

    @property
    def exit_code(self) -> int:
        """0, or what says by which signal the run was stopped."""
        return 0 if self._received is None else 128 + self._received
