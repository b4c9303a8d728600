r"""Counts on answers that were labeled by hand before any grader had read them.

`data/grader_fresh_cases.jsonl` holds a kind, a gold, right and wrong answers a line. A text without a box and
without `Answer` is put into `\boxed{}`. What is equal is what a teacher would call equal: missing units and names do
not matter, other ones do; a hedge is wrong; a rounded number is not the exact one. When first counted, the second half
of the first set had 2 wrong answers accepted and 18 right ones rejected of 850, the second set, by someone who had not
read the grader, 14 and 17 of 1,148 (math-verify alone 57 and 225). The third set, on words, names and signs that the
values do not carry, had 5 and 12 of 281 (the grader before their rules 70 and 47); eight of its answers, such as "half
an hour late" for 30 minutes, are left out. Mended since, so none is fresh now; the three wrong answers that are
accepted are the price of rules taken out because each decided one case.
"""

import json
from pathlib import Path

import pytest

from leash_trl.rewards.grader.grading import grade


FILE = Path(__file__).parents[1] / "fixtures" / "grader_fresh_cases.jsonl"


@pytest.mark.parametrize(("label", "is_right", "most"), [("wrong", False, 3), ("right", True, 15)])
def test_few_fresh_answers_are_graded_wrong(label, is_right, most):
    answers = []
    golds = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        answers += row[label]
        golds += [row["gold"]] * len(row[label])
    completions = [answer if "box" in answer or "Answer" in answer else f"\\boxed{{{answer}}}" for answer in answers]
    cases = zip(answers, golds, grade(completions, golds), strict=True)
    wrongly_graded = [(answer, gold) for answer, gold, grade in cases if bool(grade.is_correct) != is_right]
    assert len(wrongly_graded) <= most, wrongly_graded
