"""Generates the gym's task: sums of up to ten numbers, and solution traces of various lengths.

Each addition or subtraction of a trace is written in one of four styles, which take seven to zero tokens:

    full:  " Take (b) -3 to get 16."
    short: " (b) -3 = 16"
    terse: " (b) 16"
    skip:  no text, so the next total includes two terms

A small model almost always adds one term correctly, two terms at once less often, and three terms rarely. A trace that
is too short therefore costs accuracy, and training with a length penalty does not remove this cost. This module
generates text only; the tokenizer and the model are in the folder `checkpoint`.
"""

import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


LABELS = "abcdefghi"
MAX_LEVEL = len(LABELS)
ALL_LEVELS = tuple(range(1, MAX_LEVEL + 1))
LEVELS = (1, 3, 5, 7, 9)  # levels of the gym's problems
MAX_FIRST_TERM = 40
MAX_TOTAL = 49
MAX_NUMBER = MAX_TOTAL + 10  # an injected error may add ten to the largest total
HELD_OUT_SHARE = 8  # one problem in eight is a test problem

FULL = " Take ({label}) {term:+d} to get {total}."
SHORT = " ({label}) {term:+d} = {total}"
TERSE = " ({label}) {total}"
STEPS = (FULL, SHORT, TERSE, "")

# A small model cannot count its passes, so each recheck begins with different words.
OPENERS = (" Wait, recheck from {}.", " Hmm, check again from {}.")
CONFIRMATION = " Yes, it is {}."
REPAIR = " No, that was a slip, it is {}."
CLOSER = " So the answer is {}."
ENDING = "</think>\\boxed{{{}}}"

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
        labeled = "".join(f" ({label}) {term:+d}" for label, term in zip(LABELS, self.terms[1:], strict=False))
        return f"{self.terms[0]}{labeled} = ?"

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def level(self) -> int:
        return len(self.terms) - 1

    @property
    def split(self) -> Split:
        """Returns `"test"` for one eighth of the problems, which a hash of the question selects, else `"train"`."""
        return "test" if zlib.crc32(self.question.encode()) % HELD_OUT_SHARE == 0 else "train"


@dataclass(frozen=True)
class TraceStyle:
    """Parameters of the length of traces and of the errors in them.

    Args:
        brevity (`float`): Median over traces of the ratio `u` of a style's weight to that of the next longer style:
            full, short, terse and skip have the weights 1, u, u^2 and `skip_share` u^3.
        spread (`float`): Standard deviation of the logarithm of `u`.
        skip_share (`float`): Factor of the weight of the style skip; with 0, no step is skipped.
        recheck_brevity (`float`): Same as `brevity`, for rechecks, which skip no step.
        recheck_weights (`tuple[float, ...]`): Relative frequencies of 0, 1 and 2 rechecks.
        slip_rate (`float`): Probability, per trace, that one step of the first pass is wrong. A recheck corrects it.
        closer_rate (`float`): Probability, per trace, of a closing sentence that repeats the answer.
    """

    brevity: float = 0.3
    spread: float = 0.9
    skip_share: float = 0.1
    recheck_brevity: float = 0.6
    recheck_weights: tuple[float, ...] = (0.3, 0.4, 0.3)
    slip_rate: float = 0.05
    closer_rate: float = 0.7


@dataclass(frozen=True)
class Wording:
    """The texts that the traces of one problem consist of.

    Args:
        steps (`tuple[tuple[str, ...], ...]`): Four texts for each addition or subtraction, from full to skip, with
            the format fields `before` and `total`.
        rechecks (`tuple[str, ...]`): Opening texts of the first and of the second recheck.
        confirmation (`str`), repair (`str`): Text after a recheck that finds the same total, and another total.
        closer (`str`), ending (`str`): The sentence that repeats the answer, and the end of every trace. All four
            texts have one format field for the total.
        opening (`str`): Text at the start of a trace.
    """

    steps: tuple[tuple[str, ...], ...]
    rechecks: tuple[str, ...]
    confirmation: str
    repair: str
    closer: str
    ending: str
    opening: str = ""


