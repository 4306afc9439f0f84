"""A reward for mathematics: the boxed answer and the reference mean the same (extra `math`).

The same text and the same number are found first and cost nothing. Only then does math-verify parse both
as LaTeX and compare them. Its reader for plain expressions is never used: it hands the text to Python.
Its reader for LaTeX hands on numerals alone, which its grammar has cut out of the text.

What is too costly to work out is no answer and earns 0, unless it is the reference's own text: see
`is_modest`. Behind these bounds a limit on processor time holds, and behind that the pool's.
"""

import logging
import re
from functools import lru_cache
from math import prod
from types import ModuleType

from muster.errors import RewardError
from muster.rewards.answers import accepted, after_thinking, marked_answer, plain
from muster.rewards.deadline import within_cpu_seconds
from muster.rewards.numbers_in_text import only_number

MAX_CHARACTERS = 500
MAX_DEPTH = 20
MAX_EXPONENT = 10_000
"""Of a power; of a power of a power, the exponents multiplied."""
MAX_TOWER = 8
"""Product of the numbers in an exponent that has an exponent of its own."""
MAX_FACTORIAL = 999
LIMIT_S = 0.5
"""Processor time to parse and compare."""

_UNFINISHED = re.compile(
    r"\\(?:int|iint|iiint|oint|sum|prod|lim|limsup|liminf|bigcup|bigcap|det|operatorname)(?![a-zA-Z])"
)
_FORMULA = re.compile(r"\$([^$]+)\$")
_SEARCHED = 10_000
_NUMERAL = re.compile(r"\d+")
_SEPARATED = re.compile(r"(?<=\d)(?:,|\{,\}|\\[,!; ]|\s)+(?=\d)")


def math_equal(completion: str, answer: object, *, strict: bool = True) -> float | None:
    r"""1 where the completion's answer equals the reference as mathematics, else 0; None without one.

    The completion's answer is the last marked one (`\boxed{}`, `<answer>`, `####`); without one there is
    no credit, unless `strict` is off: then the last formula in dollars, or else the last line, stands in
    for it. Thinking isn't read. Of a list of references any one will do.
    """
    references = [_core(text) for text in accepted(answer)]
    if not references:
        return None
    text = after_thinking(completion)
    marked = marked_answer(text)
    if marked is None and not strict:
        marked = _last_formula(text)
    if not marked or len(marked) > max(MAX_CHARACTERS, *map(len, references)):
        return 0.0
    given = _core(marked)
    if any(_same(given, reference) for reference in references):
        return 1.0
    return float(is_modest(given) and any(_equal(given, reference) for reference in references))


def is_modest(text: str) -> bool:
    """Whether the expression can be worked out at little cost.

    At most 500 characters and 20 levels of brackets; exponents to 10,000, multiplied where powers are
    nested; no tower but small ones; factorials to 999; nothing left to sum, multiply, integrate or take
    to a limit.
    """
    return (
        len(text) <= MAX_CHARACTERS
        and _depth(text) <= MAX_DEPTH
        and not _UNFINISHED.search(text)
        and _has_modest_numbers(text)
        and _has_modest_powers(text)
    )


def _last_formula(text: str) -> str:
    """The last formula in the end of the text, or its last line where there is none."""
    end = text.strip()[-_SEARCHED:]
    formulas = _FORMULA.findall(end)
    return formulas[-1] if formulas else end.rpartition("\n")[2]


def _core(marked: str) -> str:
    r"""The marked text without what only sets it: dollars, `\text`, a reference's own box."""
    inner = marked_answer(marked)
    return plain(marked if inner is None else inner)


def _same(given: str, reference: str) -> bool:
    """The same text, white space aside, or the same number: the cheap way to be equal."""
    if "".join(given.split()) == "".join(reference.split()):
        return True
    numbers = [only_number(text) if _is_numeral(text) else None for text in (given, reference)]
    values = [None if found is None else found.value for found in numbers]
    return values[0] is not None and values[0] == values[1]


def _is_numeral(text: str) -> bool:
    """Nothing but a number: no letter that could be a variable or a unit, no bracket of a list."""
    bare = re.sub(r"\\[dt]?frac|\\times|\\cdot", "", text)
    return not re.search(r"[^\d.,\s{}$/+\-\u2212^*\\']", bare) and "%" not in text


