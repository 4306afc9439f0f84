"""A reward for structured output: JSON that follows a schema (extra `schema`).

0.0  not JSON: words or a code fence around it, a key given twice, NaN, too large
0.5  JSON, but not what the schema asks for
1.0  JSON that follows the schema
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from muster.errors import RewardError
from muster.rewards.strict_json import Pairs, parsed

LEVELS = (0.0, 0.5, 1.0)
MAX_CHARACTERS = 200_000
MAX_VALUES = 2_000
"""Commas and brackets outside of strings: what `uniqueItems` costs grows with the square of it."""

_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL | re.IGNORECASE)

Schema = Mapping[str, object]


def _read(schema: Schema | str | None) -> Schema | None:
    """The schema, read where it is the name of a file; refused where it is no JSON Schema."""
    if schema is None:
        return None
    if isinstance(schema, str):
        try:
            schema = json.loads(Path(schema).expanduser().read_bytes())
        except (OSError, ValueError) as error:
            raise ValueError(f"it names no file that holds JSON: {error}") from error
    if not isinstance(schema, Mapping):
        raise ValueError("a JSON Schema is an object")
    _checker(json.dumps(schema))
    return schema


def json_schema(
    completion: str,
    columns: Mapping[str, object],
    *,
    schema: Annotated[Schema | str | None, AfterValidator(_read)] = None,
    column: str | None = None,
    fenced: bool = False,
) -> float | None:
    """The level that the completion reaches under a JSON Schema (draft 2020-12, unless `$schema` says other).

    The schema is a table of the options, a JSON file, or, row by row, what the column `column` names
    holds, as an object or as JSON text; None where that is empty. References lead only into the schema
    itself: nothing is fetched. With `fenced` one code fence around all of it is taken off. Longer than
    200,000 characters, of more than 2,000 values or nested deeper than 50, it counts as no JSON.
    """
    wanted = _schema(schema, columns, column)
    if wanted is None:
        return None
    fence = _FENCE.fullmatch(completion) if fenced and len(completion) <= MAX_CHARACTERS else None
    try:
        value = _value(completion if fence is None else fence[1])
    except (ValueError, RecursionError):
        return 0.0
    return 1.0 if _checker(wanted)(value) else 0.5


def _schema(schema: Schema | str | None, columns: Mapping[str, object], column: str | None) -> str | None:
    """The schema as JSON text; None where the row has none."""
    if column is None and schema is None:
        raise ValueError("reward json_schema needs a schema: set its option `schema`, or `column`")
    if column is None:
        return json.dumps(_read(schema))
    given = columns.get(column)
    if not given:
        return None
    return given if isinstance(given, str) else json.dumps(given)


def _value(text: str) -> object:
    """The JSON value of the text; ValueError where it is none, or one too large to be checked quickly."""
    if len(text) > MAX_CHARACTERS or sum(map(text.count, ",[{")) > MAX_VALUES:
        raise ValueError("too large")
    return parsed(text, make_object=_distinct)


def _distinct(pairs: Pairs) -> dict[str, object]:
    """The object; ValueError where a key comes twice: which of its values counts is anybody's guess."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key is given twice")
    return result


@lru_cache(maxsize=256)
def _checker(schema: str) -> Callable[..., bool]:
    """What tells whether a value follows the schema; ValueError where that is no JSON Schema."""
    try:
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import validator_for
        from referencing import Registry
    except ImportError as error:
        raise RewardError(
            f"The reward 'json_schema' can't be used: {error}. Install muster-rl[schema]."
        ) from error
    value = json.loads(schema)
    kind = validator_for(value, default=Draft202012Validator)
    try:
        kind.check_schema(value)
    except SchemaError as error:
        raise ValueError(f"it is no JSON Schema: {error.message} at {error.json_path}") from error
    # A registry of one's own, with nothing in it, fetches nothing.
    return kind(value, registry=Registry()).is_valid
