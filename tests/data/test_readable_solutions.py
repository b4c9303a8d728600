"""Golds that the grader cannot read."""

import logging

import pytest
from datasets import Dataset

from leash_trl.data.readable_solutions import with_readable_solutions


GOLDS = ["-12", "\\frac{1}{2}", "", "7", ""]


def problems(*golds):
    return Dataset.from_dict({"solution": golds})


def test_readable_golds_pass():
    readable = problems("-12", "\\frac{1}{2}")
    assert with_readable_solutions(readable, "rows") is readable


def test_golds_that_cannot_be_graded_are_named_in_one_line():
    with pytest.raises(ValueError, match=r"2 of 5 solutions of rows .*row 2: '' .*row 4: ''") as error:
        with_readable_solutions(problems(*GOLDS), "rows")
    assert "\n" not in str(error.value)


def test_their_rows_are_left_out_on_request(caplog):
    kept = with_readable_solutions(problems(*GOLDS), "rows", drops_unreadable=True)
    assert kept["solution"][:] == ["-12", "\\frac{1}{2}", "7"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_missing_gold_is_refused_by_its_row():
    with pytest.raises(ValueError, match=r"solutions of rows .*row 1: None"):
        with_readable_solutions(problems("1", None), "rows")
