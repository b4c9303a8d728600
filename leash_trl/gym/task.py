"""Generates the gym's task: sums of up to ten numbers."""

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


LABELS = "abcdefghi"
MAX_LEVEL = len(LABELS)
LEVELS = (1, 3, 5, 7, 9)  # levels of the gym's problems
MAX_FIRST_TERM = 40
MAX_TOTAL = 49
PROBLEMS_PER_TEST_PROBLEM = 8  # one problem in eight is a test problem, all others are training problems

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Problem:
    """A sum such as `14 (a) +5 (b) -3`, whose terms have labels. Its level is the number of labels.

    Args:
        terms (`tuple[int, ...]`): Signed terms. The first is positive, and every partial sum lies in `[0, 49]`.
    """

    terms: tuple[int, ...]

    @property
    def question(self) -> str:
        first, *others = self.terms
        # Such as " (a) +5 (b) -3". There are nine labels, but a problem may have fewer terms.
        labeled_terms = "".join(f" ({label}) {term:+d}" for label, term in zip(LABELS, others, strict=False))
        return f"{first}{labeled_terms} = ?"

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def level(self) -> int:
        return len(self.terms) - 1

    @property
    def split(self) -> Split:
        """Returns `"test"` for one eighth of the problems, which a hash of the question selects, else `"train"`."""
        # Unlike Python's hash of text, this one is the same in every process.
        digest = zlib.crc32(self.question.encode())
        return "test" if digest % PROBLEMS_PER_TEST_PROBLEM == 0 else "train"


def sample_problem(rng: random.Random, level: int) -> Problem:
    """Samples a problem with `level` operations, 1 to 9. The first term and the digits are drawn uniformly."""
    terms = [rng.randint(1, MAX_FIRST_TERM)]
    # A digit that would raise the total above 49 is subtracted, and one that would make it negative is added; all
    # others are added or subtracted with equal probability.
    for _ in range(level):
        digit = rng.randint(1, 9)
        total = sum(terms)
        must_subtract = total + digit > MAX_TOTAL
        may_subtract = total >= digit
        is_subtracted = must_subtract or (may_subtract and rng.random() < 0.5)
        terms.append(-digit if is_subtracted else digit)
    return Problem(tuple(terms))


def problems(seed: int, levels: tuple[int, ...], split: Split) -> Iterator[Problem]:
    """Yields an endless stream of problems of one split, with levels drawn uniformly from `levels`."""
    rng = random.Random(seed)
    while True:
        # A hash of the problem decides its split, so the same problem is never in both.
        problem = sample_problem(rng, rng.choice(levels))
        if problem.split == split:
            yield problem
