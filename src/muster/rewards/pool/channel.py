"""The private line between the run and a worker: JSON lines over a socket pair, bounded, never waiting."""

import socket

MAX_REPLY_BYTES = 16 * 2**20
"""Longest line that a worker may send."""
LINE_LOST = 118
"""Exit code of a worker that finds its end of the line closed under it."""


class ChannelClosedError(ConnectionError):
    """The other end is gone, or said what it may not."""


class Channel:
    """The run's end of a worker's line; no call blocks, so a stuck worker holds up nothing."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._unsent = bytearray()
        self._unread = bytearray()

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._end.fileno()

    @property
    def has_unsent(self) -> bool:
        """Some of what was sent waits for room."""
        return bool(self._unsent)

    def send(self, line: str) -> None:
        """Queues a line and sends as much as there is room for."""
        self._unsent += line.encode("utf-8") + b"\n"
        self.flush()

    def flush(self) -> None:
        """Sends as much of the queue as there is room for."""
        while self._unsent:
            try:
                sent = self._end.send(self._unsent[: 2**18])
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosedError("closed") from error
            del self._unsent[:sent]

    def lines(self) -> list[bytes]:
        """The whole lines that have come; ChannelClosedError where there will be no more."""
        while True:
            try:
                read = self._end.recv(2**18)
            except BlockingIOError:
                break
            except OSError as error:
                raise ChannelClosedError("closed") from error
            self._unread += read
            if not read and b"\n" not in self._unread:
                raise ChannelClosedError("closed")
            if len(self._unread) > MAX_REPLY_BYTES:
                raise ChannelClosedError(f"sent more than {MAX_REPLY_BYTES >> 20} MB")
            if not read:
                break
        *whole, rest = self._unread.split(b"\n")
        self._unread = rest
        return [bytes(line) for line in whole]

    def is_quiet(self) -> bool:
        """Open, with nothing to read: what an idle worker's line has to be."""
        try:
            return not self.lines() and not self._unread
        except ChannelClosedError:
            return False

    def close(self) -> None:
        """Closes this end."""
        self._end.close()
