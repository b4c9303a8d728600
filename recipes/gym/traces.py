"""Writes worked solutions of the gym's sums and stories, called traces, of various lengths.

Each addition or subtraction of a trace is written in one of four styles. Those of a sum take seven to zero tokens:

    full:  " Take (b) -3 to get 16."      of a story: " Then she gives 3 to Sam, so that makes 19 - 3 = 16."
    short: " (b) -3 = 16"                             " 19 - 3 = 16."
    terse: " (b) 16"                                  " Now 16."
    skip:  no text, so the next total includes two terms

A small model almost always adds one term correctly, two terms at once less often, and three terms rarely. A trace that
is too short therefore costs accuracy, and training with a length penalty does not remove this cost.
"""

import math
import random
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from leash_trl.gym.stories import Story
from leash_trl.gym.task import LABELS, MAX_TOTAL, Problem


MAX_NUMBER = MAX_TOTAL + 10  # an injected error may add ten to the largest total

# Texts of a step in the styles full, short and terse; skip has no text.
FULL = " Take ({label}) {term:+d} to get {total}."
SHORT = " ({label}) {term:+d} = {total}"
TERSE = " ({label}) {total}"
STEP_TEXTS = (FULL, SHORT, TERSE, "")

# A small model cannot count its passes, so each recheck begins with different words.
RECHECK_OPENINGS = (" Wait, recheck from {}.", " Hmm, check again from {}.")
STORY_OPENINGS = ("", "Let me think step by step.", "Let me work this out step by step.")
STORY_RECHECKS = (" Wait, let me check that. Start with {}.", " Let me check it once more. Start with {}.")


@dataclass(frozen=True)
class TraceStyle:
    """Parameters of the length of traces and of the errors in them.

    Args:
        brevity (`float`): Median over traces of `u`, the ratio of a style's weight to the weight of the next longer
            style: full, short, terse and skip have the weights 1, u, u^2 and `skip_share` u^3.
        spread (`float`): Standard deviation of the logarithm of `u`.
        skip_share (`float`): Factor of the weight of the style skip; with 0, no step is skipped.
        recheck_brevity (`float`): The same as `brevity` for rechecks, which skip no step.
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


def labeled_wording(problem: Problem) -> Wording:
    """Returns the gym's default wording, in which each step names the label of its term."""
    steps = []
    for label, term in zip(LABELS, problem.terms[1:], strict=False):
        # Four texts in the styles full, short, terse and skip, such as " (b) -3 = {total}" in the style short. The
        # total stays a field, since it depends on the errors of the trace.
        steps.append(tuple(text.format(label=label, term=term, total="{total}") for text in STEP_TEXTS))
    return Wording(
        steps=tuple(steps),
        rechecks=tuple(opener.format(problem.terms[0]) for opener in RECHECK_OPENINGS),
        confirmation=" Yes, it is {}.",
        repair=" No, that was a slip, it is {}.",
        closer=" So the answer is {}.",
        ending="</think>\\boxed{{{}}}",
    )


class Slip(NamedTuple):
    """An error in the first pass of a trace. Later steps go on from the wrong total, so it stays until the end."""

    step: int  # from 1
    error: int  # added to the total


class Pass(NamedTuple):
    """One pass over the terms of a sum: its text, and the total that it ends with."""

    text: str
    total: int


def _sample_pass(
    problem: Problem, wording: Wording, brevity: float, skip_share: float, rng: random.Random, slip: Slip | None = None
) -> Pass:
    """Samples a pass over the terms, with a random style for each step, and with the error of `slip` if there is
    one."""
    # Relative frequencies of the styles full, short, terse and skip. The larger `brevity` is, the shorter is the text.
    weights = (1, brevity, brevity**2, skip_share * brevity**3)
    text = ""
    total = problem.terms[0]
    for step, (texts, term) in enumerate(zip(wording.steps, problem.terms[1:], strict=True), start=1):
        before = total
        total += term
        if slip is not None and step == slip.step:
            total += slip.error
        (step_text,) = rng.choices(texts, weights)
        text += step_text.format(before=before, total=total)
    return Pass(text, total)


