import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from muster.rewards.deadline import within_cpu_seconds
from muster.rewards.math_equal import is_modest, math_equal
from patience import least_cpu_s

SQUARES = " + ".join(f"\\sqrt{{{prime}}}" for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43))

# completion, reference, score
TABLE: list[tuple[str, object, float]] = [
    (r"\boxed{C} … \boxed{\text{E}}", "E", 1.0),
    (r"\boxed{\text{E}} … \boxed{C}", "E", 0.0),
    (r"\boxed{\frac{1}{2}}", "1/2", 1.0),
    (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
    (r"\boxed{\dfrac{2}{4}}", r"$\frac{1}{2}$", 1.0),
    ("maybe 41 or 42 or 43", "42", 0.0),
    ("42", "42", 0.0),
    (r"\boxed{42", "42", 0.0),
    (r"\boxed{}", "42", 0.0),
    ("", "42", 0.0),
    (r"\boxed{42}" + " chatter" * 500, "42", 1.0),
    (r"\boxed{41, 42, 43}", "42", 0.0),
    (r"\boxed{41 \text{ or } 42}", "42", 0.0),
    (r"\boxed{\{41, 42\}}", "42", 0.0),
    (r"<think>\boxed{42}</think>", "42", 0.0),
    ("#### 42", "42", 1.0),
    ("<answer>42</answer>", "42", 1.0),
    (r"<answer>\boxed{42}</answer>", "42", 1.0),
    (r"\boxed{42}", r"So it is \boxed{42}.", 1.0),
    (r"\boxed{42}", "She has 40 + 2 = 42.\n#### 42", 1.0),
    (r"\boxed{-3}", "-3", 1.0),
    (r"\boxed{3}", "-3", 0.0),
    ("\\boxed{−3}", "-3", 1.0),
    (r"\boxed{+7}", "7", 1.0),
    (r"\boxed{130{,}000}", "130000", 1.0),
    (r"\boxed{130,000}", "130000", 1.0),
    (r"\boxed{\$29.00}", "29", 1.0),
    (r"\boxed{18\%}", "0.18", 1.0),
    (r"\boxed{0.333}", "1/3", 0.0),
    (r"\boxed{5\text{ cm}}", "5", 1.0),
    (r"\boxed{x=5}", "5", 1.0),
    (r"\boxed{5}", "x=5", 1.0),
    (r"\boxed{x^2+2x+1}", "(x+1)^2", 1.0),
    (r"\boxed{x^2+2x}", "(x+1)^2", 0.0),
    (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", 1.0),
    (r"\boxed{\frac{\pi}{2}}", r"\pi/2", 1.0),
    (r"\boxed{3.14159}", r"\pi", 0.0),
    (r"\boxed{(1,2)}", "(1,2)", 1.0),
    (r"\boxed{(2,1)}", "(1,2)", 0.0),
    (r"\boxed{\{2,1\}}", r"\{1,2\}", 1.0),
    (r"\boxed{[0,1)}", "[0,1)", 1.0),
    (r"\boxed{[0,1]}", "[0,1)", 0.0),
    (r"\boxed{\begin{pmatrix}1&2\\3&4\end{pmatrix}}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", 1.0),
    (r"\boxed{\begin{pmatrix}1&2\\3&5\end{pmatrix}}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", 0.0),
    (r"\boxed{\infty}", r"\infty", 1.0),
    (r"\boxed{-\infty}", r"\infty", 0.0),
    (r"\boxed{nan}", "42", 0.0),
    (r"\boxed{1/0}", "42", 0.0),
    (r"\boxed{0/0}", "42", 0.0),
    (r"\boxed{\text{no solution}}", "no solution", 1.0),
    (r"\boxed{2^{2023}}", "2^{2023}", 1.0),
    (r"\boxed{2 \cdot 2^{2022}}", "2^{2023}", 1.0),
    (r"\boxed{2^{99999}}", "2^{99999}", 1.0),
    (r"\boxed{e^{x^2}}", r"e^{x \cdot x}", 1.0),
    (r"\boxed{42}", ["41", "42"], 1.0),
    ("\\boxed{\ud800\0}", "42", 0.0),
    ("\\boxed{٤٢}", "42", 1.0),
    (r"\boxed{\sum_{i=1}^{8} i}", "36", 0.0),
]


@pytest.mark.parametrize(("completion", "reference", "score"), TABLE)
def test_each_mathematical_answer_has_one_right_score(completion, reference, score):
    assert math_equal(completion, reference) == score


COSTLY = [
    "10**10**10",
    "10^{10^{10}}",
    "9^{9^{9^{9}}}",
    "((9^{99})^{99})^{99}",
    "({9^{99}}^{99})^{99}",
    r"\left(9^{999}\right)^{999}",
    r"2^{10\cdot 10\cdot 10\cdot 10\cdot 10\cdot 10\cdot 10\cdot 10\cdot 10}",
    "2^{1000000000}",
    "2^{1{,}000{,}000{,}000}",
    "2^1000000000",
    "2^{(10000)(10000)}",
    "2^{10000!}",
    "2^{2^{100}}",
    "1E1000000000",
    "100000000!",
    "((100)!)!",
    "100!!!!",
    "{(10^{9})}!",
    r"\binom{1000000000}{500000000}",
    r"\int_0^1 e^{x^2} dx",
    r"\sum_{i=1}^{10} i^{9}",
    r"\prod_{i=1}^{10} i",
    r"\lim_{x \to 0} \frac{\sin x}{x}",
    "(" * 30 + "1" + ")" * 30,
    r"\sqrt{" * 200 + "1" + "}" * 200,
    r"\frac{1}{1+" * 100 + "1" + "}" * 100,
    "1+" * 100_000 + "1",
    "9" * 100_000,
    r"\pi" * 100_000,
]


@pytest.mark.parametrize("answer", COSTLY, ids=lambda answer: answer[:30])
def test_a_costly_answer_is_refused_before_it_is_parsed(answer):
    assert not is_modest(answer)
    assert math_equal(rf"\boxed{{{answer}}}", "1") == 0.0
    assert least_cpu_s(lambda: math_equal(rf"\boxed{{{answer}}}", "1"), 0.1) < 0.1


@pytest.mark.parametrize(
    "answer",
    ["x^{9999}", "e^{-x^2/2}", "2^{2^{2}}", "999!", "(n-1)!", r"\binom{100}{50}", "(x+1)^{10}", "a^{b}c^{d}"],
)
def test_an_ordinary_answer_may_be_worked_out(answer):
    assert is_modest(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "(x+y+z)^{50}-(x+y)^{50}",
        SQUARES,
        r"\sqrt{" * 18 + "2" + "}" * 18,
        r"\tan(\sin(\cos(\tan(\sin(\cos(x))))))+\log(\log(\log(x)))",
        r"\log_{10^{9999}} 10^{9998}",
    ],
)
def test_what_is_slow_all_the_same_scores_zero_within_a_second(answer):
    math_equal(r"\boxed{x+1}", "1+x")  # the library is loaded
    scores: list[float | None] = []
    assert least_cpu_s(lambda: scores.append(math_equal(rf"\boxed{{{answer}}}", "(x+z)^{50}")), 1.0) < 1.0
    assert set(scores) == {0.0}


NUMERAL = re.compile(r"from sympy import \*|(Integer|Float) ?\('?[0-9.]*(e[+-]?[0-9]+)?'? ?\)")
HOSTILE = [
    "__import__('os').system('touch PWN')",
    r"\pi __import__('os').system('touch PWN')",
    r"\begin{pmatrix} __import__('os').system('touch PWN') & 1 \end{pmatrix}",
    r"\text{__import__('os').system('touch PWN')}",
    r"[__import__('os').system('touch PWN')]",
    "(lambda: open('PWN', 'w'))()",
    "().__class__.__base__.__subclasses__()",
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("answer", HOSTILE)
def test_no_answer_is_run(answer, strict):
    math_equal(r"\boxed{x+1}", "1+x")
    run: list[str] = []
    is_watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if is_watching and event in ("compile", "os.system", "subprocess.Popen"):
            source = arguments[0]
            run.append(source.decode() if isinstance(source, bytes) else str(source))

    sys.addaudithook(watch)  # it can't be removed, so it is told when to look away
    assert math_equal(rf"\boxed{{{answer}}} ${answer}$", "1", strict=strict) == 0.0
    assert math_equal(f"${answer}$", "1", strict=strict) == 0.0
    is_watching = False
    # The library makes its numbers through Python: out of numerals, and of nothing else.
    assert [text for text in run if not NUMERAL.fullmatch(text)] == []
    assert not Path("PWN").exists()
    assert math_equal(r"\boxed{2/4}", "1/2") == 1.0


def test_without_strict_the_last_formula_or_line_will_do():
    assert math_equal("So $x^2$ and $\\frac{2}{4}$ it is.", "1/2", strict=False) == 1.0
    assert math_equal("It is:\n1/2", "0.5", strict=False) == 1.0
    assert math_equal(r"$1/2$ \boxed{1/3}", "1/2", strict=False) == 0.0


def test_a_row_without_a_reference_is_not_judged():
    assert math_equal(r"\boxed{1}", None) is None
    assert math_equal(r"\boxed{1}", []) is None


def test_another_thread_gives_the_same_scores():
    table = TABLE[:12]
    scores: list[float | None] = []
    thread = threading.Thread(target=lambda: scores.extend(math_equal(text, gold) for text, gold, _ in table))
    thread.start()
    thread.join()
    assert scores == [score for _, _, score in table]


def test_work_is_ended_at_its_limit_and_leaves_no_thread():
    def endless() -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    before = threading.active_count()

    def ended() -> None:
        with pytest.raises(TimeoutError, match=r"more than 0\.1 s"):
            within_cpu_seconds(0.1, endless)

    assert least_cpu_s(ended, 0.5) < 0.5
    assert threading.active_count() == before


def test_work_that_is_ended_in_a_finalizer_is_ended_all_the_same():
    class Slow:
        def __del__(self) -> None:
            sum(range(100_000))

    def endless() -> None:
        while True:
            Slow()
            sum(range(100_000))

    hook = sys.unraisablehook
    with pytest.raises(TimeoutError):
        within_cpu_seconds(0.05, endless)
    assert sys.unraisablehook is hook


def test_waiting_is_not_working():
    assert within_cpu_seconds(0.05, lambda: (time.sleep(0.15), os.getpid())[1]) == os.getpid()


def test_what_the_work_raises_comes_out():
    with pytest.raises(ZeroDivisionError):
        within_cpu_seconds(1.0, lambda: 1 // 0)