STEP_BY_STEP = TraceStyle(brevity=1.5, skip_share=0.0, recheck_weights=(1.0,), slip_rate=0.0, closer_rate=0.3)
SHORTCUTS = TraceStyle(brevity=1.5, recheck_weights=(0.8, 0.2), recheck_brevity=1.5, slip_rate=0.0, closer_rate=0.3)


def sample_problem(rng: random.Random, level: int) -> Problem:
    """Samples a problem with `level` operations, 1 to 9. The first term and the digits are drawn uniformly."""
    terms = [rng.randint(1, MAX_FIRST_TERM)]
    for _ in range(level):
        digit = rng.randint(1, 9)
        total = sum(terms)
        subtract = total + digit > MAX_TOTAL or (total >= digit and rng.random() < 0.5)
        terms.append(-digit if subtract else digit)
    return Problem(tuple(terms))


def problems(seed: int, levels: tuple[int, ...], split: Split) -> Iterator[Problem]:
    """Yields an endless stream of problems of one split, with levels drawn uniformly from `levels`."""
    rng = random.Random(seed)
    while True:
        problem = sample_problem(rng, rng.choice(levels))
        if problem.split == split:
            yield problem


def labeled(problem: Problem) -> Wording:
    """Returns the gym's default wording, in which each step names the label of its term."""
    signed = list(zip(LABELS, problem.terms[1:], strict=False))
    return Wording(
        steps=tuple(tuple(step.format(label=x, term=term, total="{total}") for step in STEPS) for x, term in signed),
        rechecks=tuple(opener.format(problem.terms[0]) for opener in OPENERS),
        confirmation=CONFIRMATION,
        repair=REPAIR,
        closer=CLOSER,
        ending=ENDING,
    )


def _one_pass(
    problem: Problem, wording: Wording, u: float, skip_share: float, rng: random.Random, slip: tuple[int, int] = (0, 0)
) -> tuple[str, int]:
    slip_step, error = slip
    total, text = problem.terms[0], ""
    weights = (1, u, u**2, skip_share * u**3)
    for step, (ways, term) in enumerate(zip(wording.steps, problem.terms[1:], strict=True), 1):
        before = total
        total += term + error * (step == slip_step)
        text += rng.choices(ways, weights)[0].format(before=before, total=total)
    return text, total


def _sample_slip(problem: Problem, rng: random.Random) -> tuple[int, int]:
    step = rng.randint(1, problem.level)
    later = [sum(problem.terms[: k + 1]) for k in range(step, problem.level + 1)]
    return step, rng.choice([slip for slip in (-10, -2, -1, 1, 2, 10) if min(later) + slip >= 0])


def solution_trace(problem: Problem, style: TraceStyle, rng: random.Random, wording: Wording | None = None) -> str:
    r"""Samples a worked solution, which ends with its answer in `\boxed{}`.

    The first pass may contain one error. A recheck corrects the error; without a recheck, the boxed answer is wrong.
    `wording` defaults to [`labeled`], whose traces start after `<think>`.
    """
    wording = wording or labeled(problem)
    factor = math.exp(rng.gauss(0.0, style.spread))
    slip = _sample_slip(problem, rng) if rng.random() < style.slip_rate else (0, 0)
    text, total = _one_pass(problem, wording, factor * style.brevity, style.skip_share, rng, slip)
    rechecks = rng.choices(range(len(style.recheck_weights)), style.recheck_weights)[0]
    for opener in wording.rechecks[:rechecks]:
        working, new_total = _one_pass(problem, wording, factor * style.recheck_brevity, 0.0, rng)
        text += opener + working + (wording.confirmation if new_total == total else wording.repair).format(new_total)
        total = new_total
    closer = wording.closer.format(total) if rng.random() < style.closer_rate else ""
    return f"{wording.opening}{text}{closer}{wording.ending.format(total)}"