def _sample_slip(problem: Problem, rng: random.Random) -> Slip:
    """Returns a slip at any step, after which no total is negative."""
    step = rng.randint(1, problem.level)
    # The totals before the first step and after each step: [14, 19, 16] for 14 + 5 - 3. The error is added to all
    # totals from its step on, so an error that would make one of them negative is not drawn.
    totals = list(accumulate(problem.terms))
    lowest = min(totals[step:])
    errors = [error for error in (-10, -2, -1, 1, 2, 10) if lowest + error >= 0]
    return Slip(step, rng.choice(errors))


def solution_trace(problem: Problem, style: TraceStyle, rng: random.Random, wording: Wording | None = None) -> str:
    r"""Samples a worked solution, which ends with its answer in `\boxed{}`.

    The first pass may contain one error. A recheck corrects the error; without a recheck, the boxed answer is wrong.
    `wording` defaults to [`labeled_wording`], whose traces start after `<think>`.
    """
    wording = wording or labeled_wording(problem)
    # All passes of a trace are written in a similar style: a factor below 1 makes them longer than usual.
    factor = math.exp(rng.gauss(0.0, style.spread))
    slip = _sample_slip(problem, rng) if rng.random() < style.slip_rate else None
    first_pass = _sample_pass(
        problem, wording, brevity=factor * style.brevity, skip_share=style.skip_share, rng=rng, slip=slip
    )
    text, total = _with_rechecks(first_pass, problem, wording, style=style, factor=factor, rng=rng)
    has_closer = rng.random() < style.closer_rate
    closer = wording.closer.format(total) if has_closer else ""
    return f"{wording.opening}{text}{closer}{wording.ending.format(total)}"


def _with_rechecks(
    first_pass: Pass, problem: Problem, wording: Wording, style: TraceStyle, factor: float, rng: random.Random
) -> Pass:
    """Samples 0 to 2 rechecks, each of which says whether it confirms the total before, and appends them to the first
    pass."""
    text, total = first_pass
    (num_rechecks,) = rng.choices(range(len(style.recheck_weights)), style.recheck_weights)
    for opening in wording.rechecks[:num_rechecks]:
        # A recheck has no error, so it corrects the total of a first pass with an error.
        recheck = _sample_pass(problem, wording, brevity=factor * style.recheck_brevity, skip_share=0.0, rng=rng)
        verdict = wording.confirmation if recheck.total == total else wording.repair
        text += opening + recheck.text + verdict.format(recheck.total)
        total = recheck.total
    return Pass(text, total)


def _step_texts(sentence: str, term: int) -> tuple[str, ...]:
    """Returns the texts of one step of a story in the four styles, with the format fields `before` and `total`."""
    # Such as "{before} - 3 = {total}": the totals stay fields, since they depend on the errors of the trace.
    sign = "+" if term > 0 else "-"
    equation = f"{{before}} {sign} {abs(term)} = {{total}}"
    full = f"{sentence}, so that makes {equation}."
    short = f" {equation}."
    terse = " Now {total}."
    return full, short, terse, ""


def story_trace(story: Story, style: TraceStyle, rng: random.Random) -> str:
    """Samples a worked solution of a story, as [`solution_trace`], with the answer in a sentence."""
    # Such as 14 things at the start, and the changes 5 and -3.
    start, *changes = story.problem.terms
    steps = []
    for sentence, term in zip(story.sentences, changes, strict=True):
        steps.append(_step_texts(sentence, term))
    wording = Wording(
        steps=tuple(steps),
        rechecks=tuple(recheck.format(start) for recheck in STORY_RECHECKS),
        confirmation=" Yes, that makes {}.",
        repair=" No, I made a mistake before. That makes {}.",
        # Like the other texts, both have a field for the total: " So Nora has {} shells now." is the closer, and
        # "\\boxed{{{}}}" becomes "\\boxed{16}", because double braces stand for braces.
        closer=f" So {story.person} has {{}} {story.things} now.",
        ending=" The answer is \\boxed{{{}}}.",
        opening=rng.choice(STORY_OPENINGS),
    )
    # Every step begins with a space, and so does a trace without an opening.
    return solution_trace(story.problem, style, rng, wording).strip()
