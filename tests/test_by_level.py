"""A comparison's results by the level of the problems."""

import csv
import io

import numpy as np
import pytest

from leash_trl.evaluation.by_level import level_csv, level_rows, level_table
from leash_trl.evaluation.comparison import SeedResult


LEVELS = [1, 9, 1]


def seed_result(is_correct, lengths):
    return SeedResult(0, np.array(is_correct, dtype=bool), np.array(lengths), 12.0, np.array([]), np.array([]), None)


FIRST = seed_result([[1, 1], [0, 1], [1, 0]], [[4, 6], [30, 50], [5, 5]])
SECOND = seed_result([[1, 0], [0, 0], [0, 0]], [[8, 10], [20, 20], [9, 9]])


def test_each_level_has_its_own_mean_over_seeds():
    low, high = level_rows("A", [FIRST, SECOND], LEVELS)
    # level 1: 3 of 4 and 1 of 4; 20 / 4 = 5 and 36 / 4 = 9 tokens; level 9: 1 of 2 and 0 of 2; 40 and 20 tokens
    assert (low.level, low.accuracy.value, low.tokens.value) == (1, 0.5, 7)
    assert (high.level, high.accuracy.value, high.tokens.value) == (9, 0.25, 30)
    # 7 + 12.706 * 2: the standard deviation of 5 and 9 is sqrt(8), of the mean 2
    assert low.tokens.high == pytest.approx(7 + 12.706 * 2, abs=1e-2)


def test_one_seed_has_no_interval_and_all_is_written():
    rows = level_rows("A", [FIRST], LEVELS)
    assert level_table(rows).splitlines()[2] == "| A | 12 | 0.750, 5.0 | 0.500, 40.0 |"
    first, second = csv.DictReader(io.StringIO(level_csv(rows)))
    assert (first["name"], first["target_length"], first["level"]) == ("A", "12.0", "1")
    assert (second["accuracy"], second["accuracy_interval_low"], second["mean_tokens"]) == ("0.5", "", "40.0")
