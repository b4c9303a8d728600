"""Grades of completions: by mathematics, and on the public cases."""

import json
import logging
import resource
import time

import pytest

from leash_trl.rewards.grader.answer import Answer, stated_answer
from leash_trl.rewards.grader.grading import grade, quick_verdict, unreadable_solutions


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("073", "73", True),
        ("-5", "5", False),
        ("9" * 5_000, "9" * 4_999, None),  # Python reads no such integer
        ("(C)", "C", True),
        ("2", "1, 2", False),
        ("1, 2, 3", "1, 2", False),
        ("1,000", "1000", True),
        (r"\sqrt{12}", r"2\sqrt{3}", None),
        # a relation with one side, an equation that is not solved
        ("> 42", "42", False),
        (r"\geq 4", "4", False),
        ("2x=10", "10", False),
        (r"\cos x = 10", "10", True),
        ("2+3=12", "12", False),
        (r"5\to 6", "5", False),
        # units
        ("120 m^2", "120", True),
        (r"5\,\mathrm{N}", "5", True),
        ("5 xy", "5", None),
        ("7%", "0.07", True),
        ("18 mph", "18", True),
        ("300 cm", "3 meters", True),
        ("300 cm", "3 kg", False),
        (r"{52}_8", "52_8", True),
        ("12:30", "12:30 AM", True),
        # a mixed number is a whole number and a fraction, wherever it stands
        (r"\frac12\frac34", r"\frac38", True),
        ("3,5", "3.5", True),
        ("1/3", "0.3333333", True),  # a rounded gold
    ],
)
def test_verdicts_that_need_no_algebra(answer, gold, expected):
    assert quick_verdict(stated_answer(answer), stated_answer(gold)) is expected


def test_a_bare_list_is_not_read_as_a_formula():
    # math-verify takes a number out of a text, here the last
    assert quick_verdict(Answer("2, 3.5", is_found=False), stated_answer("3.50")) is None


# (completion, gold, whether it is right by mathematics)
CASES = [
    # numbers
    (r"<think>hm</think>\boxed{12}", "12", True),
    (r"\boxed{2}", r"2\sqrt{3}", False),  # without dollars math-verify reads this gold as 2
    (r"\boxed{\sqrt{12}}", r"\boxed{2\sqrt{3}}", True),
    (r"\boxed{\frac{\sqrt{3}}{3}}", r"\frac{1}{\sqrt{3}}", True),
    (r"\boxed{6!}", "720", True),
    (r"\boxed{\frac{\pi}{4}}", r"0.25\pi", True),
    (r"\boxed{3.14}", r"\pi", False),
    (r"\boxed{2 - 3i}", "2 + 3i", False),
    (r"\boxed{\log_2 8}", "3", True),
    # several numbers
    (r"\boxed{1, 2}", "2, 1", True),
    (r"\boxed{\left(3, \frac{\pi}{2}\right)}", r"(3, \pi/2)", True),
    (r"\boxed{[0, 1)}", "[0, 1]", False),
    (r"\boxed{(-∞, 0) \cup (0, 1)}", r"(-\infty, 0) \cup (0, 1)", True),
    (r"\boxed{\{3, 1, 2\}}", r"\{1, 2, 3\}", True),
    (r"\boxed{\text{east}}", r"\text{east}", True),
    ("Answer: C. carbon", "C", True),
    # nothing in words
    (r"\boxed{\text{no solution}}", "0", False),
    (r"\boxed{0}", r"\emptyset", False),
    # letters stand for numbers that all roots allow
    (r"\boxed{\sqrt{\frac{2}{t}}}", r"\frac{\sqrt{2}}{\sqrt{t}}", True),
    (r"\boxed{\sqrt{t^2}}", "t", False),
    # where the answer stands
    ("**Final Answer:**\n\n**Answer:** 34.", "34", True),
    (r"\boxed{" + "9" * 5_000 + "}", "9", False),
]


def test_completions_are_right_where_mathematics_says_so():
    grades = grade([case[0] for case in CASES], [case[1] for case in CASES])
    assert [case for case, one in zip(CASES, grades, strict=True) if one.is_correct != case[2]] == []
    assert {one.failure for one in grades} == {None}


def test_a_grade_names_the_answer():
    assert [one.answer for one in grade([r"\boxed{$3$}", "3"], ["3", "3"])] == ["3", None]


def test_a_gold_that_cannot_be_read_has_no_grade_but_where_no_answer_is_given():
    grades = grade([r"\boxed{3}", "3", r"\boxed{3}", r"\boxed{\text{}}"], [r"\text{}", r"\text{}", "", r"\text{}"])
    assert [one.is_correct for one in grades] == [None, False, None, True]


def test_unreadable_solutions_are_named_by_row():
    solutions = ["12", "", "(C)", r"\text{}", r"2\sqrt{3}", "no solution", "$ $"]
    assert [*unreadable_solutions(solutions)] == [1, 3, 6]


def parse(path) -> list[dict]:
    return [json.loads(line) for line in path.open(encoding="utf-8")]


@pytest.fixture(scope="module")
def disagreements(request):
    path = request.config.rootpath / "tests" / "fixtures" / "grader_disagreements.json"
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_disagreements_with_the_public_cases_are_the_known_ones(shared_data, disagreements, mode):
    rows = parse(shared_data / "grader_cases.jsonl")
    completions = [
        row["prediction"] if row["form"] == "completion" else f"Answer: {row['prediction']}" for row in rows
    ]
    grades = grade(completions, [row["gold"] for row in rows], lenient=mode == "lenient")
    # a case that did not end on a loaded machine says nothing
    ended = {row["id"] for row, one in zip(rows, grades, strict=True) if one.failure is None}
    found = {row["id"] for row, one in zip(rows, grades, strict=True) if bool(one.is_correct) != row["match"]}
    assert found & ended == set(disagreements[mode]) & ended
    assert len(ended) >= len(rows) - 3
    assert set(disagreements[mode].values()) <= set(disagreements["reasons"])


@pytest.mark.slow
def test_hostile_inputs_neither_hang_nor_take_memory(shared_data, disagreements, caplog):
    caplog.set_level(logging.ERROR)
    rows = parse(shared_data / "grader_hostile.jsonl")
    found = set()
    for row in rows:
        start = time.monotonic()
        one = grade([row["input"]], [row["gold"] or "42"])[0]
        assert time.monotonic() - start < 120, row["id"]
        if one.failure is None and row.get("expected") not in (None, one.is_correct):
            found.add(row["id"])
        assert not (one.failure and one.is_correct)
    assert found <= set(disagreements["hostile"])
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < 1_000_000_000
