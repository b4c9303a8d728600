"""Golds that the grader cannot read."""

import logging

import pytest
from datasets import Dataset

from leash_trl.data.readable_solutions import with_readable_solutions


GOLDS = ["-12", "\\frac{1}{2}", "", "7", ""]


def test_golds_that_cannot_be_graded_are_named_or_left_out(caplog):
    readable = Dataset.from_dict({"solution": GOLDS[:2]})
    assert with_readable_solutions(readable, "rows") is readable
    problems = Dataset.from_dict({"solution": GOLDS})
    with pytest.raises(ValueError, match=r"2 of 5 solutions of rows .*row 2: '' .*row 4: ''") as error:
        with_readable_solutions(problems, "rows")
    assert "\n" not in str(error.value)
    assert with_readable_solutions(problems, "rows", drops=True)["solution"][:] == [GOLDS[i] for i in (0, 1, 3)]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    with pytest.raises(ValueError, match=r"row 1 .*solution"):
        with_readable_solutions(Dataset.from_dict({"solution": ["1", None]}), "rows")