def _equal(given: str, reference: str) -> bool:
    """math-verify's verdict; False where it can't read one of them, or takes too long."""
    library = _math_verify()
    try:
        return within_cpu_seconds(LIMIT_S, lambda: _verified(library, given, reference))
    except (TimeoutError, RecursionError, MemoryError):
        return False


def _verified(library: ModuleType, given: str, reference: str) -> bool:
    parsed = [_parsed(library, text) for text in (reference, given)]
    # No time limits of its own: they are signals, which only the main thread may use.
    return all(parsed) and bool(library.verify(*parsed, timeout_seconds=None))


def _parsed(library: ModuleType, text: str) -> list[object]:
    latex = library.LatexExtractionConfig(boxed_match_priority=0)
    return library.parse(
        rf"\boxed{{{text}}}", extraction_config=[latex], fallback_mode="no_fallback", parsing_timeout=None
    )


@lru_cache(maxsize=1)
def _math_verify() -> ModuleType:
    """The library, after one comparison whose result is known: a broken install must not score 0 for all."""
    try:
        import math_verify
    except ImportError as error:
        raise RewardError(f"The reward 'math' can't be used: {error}. Install muster-rl[math].") from error
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    logging.getLogger("latex2sympy2_extended").setLevel(logging.ERROR)
    # It also loads what the library loads on its first use, which is not to count as an answer's time.
    if not _verified(math_verify, r"\frac{x^2+2x+1}{2}", r"\frac{(x+1)^2}{2}"):
        raise RewardError(
            "The reward 'math' can't be used: math-verify does not find that x^2+2x+1 is (x+1)^2; a part of "
            "it is missing or of another version. Install muster-rl[math]."
        )
    return math_verify


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _has_modest_numbers(text: str) -> bool:
    """No factorial, binomial or the like of a large number, and none of more than 10,000 digits."""
    for match in re.finditer("!", text):
        before = text[: match.start()].rstrip()
        numeral = re.search(r"\d+$", before)
        if numeral is not None and int(numeral[0]) > MAX_FACTORIAL:
            return False
        if before.endswith(("!", ")", "}", "]")) and (_largest(text) > 99 or "^" in text or "!!" in text):
            return False
    if re.search(r"\d[eE][+-]?\d{5}", text):
        return False
    return not re.search(r"binom|gcd|lcm|mod|choose", text) or _largest(text) <= MAX_EXPONENT


def _has_modest_powers(text: str) -> bool:
    """No power of a size that would take memory or time."""
    exponents = list(_exponents(text))
    is_nested = bool(re.search(r"[)\]}|]\s*(?:\^|\*\*)", text))
    products = [_product(exponent) for exponent in exponents]
    if is_nested and prod(products) > MAX_EXPONENT:
        return False
    return all(
        product <= (MAX_TOWER if re.search(r"\^|\*\*|!", exponent) else MAX_EXPONENT)
        for exponent, product in zip(exponents, products, strict=True)
    )


def _exponents(text: str) -> list[str]:
    """What stands behind each `^` or `**`: a group in brackets with all in it, or the rest up to a gap."""
    return [_exponent(text[match.end() :].lstrip()) for match in re.finditer(r"\^|\*\*", text)]


def _exponent(rest: str) -> str:
    depth = 0
    for index, character in enumerate(rest):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0 or (depth == 0 and index and character in "+-=,; $"):
            return rest[:index]
        if depth == 0 and character in ")]}" and not re.match(r"\s*(?:\^|\*\*|!)", rest[index + 1 :]):
            return rest[: index + 1]
    return rest


def _product(text: str) -> int:
    """The numbers in the text, multiplied: no less than their sum, difference, product or quotient."""
    return prod(max(2, _bounded(digits)) for digits in _NUMERAL.findall(_SEPARATED.sub("", text)))


def _largest(text: str) -> int:
    return max((_bounded(digits) for digits in _NUMERAL.findall(_SEPARATED.sub("", text))), default=0)


def _bounded(digits: str) -> int:
    return int(digits) if len(digits) <= 9 else 10**9
