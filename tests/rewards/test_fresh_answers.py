r"""Counts on answers that were labeled by hand before any grader had read them.

`data/grader_fresh_cases.jsonl` holds a kind, a gold, right and wrong answers a line. A text without a box and
without `Answer` is put into `\boxed{}`. What is equal is what a teacher would call equal: missing units and names do
not matter, other ones do; a hedge is wrong; a rounded number is not the exact one. When first counted, the second half
of the first set had 2 wrong answers accepted and 18 right ones rejected of 850, the second set, by someone who had not
read the grader, 14 and 17 of 1,148 (math-verify alone 57 and 225). The third set, on words, names and signs that the
values do not carry, had 5 and 12 of 281 (the grader before their rules 70 and 47); seven of its answers, such as "half
an hour late" for 30 minutes, are left out. Mended since, so none is fresh now; the three wrong answers that are
accepted are the price of rules taken out because each decided one case.
"""

import hashlib
import json
from pathlib import Path

import pytest

from leash_trl.rewards.grader.grading import grade


FILE = Path(__file__).parents[1] / "fixtures" / "grader_fresh_cases.jsonl"


def cases(half: int) -> list[tuple[str, str, bool]]:
    """Completion, gold and label of one half."""
    found = []
    for row in map(json.loads, FILE.read_text(encoding="utf-8").splitlines()):
        for text, label in [(text, True) for text in row["right"]] + [(text, False) for text in row["wrong"]]:
            completion = text if "box" in text or "Answer" in text else f"\\boxed{{{text}}}"
            if hashlib.sha256(f"{row['gold']}|{text}".encode()).digest()[0] % 2 == half:
                found.append((completion, row["gold"], label))
    return found


@pytest.mark.parametrize(("half", "max_accepted", "max_rejected"), [(0, 1, 5), (1, 2, 10)])
def test_few_fresh_answers_are_graded_wrong(half, max_accepted, max_rejected):
    rows = cases(half)
    assert len(rows) > 800
    grades = grade([row[0] for row in rows], [row[1] for row in rows])
    wrong = [row for row, one in zip(rows, grades, strict=True) if row[2] != bool(one.is_correct)]
    accepted, rejected = ([row for row in wrong if row[2] is label] for label in (False, True))
    assert len(accepted) <= max_accepted, accepted
    assert len(rejected) <= max_rejected, rejected
