"""Chat templates rendered: a program that came with a model, sandboxed, and limited in time and memory.

transformers renders in jinja's sandbox, which keeps a template from Python's inner workings and from files,
but not from going on for ever or filling the memory. So all conversations of a data set are rendered in one
process that is forked for it and held to limits: it inherits the tokenizer and sends texts back.
"""

import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from muster.errors import DataError

if sys.platform == "linux":
    import resource

    def _limit_memory() -> None:
        """Lets the process grow by so much and no further."""
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + MEMORY_BYTES
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft == resource.RLIM_INFINITY or limit < soft:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))

else:

    def _limit_memory() -> None:
        """Does nothing: elsewhere no limit of a process is one on what it takes beyond what it has."""


RENDER_S = 3.0
"""Processor time that one conversation may take; an ordinary one takes a thousandth of it."""
MEMORY_BYTES = 512 * 2**20
"""What the process may take beyond what it was forked with. Linux holds to it, macOS does not."""
MAX_CHARS = 16 * 2**20
"""Longest text of one conversation."""
SILENCE_S = 60.0
"""A process that says nothing for so long is stuck: nothing in a template can wait."""
_MAX_SAID = 300

Render = Callable[[int], str]
"""From the number of a conversation to its text."""


class Rendered(NamedTuple):
    """What became of one conversation."""

    text: str = ""
    failure: str = ""
    """Why there is no text; empty where there is one."""


def rendered(render: Render, names: Sequence[str], template: str, *, limit_s: float = RENDER_S) -> list[str]:
    """One text per name of a sample; DataError gives the first that fails, the template and the limit.

    Where the system can't fork there is the sandbox alone.
    """
    work = _in_a_process if hasattr(os, "fork") else _here
    texts: list[str] = []
    with closing(work(render, len(names), limit_s)) as results:
        for name, result in zip(names, results, strict=True):
            if result.failure:
                raise DataError(
                    f"Sample {name}: the chat template of {template} {result.failure}. Mend it "
                    "(chat_template.jinja, or chat_template in tokenizer_config.json), or set data.raw."
                )
            texts.append(result.text)
    return texts


def _here(render: Render, count: int, _limit_s: float) -> Generator[Rendered]:
    """The results from this process, without limits."""
    for number in range(count):
        yield _one(render, number)


def _one(render: Render, number: int) -> Rendered:
    """One conversation; whatever a template raises is a failure with its words."""
    try:
        text = render(number)
    except MemoryError:
        return Rendered(failure=f"takes more than {MEMORY_BYTES >> 20} MiB of memory")
    except Exception as error:
        # Templates refuse what they can't render (a role, an order of roles) with errors of their own.
        return Rendered(failure=f"failed: {type(error).__name__}: {error}"[:_MAX_SAID])
    if len(text) > MAX_CHARS:
        return Rendered(failure=f"makes a text of more than {MAX_CHARS >> 20} Mi characters")
    return Rendered(text)


def _in_a_process(render: Render, count: int, limit_s: float) -> Generator[Rendered]:
    """The results from a child process, up to the first failure, which may be its end."""
    incoming, outgoing = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads; what the child runs takes no lock of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        # Were it to keep the end that is read from, it would outlive a killed parent, waiting to be read.
        os.close(incoming)
        _render_and_end(render, count, limit_s, outgoing)
    os.close(outgoing)
    stuck = False
    try:
        for line in _lines(incoming):
            yield Rendered(*json.loads(line))
            count -= 1
    except TimeoutError:
        stuck = True
    finally:
        os.close(incoming)
        # Nothing happens to one that has ended: it keeps its number until it is waited for.
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if count:
        yield Rendered(failure=f"has said nothing for {SILENCE_S:g} s" if stuck else _ending(status, limit_s))


def _render_and_end(render: Render, count: int, limit_s: float, outgoing: int) -> None:
    """Is the child: renders, sends, and ends without running anything else of this process."""
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        _limit_memory()
        with open(outgoing, "wb") as stream:
            for number in range(count):
                # Its signal ends the process, whatever it is in the middle of.
                signal.setitimer(signal.ITIMER_PROF, limit_s)
                result = _one(render, number)
                stream.write(json.dumps(result).encode("ascii") + b"\n")
                # What is done is known to be, should the next conversation end the process.
                stream.flush()
                if result.failure:
                    break
            signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        os._exit(0)


def _lines(incoming: int) -> Iterator[bytes]:
    """Whole lines as they come, to the stream's end; TimeoutError where it is silent for too long."""
    unread = bytearray()
    while True:
        if not select.select([incoming], [], [], SILENCE_S)[0]:
            raise TimeoutError
        read = os.read(incoming, 2**20)
        if not read:
            return
        unread += read
        if b"\n" in read:
            *whole, rest = bytes(unread).split(b"\n")
            unread = bytearray(rest)
            yield from whole


def _ending(status: int, limit_s: float) -> str:
    """Why a child ended before its work was done, from what the system says of its end."""
    if not os.WIFSIGNALED(status):
        return "ended its process"
    number = os.WTERMSIG(status)
    if number == signal.SIGPROF:
        return f"takes more than {limit_s:g} s of processor time for one conversation"
    return f"ended its process with {signal.Signals(number).name}"
