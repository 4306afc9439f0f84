"""Ctrl-C and SIGTERM: the first lets the step end and saves, the second leaves at once."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Final, Self

START_AGAIN: Final = 75
"""Exit code that tells a scheduler to start the same command again: EX_TEMPFAIL of sysexits.h."""


class SecondSignal(KeyboardInterrupt):
    """Asks to leave at once. No SystemExit: that of a reward in this process counts as its failure."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


class Stopping:
    """Takes the two signals while it is entered; one that is ignored stays ignored.

    So a run that was started under nohup, or in the background of a script, is not stopped by a Ctrl-C
    that was meant for another.
    """

    def __init__(self, say: Callable[[str], None], *, requeue: bool = False) -> None:
        """With `requeue` a run that was stopped and saved asks to be started again."""
        self._say = say
        self._requeue = requeue
        self._received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
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
        """0, or what says by which signal the run was stopped, or that it is to be started again."""
        if self._received is None:
            return 0
        return START_AGAIN if self._requeue else 128 + self._received
