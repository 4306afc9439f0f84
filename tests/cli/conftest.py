"""The recorded run, and its reports."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.records import StepReport

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture
def recorded() -> Path:
    """The run that was recorded in format 1."""
    return FIXTURES / "run_v1"


@pytest.fixture
def reports() -> list[StepReport]:
    """What was written into it."""
    make: Callable[[], list[StepReport]] = runpy.run_path(str(FIXTURES / "make_run_v1.py"))["reports"]
    return make()
