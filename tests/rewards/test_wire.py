"""What crosses to a worker arrives as it was, or is refused by name."""

from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asking import ask
from muster.records import Completion, Sample
from muster.rewards.pool.wire import (
    TAG,
    UnsendableError,
    as_completion,
    as_request,
    dump_request,
    dump_sample,
    dumps,
    loads,
    plain_completion,
)

VALUES = [
    None,
    True,
    -3,
    10**400,
    10**6000,
    0.1,
    5e-324,
    "",
    "größe \ud800 \x00",
    [1, [2.5, None]],
    (1, ("a",)),
    {"a": {"b": []}},
    {1: "one", None: 2},
    {TAG: "float", "value": 1},
    {1, 2},
    b"\x00\xff",
    date(2026, 1, 2),
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    time(3, 4),
    Decimal("0.10"),
    float("inf"),
]


@pytest.mark.parametrize("value", VALUES, ids=[str(number) for number in range(len(VALUES))])
def test_a_value_arrives_as_it_was(value):
    arrived = loads(dumps(value))
    assert arrived == value
    assert type(arrived) is type(value)


def test_nan_arrives_as_nan():
    assert str(loads(dumps([float("nan")]))) == "[nan]"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (numpy.float32(0.5), 0.5),
        (numpy.int64(3), 3),
        (numpy.bool_(True), True),
        (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    ],
)
def test_arrays_arrive_as_numbers_and_lists(value, plain):
    assert loads(dumps(value)) == plain


@given(
    st.recursive(st.none() | st.floats(allow_nan=False) | st.text() | st.integers() | st.binary(), st.lists)
)
def test_any_value_of_these_kinds_is_one_line_that_comes_back(value):
    line = dumps(value)
    assert "\n" not in line
    assert loads(line.encode("ascii")) == value


def test_a_request_arrives_without_what_only_the_engine_knows():
    [request] = ask("text\n", answer=3, when=date(2026, 1, 2))
    arrived = as_request(loads(dump_request(request, dump_sample(request.sample))))
    assert arrived.sample == Sample(
        id="0",
        messages=({"role": "user", "content": "question"},),
        columns={"answer": 3, "when": date(2026, 1, 2)},
    )
    assert (arrived.text, arrived.plain_text, arrived.prompt_text) == ("text\n", "text\n", "<s>question")
    assert (arrived.completion.ids, arrived.completion.finish_reason) == ((5, 6), "stop")
    assert arrived.completion.sampler_logprobs == (0.0, 0.0)


def test_a_column_that_cannot_be_sent_is_named():
    with pytest.raises(UnsendableError, match="column 'thing' holds object, which can't be sent"):
        dump_sample(Sample(id="0", columns={"thing": [object()]}))


def test_a_completion_kept_before_there_were_environments_is_the_policys_own_whole():
    completion = Completion(ids=(4, 5), sampler_logprobs=(-0.5, -1.0), finish_reason="stop", version=3)
    plain = dict(plain_completion(completion))
    assert as_completion(plain) == completion
    del plain["emitted"]
    assert as_completion(plain) == completion
