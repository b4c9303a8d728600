"""Grades of completions: by mathematics, and on the public cases."""

import json
import logging
import resource
import time

import pytest

from leash_trl.rewards.grader.answer import Answer, stated_answer
from leash_trl.rewards.grader.grading import grade, quick_verdict, unreadable_solutions


def verdict(answer, gold):
    return quick_verdict(stated_answer(answer), stated_answer(gold))


@pytest.mark.parametrize(
    ("answer", "gold"),
    {
        "073": "73",
        "(C)": "C",
        "1,000": "1000",
        r"\cos x = 10": "10",
        # units
        "120 m^2": "120",
        r"5\,\mathrm{N}": "5",
        "7%": "0.07",
        "18 mph": "18",
        "300 cm": "3 meters",
        r"{52}_8": "52_8",
        r"312_{\text{four}}": "312_4",
        r"65_{\text{seven}}": "65_7",
        "12:30": "12:30 AM",
        # a mixed number is a whole number and a fraction, wherever it stands
        r"\frac12\frac34": r"\frac38",
        "3,5": "3.5",
        "1/3": "0.3333333",  # a rounded gold
    }.items(),
)
def test_equal_values_need_no_algebra(answer, gold):
    assert verdict(answer, gold) is True


@pytest.mark.parametrize(
    ("answer", "gold"),
    {
        "-5": "5",
        "2": "1, 2",
        "1, 2, 3": "1, 2",
        # a relation with one side, an equation that is not solved
        "> 42": "42",
        r"\geq 4": "4",
        "2x=10": "10",
        "2+3=12": "12",
        r"5\to 6": "5",
        "300 cm": "3 kg",
    }.items(),
)
def test_different_values_need_no_algebra(answer, gold):
    assert verdict(answer, gold) is False


@pytest.mark.parametrize(
    ("answer", "gold"),
    {
        "9" * 5_000: "9" * 4_999,  # Python reads no such integer
        r"\sqrt{12}": r"2\sqrt{3}",
        "5 xy": "5",
    }.items(),
)
def test_formulas_without_a_rational_value_are_left_to_algebra(answer, gold):
    assert verdict(answer, gold) is None


def test_a_bare_list_is_not_read_as_a_formula():
    # math-verify takes a number out of a text, here the last
    assert quick_verdict(Answer("2, 3.5", is_marked=False), stated_answer("3.50")) is None


RIGHT = [  # by mathematics
    (r"<think>hm</think>\boxed{12}", "12"),
    (r"\boxed{\sqrt{12}}", r"\boxed{2\sqrt{3}}"),
    (r"\boxed{\frac{\sqrt{3}}{3}}", r"\frac{1}{\sqrt{3}}"),
    (r"\boxed{6!}", "720"),
    (r"\boxed{\frac{\pi}{4}}", r"0.25\pi"),
    (r"\boxed{\log_2 8}", "3"),
    # several numbers
    (r"\boxed{1, 2}", "2, 1"),
    (r"\boxed{\left(3, \frac{\pi}{2}\right)}", r"(3, \pi/2)"),
    (r"\boxed{(-∞, 0) \cup (0, 1)}", r"(-\infty, 0) \cup (0, 1)"),
    (r"\boxed{\{3, 1, 2\}}", r"\{1, 2, 3\}"),
    # words
    (r"\boxed{\text{east}}", r"\text{east}"),
    ("Answer: C. carbon", "C"),
    # t stands for numbers that both roots allow
    (r"\boxed{\sqrt{\frac{2}{t}}}", r"\frac{\sqrt{2}}{\sqrt{t}}"),
    ("**Final Answer:**\n\n**Answer:** 34.", "34"),
]
WRONG = [
    (r"\boxed{2}", r"2\sqrt{3}"),  # without dollars math-verify reads this gold as 2
    (r"\boxed{3.14}", r"\pi"),
    (r"\boxed{2 - 3i}", "2 + 3i"),
    (r"\boxed{[0, 1)}", "[0, 1]"),
    # nothing is not 0
    (r"\boxed{\text{no solution}}", "0"),
    (r"\boxed{0}", r"\emptyset"),
    (r"\boxed{\sqrt{t^2}}", "t"),  # t may be negative
    (r"\boxed{" + "9" * 5_000 + "}", "9"),
]


@pytest.mark.parametrize(("cases", "expected"), [(RIGHT, True), (WRONG, False)])
def test_completions_are_right_where_mathematics_says_so(cases, expected):
    completions, golds = zip(*cases, strict=True)
    for case, result in zip(cases, grade(completions, golds), strict=True):
        assert result.is_correct is expected, case
        assert result.failure is None


def test_a_grade_names_the_answer():
    grades = grade([r"\boxed{$3$}", "3"], ["3", "3"])
    assert [result.answer for result in grades] == ["3", None]


def test_a_gold_that_cannot_be_read_has_no_grade_but_where_no_answer_is_given():
    completions = [r"\boxed{3}", "no answer", r"\boxed{3}", r"\boxed{\text{}}"]
    golds = [r"\text{}", r"\text{}", "", r"\text{}"]
    assert [result.is_correct for result in grade(completions, golds)] == [None, False, None, True]


def test_unreadable_solutions_are_named_by_row():
    solutions = ["12", "", "(C)", r"\text{}", r"2\sqrt{3}", "no solution", "$ $"]
    assert list(unreadable_solutions(solutions)) == [1, 3, 6]


def rows_of(path):
    return [json.loads(line) for line in path.open(encoding="utf-8")]


@pytest.fixture(scope="module")
def disagreements(request):
    path = request.config.rootpath / "tests" / "fixtures" / "grader_disagreements.json"
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_disagreements_with_the_public_cases_are_the_known_ones(shared_data, disagreements, mode):
    rows = rows_of(shared_data / "grader_cases.jsonl")
    completions = [
        row["prediction"] if row["form"] == "completion" else f"Answer: {row['prediction']}" for row in rows
    ]
    grades = grade(completions, [row["gold"] for row in rows], lenient=mode == "lenient")
    # a case that did not end on a loaded machine says nothing
    ended = [(row, result) for row, result in zip(rows, grades, strict=True) if result.failure is None]
    assert len(ended) >= len(rows) - 3
    expected = {row["id"] for row, _ in ended if row["id"] in disagreements[mode]}
    assert {row["id"] for row, result in ended if bool(result.is_correct) != row["match"]} == expected
    assert set(disagreements[mode].values()) <= set(disagreements["reasons"])


@pytest.mark.slow
def test_hostile_inputs_neither_hang_nor_take_memory(shared_data, disagreements, caplog):
    caplog.set_level(logging.ERROR)
    for row in rows_of(shared_data / "grader_hostile.jsonl"):
        start = time.monotonic()
        result = grade([row["input"]], [row["gold"] or "42"])[0]
        assert time.monotonic() - start < 120, row["id"]
        if result.failure is None:
            assert row.get("expected") in (None, result.is_correct) or row["id"] in disagreements["hostile"], row["id"]
        else:
            assert not result.is_correct
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < 1_000_000_000
