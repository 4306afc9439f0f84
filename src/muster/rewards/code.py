r"""Programs graded by tests: the model's code runs in the sandbox, what is expected never enters it.

A test is one of

    {"input": "3 4\n", "output": "7"}                         the program reads and prints
    {"call": "add", "args": [3, 4], "expected": 7}             a function returns; "kwargs" may be there too
    "assert add(3, 4) == 7"                                    the same, as text with literal values

The code is the last closed ``` block of the completion that says it is Python, else the last closed one
that says nothing; blocks in other languages and unfinished ones are passed over. A completion without
such a block scores 0, or with `fenced` false is taken as code itself.

Outputs are equal line by line, blanks at the ends of lines and of the text aside, and the program must
have ended with exit code 0. Values are equal as Python has it (True == 1), numbers with a point up to
`tolerance`; a tuple will do where a JSON test expects a list. All calls of a completion happen in one
process, in order: one that ends or hangs it fails the later ones too.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from annotated_types import Ge, Gt

from muster.rewards.code_tests import CallTest, InputTest, Test, read_tests
from muster.rewards.code_values import NotAValueError, is_same, same_output, value_of
from muster.sandbox import HARNESS, Demand, Isolation, Limits, find_isolation, run_program

_FENCE = re.compile(r"^[ ]{0,3}(`{3,}|~{3,})[ \t]*([^\s`{]*)[^\n`]*$", re.MULTILINE)
_PYTHON = ("python", "python3", "py", "py3")
_MAX_CODE = 1_000_000
_MIB = 2**20


def code(
    completion: str,
    tests: object,
    *,
    partial: bool = True,
    fenced: bool = True,
    tolerance: Annotated[float, Ge(0)] = 1e-9,
    isolation: Demand = "any",
    wall_s: Annotated[float, Gt(0)] = 5.0,
    memory_mib: Annotated[int, Ge(32)] = 512,
    num_processes: Annotated[int, Ge(1)] = 16,
) -> float | None:
    """Share of the tests that the code in the completion passes; without `partial`, 1 for all and else 0.

    `wall_s` is for all tests of a completion together. `isolation` "bubblewrap" refuses to run without it.
    None where the row has no tests.
    """
    wanted = read_tests(tests)
    if not wanted:
        return None
    walls = find_isolation(isolation)
    program = extract_code(completion, fenced=fenced)
    if program is None:
        return 0.0
    limits = Limits(wall_s=wall_s, memory_bytes=memory_mib * _MIB, num_processes=num_processes)
    runner = _Runner(program, limits, walls, tolerance)
    num_passed = 0
    for passed in runner.verdicts(wanted):
        if not passed and not partial:
            return 0.0
        num_passed += passed
    return num_passed / len(wanted)


def extract_code(completion: str, *, fenced: bool = True) -> str | None:
    """The code of a completion by the rule above; None where there is none, or a megabyte of it."""
    labelled: str | None = None
    plain: str | None = None
    for language, block in _blocks(completion):
        if language in _PYTHON:
            labelled = block
        elif not language:
            plain = block
    found = labelled if labelled is not None else plain
    if found is None and not fenced and not _FENCE.search(completion):
        found = completion
    return found if found and found.strip() and len(found) <= _MAX_CODE else None


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of every closed fenced block."""
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif fence[1][0] == opening[1][0] and len(fence[1]) >= len(opening[1]) and not fence[2]:
            yield opening[2].lower(), text[opening.end() + 1 : fence.start()]
            opening = None


class _Runner:
    """One program and what is left of its time."""

    def __init__(self, program: str, limits: Limits, walls: Isolation, tolerance: float) -> None:
        self._program = program
        self._limits = limits
        self._walls = walls
        self._tolerance = tolerance
        self._left_s = limits.wall_s

    def verdicts(self, tests: Sequence[Test]) -> Iterator[bool]:
        """Whether each test passes, those of functions first."""
        calls = [test for test in tests if isinstance(test, CallTest)]
        if calls:
            yield from self._call(calls)
        for test in tests:
            if isinstance(test, InputTest):
                yield self._feed(test)

    def _feed(self, test: InputTest) -> bool:
        written = self._run({"program.py": self._program}, "program.py", test.input)
        return written is not None and same_output(written, test.output)

    def _call(self, tests: Sequence[CallTest]) -> Iterator[bool]:
        """Results come a line per call; where the process ended early there are fewer."""
        files = {"harness.py": HARNESS, "solution.py": self._program}
        asked = json.dumps([test.asked for test in tests])
        lines = (self._run(files, "harness.py", asked, needs_success=False) or "").split("\n")
        for index, test in enumerate(tests):
            yield index < len(lines) and self._is_right(lines[index], test)

    def _is_right(self, line: str, test: CallTest) -> bool:
        try:
            return is_same(value_of(line), test, self._tolerance)
        except (NotAValueError, RecursionError):
            return False

    def _run(
        self, files: Mapping[str, str], name: str, stdin: str | None, *, needs_success: bool = True
    ) -> str | None:
        """What the program wrote; None where it failed, or its time is over."""
        if self._left_s <= 0:
            return None
        limits = replace(self._limits, wall_s=self._left_s)
        outcome = run_program(files, arguments=(name,), stdin=stdin, limits=limits, isolation=self._walls)
        self._left_s -= outcome.seconds
        return outcome.stdout if outcome.is_success or not needs_success else None
