r"""Grades completions against reference answers; the worker pool decides the few comparisons that need algebra.

[`~leash_trl.rewards.grader.answer`] finds the answer of a completion. The first step with a verdict then decides:

1. Answers whose texts are the same in one spelling are equal.
2. If the reference answer is the letter of a choice, the answer must name this letter and no other letter.
3. Words that stand on both sides and differ contradict each other, and words bind the numbers beside them
   ([`~leash_trl.rewards.grader.words`]): 15 boys are not 15 girls.
4. The answer must commit to a number, a list or words ([`~leash_trl.rewards.grader.commitment`]): a hedge is wrong,
   and words are compared as words.
5. If both answers can be read ([`~leash_trl.rewards.grader.equality`]), their values decide exactly: 6.63e-34 does not
   equal 6.62e-34, and 0.3333333 does not equal 1/3. Formulas that differ at several points are different. A sign that
   no parser reads must stand in both answers, between equal parts.
6. math-verify decides all other comparisons, such as the comparison of two forms of one logarithm.
"""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from leash_trl.completions.thinking import DEFAULT_MARKERS, ThinkingMarkers, markers_of_completions
from leash_trl.rewards.grader.answer import Answer, find_answer, gold_answer
from leash_trl.rewards.grader.commitment import are_equal_as_words, unhedged_answer
from leash_trl.rewards.grader.equality import are_equal
from leash_trl.rewards.grader.multiple_choice import choice_letter, choice_verdict
from leash_trl.rewards.grader.parsing import parse_answer
from leash_trl.rewards.grader.pool import Case, GraderPool
from leash_trl.rewards.grader.words import words_verdict


MAX_CHARACTERS = 5_000  # longer texts are left to the worker processes and their time limit


@dataclass(frozen=True)
class Grade:
    """Verdict on one completion. `answer` is `None` if the completion has none. If `is_correct` is `None` without a
    failure, the reference answer cannot be read."""

    answer: str | None
    is_correct: bool | None
    failure: str | None = None


@functools.cache
def _pool() -> GraderPool:
    return GraderPool()


# A forked process, as in `Dataset.map(num_proc=...)`, must not talk to the worker processes of its parent.
os.register_at_fork(after_in_child=_pool.cache_clear)


def quick_verdict(answer: Answer, gold: Answer) -> bool | None:
    """Returns the verdict of steps 1 to 5 at the head of this module; `None` if a worker process must decide.

    Example:
        >>> quick_verdict(gold_answer("073"), gold_answer("73")), quick_verdict(gold_answer("2x"), gold_answer("x+x"))
        (True, None)
    """
    if answer.text == gold.text:
        return True
    # Long texts are left to a worker process, which has a time limit.
    if max(len(answer.text), len(gold.text)) > MAX_CHARACTERS:
        return None
    # The text of an unmarked answer is a whole completion. It may name the letter of a choice; otherwise math-verify
    # searches it.
    if not answer.is_marked:
        return choice_verdict(answer.text, gold.text) or None
    for compare in (choice_verdict, words_verdict, _unhedged_verdict):
        verdict = compare(answer.text, gold.text)
        if verdict is not None:
            return verdict
    return None


def _unhedged_verdict(answer: str, gold: str) -> bool | None:
    """Returns whether two answers commit to the same words or the same value, by steps 4 and 5."""
    # The only number, list or word of a text: 34 of "34, not 35"; `None` stands for a hedge, such as "34 or more".
    unhedged = unhedged_answer(answer)
    unhedged_gold = unhedged_answer(gold)
    # A gold with a hedge is left to math-verify.
    if unhedged_gold is None:
        return None
    if unhedged is None:
        return False
    verdict = are_equal_as_words(unhedged, unhedged_gold)
    return are_equal(unhedged, unhedged_gold) if verdict is None else verdict


def grade(
    completions: Sequence[str],
    solutions: Sequence[str],
    lenient: bool = False,
    thinking_markers: ThinkingMarkers | Sequence[ThinkingMarkers] = DEFAULT_MARKERS,
) -> list[Grade]:
    """Grades completions against their reference answers, with the settings of [`~leash_trl.rewards.math_reward`].

    A completion without an answer is wrong, even if its reference answer cannot be read. Raises `RuntimeError` if no
    worker process of the grader starts, for example because math-verify is missing.
    """
    all_markers = markers_of_completions(thinking_markers, len(completions))
    answers = [
        find_answer(completion, lenient, markers) for completion, markers in zip(completions, all_markers, strict=True)
    ]
    golds = [gold_answer(solution) for solution in solutions]
    grades = list(map(_quick_grade, answers, golds))
    # By index of the completion, such as {3: (r"\boxed{\ln 4}", r"\boxed{2\ln 2}")}.
    undecided: dict[int, Case] = {}
    for index, (answer, gold) in enumerate(zip(answers, golds, strict=True)):
        if answer and gold and grades[index].is_correct is None:
            undecided[index] = (_worker_input(answer), _worker_input(gold))
    verdicts = _pool().verdicts(list(undecided.values()))
    for index, verdict in zip(undecided, verdicts, strict=True):
        grades[index] = Grade(grades[index].answer, verdict.is_equal, verdict.failure)
    return grades


def _quick_grade(answer: Answer | None, gold: Answer | None) -> Grade:
    """Returns a grade whose `is_correct` is `None` until a worker process decides, and stays `None` if there is no
    reference answer."""
    if answer is None:
        return Grade(answer=None, is_correct=False)
    return Grade(answer.text, is_correct=quick_verdict(answer, gold) if gold else None)


def _worker_input(answer: Answer) -> str:
    """Returns the input for math-verify: the formula among the words if there is exactly one, else the answer."""
    # Of "34 girls, not 35", math-verify gets 34 "girls". An unmarked answer is searched by math-verify itself.
    if answer.is_marked and len(answer.text) <= MAX_CHARACTERS:
        formula = unhedged_answer(answer.text)
        if formula is not None and formula != answer.text:
            return f"\\boxed{{{formula}}}"
    return answer.math_verify_input


def unreadable_solutions(solutions: Sequence[str]) -> dict[int, str]:
    """Returns the faults of those reference answers with which the grader cannot compare any answer, by row number
    from 0."""
    faults = {}  # such as {4: "is empty"}
    undecided: dict[int, Case] = {}
    for row, gold in enumerate(map(gold_answer, solutions)):
        if gold is None:
            faults[row] = "is empty"
        # A letter or an answer that this package can parse is readable. A long text is left to a worker process, which
        # has a time limit.
        elif len(gold.text) > MAX_CHARACTERS or not (choice_letter(gold.text) or parse_answer(gold.text)):
            # Without an answer, a case asks only whether math-verify can read the gold.
            undecided[row] = (None, gold.math_verify_input)
    verdicts = _pool().verdicts(list(undecided.values()))
    for row, verdict in zip(undecided, verdicts, strict=True):
        is_readable = verdict.is_equal  # the verdict on a gold without an answer
        if not is_readable:
            faults[row] = verdict.failure or "cannot be read by math-verify"
    # The faults that worker processes found were added last, so they are out of order.
    return dict(sorted(faults.items()))
