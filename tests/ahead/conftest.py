"""Runs of these tests have the processes that sample for them forked."""

from collections.abc import Iterator

import pytest

from beside import forked
from muster.engines.process import started_by


@pytest.fixture(autouse=True, scope="session")
def _forked_samplers() -> Iterator[None]:
    with started_by(forked):
        yield
