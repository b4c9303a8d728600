"""The gym's task: running sums, and solution traces that over-think the way real reasoning models do.

A trace computes the sum once, then rechecks it a random number of times, and now and then repairs a slip of the first
pass. This file only makes text; the tokenizer and the model are beside it.
"""

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


MAX_TERMS = 4
LEVELS = tuple(range(1, MAX_TERMS))
MAX_FIRST_TERM = 20
MAX_NUMBER = MAX_FIRST_TERM + 9 * (MAX_TERMS - 1) + 10  # a slip may add ten to the largest total
HELD_OUT_SHARE = 8  # one problem in eight is a test problem

# Traces number their passes, because a model this small cannot count them otherwise.
ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth")
OPENERS = ("Wait, recheck. ", "Wait, double-check. ", "Hmm, check again. ", "Wait, verify again. ", "Hmm, rethink. ")
CONFIRMATIONS = ("Thus it is still {}. ", "Yes, it is {} again. ", "So overall it is {}. ")
REPAIR = "No, that was a slip. So it is {}. "
GLANCE = "the steps look right and the signs look right. "
CLOSERS = ("Therefore the answer is {}.", "I conclude the answer is {}.")

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Problem:
    """A running sum such as `7 + 5 - 3`; its level is the number of additions and subtractions.

    Args:
        terms (`tuple[int, ...]`):
            Signed terms, the first positive; every partial sum lies in `[0, 47]`.
    """

    terms: tuple[int, ...]

    @property
    def question(self) -> str:
        signed = "".join(f" {'+' if term > 0 else '-'} {abs(term)}" for term in self.terms[1:])
        return f"{self.terms[0]}{signed} = ?"

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def level(self) -> int:
        return len(self.terms) - 1

    @property
    def split(self) -> Split:
        """`"test"` for the held-out eighth; a hash of the question decides, so it is the same everywhere."""
        return "test" if zlib.crc32(self.question.encode()) % HELD_OUT_SHARE == 0 else "train"


@dataclass(frozen=True)
class TraceStyle:
    """How much a trace over-thinks and how often it errs.

    Args:
        recheck_weights (`tuple[float, ...]`):
            Relative frequency of 0, 1, 2, ... rechecks. Few traces have none, but a policy must find them by sampling.
        slip_rate (`float`):
            Probability, per trace, that one step of the first pass is wrong.
        recompute_rate (`float`):
            Probability, per recheck, that it recomputes all steps, which repairs any slip; otherwise it only says that
            all looks right.
    """

    recheck_weights: tuple[float, ...] = (0.06, 0.06, 0.12, 0.2, 0.26, 0.3)
    slip_rate: float = 0.4
    recompute_rate: float = 0.4


CONCISE = TraceStyle(recheck_weights=(1.0,), slip_rate=0.0)


def sample_problem(rng: random.Random, level: int) -> Problem:
    """One problem of the given level, uniform over first terms and digits; partial sums stay at 0 or above.

    Args:
        rng (`random.Random`):
            Source of randomness.
        level (`int`):
            Number of operations, from 1 to `MAX_TERMS - 1`.

    Raises:
        `ValueError`: If `level` is out of range.
    """
    if not 1 <= level < MAX_TERMS:
        raise ValueError(f"level is {level}, but gym problems have levels 1 to {MAX_TERMS - 1}")
    terms = [rng.randint(1, MAX_FIRST_TERM)]
    for _ in range(level):
        digit = rng.randint(1, 9)
        subtract = rng.random() < 0.5 and sum(terms) >= digit
        terms.append(-digit if subtract else digit)
    return Problem(tuple(terms))


def problems(seed: int, levels: tuple[int, ...], split: Split) -> Iterator[Problem]:
    """An endless stream of problems of one split, levels drawn uniformly from `levels`."""
    rng = random.Random(seed)
    while True:
        problem = sample_problem(rng, rng.choice(levels))
        if problem.split == split:
            yield problem


def _working(problem: Problem, passes: int, slip_step: int | None = None, slip: int = 0) -> tuple[str, int]:
    total, text = problem.terms[0], f"{ORDINALS[passes]}, "
    for step, term in enumerate(problem.terms[1:], 1):
        result = total + term + (slip if step == slip_step else 0)
        label = "" if passes else f"{'step' if step == 1 else 'Step'} {step}: "
        text += f"{label}{total} {'+' if term > 0 else '-'} {abs(term)} = {result}. "
        total = result
    return text, total


def _sample_slip(problem: Problem, rng: random.Random) -> tuple[int, int]:
    step = rng.randint(1, problem.level)
    lowest = min(sum(problem.terms[: k + 1]) for k in range(step, problem.level + 1))
    return step, rng.choice([slip for slip in (-10, -2, -1, 1, 2, 10) if lowest + slip >= 0])


def solution_trace(problem: Problem, style: TraceStyle, rng: random.Random) -> str:
    r"""A worked solution, from the first word after `<think>` to the closing brace of `\boxed{}`.

    The first pass may hold one slip. Rechecks follow; those that recompute repair it. If none does, the boxed answer
    is wrong.

    Returns:
        `str`: The trace. The LEASH paper counts its rethink, summary and plan words.
    """
    slip_step, slip = _sample_slip(problem, rng) if rng.random() < style.slip_rate else (None, 0)
    working, total = _working(problem, 0, slip_step, slip)
    text = f"{working}So the total is {total}. "
    rechecks = rng.choices(range(len(style.recheck_weights)), style.recheck_weights)[0]
    for passes in range(1, rechecks + 1):
        text += rng.choice(OPENERS)
        before = total
        if rng.random() < style.recompute_rate:
            working, total = _working(problem, passes)
        else:
            working = f"{ORDINALS[passes]}, {GLANCE}"
        text += working + (REPAIR if total != before else rng.choice(CONFIRMATIONS)).format(total)
    return f"{text}{rng.choice(CLOSERS).format(total)}</think>\\boxed{{{total}}}"
