r"""Completions and golds in, grades out: where most verdicts need no algebra, and the rest go to the worker pool.

Where the answer stands is the rule of [`~leash_trl.rewards.answer`]. Then, the first that tells decides:

1. Texts that are equal, once written in one way, are right.
2. A gold that is a choice's letter: right is an answer that names this letter and no other one.
3. What the answer commits to ([`~leash_trl.rewards.wording`]): an answer that hedges is wrong, words are compared
   as words.
4. Where both sides can be read ([`~leash_trl.rewards.comparison`]), their values decide, exactly: 6.63e-34 is not
   6.62e-34, nor 0.3333333 one third; formulas that differ at several points are different.
5. What is left, such as two forms of one logarithm, is math-verify's.
"""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from leash_trl.rewards.answer import THINK_START, Answer, find_answer, gold_answer
from leash_trl.rewards.comparison import comparison
from leash_trl.rewards.grader_pool import GraderPool
from leash_trl.rewards.multiple_choice import choice_letters, choice_verdict
from leash_trl.rewards.reading import read
from leash_trl.rewards.wording import commitment, words_verdict


MAX_LENGTH = 5_000  # characters; longer ones are left to the workers and their clock


@dataclass(frozen=True)
class Grade:
    """Verdict on one completion.

    Args:
        answer (`str`, *optional*):
            The answer it commits to; `None` if it gives none.
        is_correct (`bool`, *optional*):
            Whether the answer is equivalent to the gold; `None` where that cannot be known.
        failure (`str`, *optional*):
            Why the comparison did not end, if it did not. Then `is_correct` is False where the answer is to blame, and
            `None` where it is not. Without one, `None` says that the gold cannot be read.
    """

    answer: str | None
    is_correct: bool | None
    failure: str | None = None


@functools.cache
def _pool() -> GraderPool:
    return GraderPool()


if hasattr(os, "register_at_fork"):
    # the threads of a pool do not live on in a forked process, as `Dataset.map(num_proc=...)` makes
    os.register_at_fork(after_in_child=_pool.cache_clear)


def quick_verdict(answer: Answer, gold: Answer) -> bool | None:
    """Verdict by the rule at the head of this file, steps 1 to 4; `None` where math-verify decides.

    Example:
        >>> from leash_trl.rewards.answer import stated_answer
        >>> quick_verdict(stated_answer("073"), stated_answer("73"))
        True
        >>> quick_verdict(stated_answer(r"\\ln x^2"), stated_answer(r"2\\ln x")) is None
        True
    """
    if answer.text == gold.text:
        return True
    if max(len(answer.text), len(gold.text)) > MAX_LENGTH:
        return None
    if not answer.is_found:
        return choice_verdict(answer.text, gold.text) or None
    if (verdict := choice_verdict(answer.text, gold.text)) is not None:
        return verdict
    said, expected = commitment(answer.text), commitment(gold.text)
    if said is None or expected is None:
        return False if expected is not None else None
    if (verdict := words_verdict(said, expected)) is not None:
        return verdict
    return comparison(said, expected)


def grade(
    completions: Sequence[str], solutions: Sequence[str], lenient: bool = False, opens_thinking: bool = False
) -> list[Grade]:
    """Grades of N completions.

    Args:
        completions (`Sequence[str]` of length N):
            What the model said. Where its answer is looked for is the rule at the head of
            [`~leash_trl.rewards.answer`].
        solutions (`Sequence[str]` of length N):
            Gold answers, with or without dollar signs or a box.
        lenient (`bool`, *optional*, defaults to `False`):
            Whether an answer without box and answer line counts.
        opens_thinking (`bool`, *optional*, defaults to `False`):
            Whether the prompts end with `<think>`, so that a completion without `</think>` is all thinking.

    Returns:
        `list[Grade]`: A completion without an answer is wrong, even if its gold cannot be read.

    Raises:
        `RuntimeError`: If no worker process of the grader has ever started and those that try give up by themselves,
            as where math-verify is not installed.
    """
    opening = THINK_START if opens_thinking else ""
    answers = [find_answer(opening + completion, lenient) for completion in completions]
    grades: list[Grade] = []
    hard: dict[int, tuple[str, str]] = {}
    for index, (answer, gold) in enumerate(zip(answers, map(gold_answer, solutions), strict=True)):
        if answer is None:
            grades.append(Grade(None, False))
        elif gold is None:
            grades.append(Grade(answer.text, None))
        elif (is_equal := quick_verdict(answer, gold)) is not None:
            grades.append(Grade(answer.text, is_equal))
        else:
            hard[index] = (_expression(answer), gold.expression)
            grades.append(Grade(answer.text, None))
    verdicts = _pool().verdicts([*hard.values()]) if hard else []
    for index, verdict in zip(hard, verdicts, strict=True):
        grades[index] = Grade(grades[index].answer, verdict.is_equal, verdict.failure)
    return grades


def _expression(answer: Answer) -> str:
    """What math-verify is given: the one formula that words stand around, where there is one."""
    said = commitment(answer.text) if answer.is_found and len(answer.text) <= MAX_LENGTH else None
    return answer.expression if said in (None, answer.text) else f"\\boxed{{{said.replace(chr(34), ' ')}}}"


def unreadable_solutions(solutions: Sequence[str]) -> dict[int, str]:
    """Gold answers that no answer could ever be compared with, to be called where a data set is loaded.

    Args:
        solutions (`Sequence[str]`):
            Gold answers, one a row.

    Returns:
        `dict[int, str]`: What is wrong, by row number, counted from 0.
    """
    golds = dict(enumerate(map(gold_answer, solutions)))
    faults = {row: "is empty" for row, gold in golds.items() if gold is None}
    hard = {
        row: gold.expression
        for row, gold in golds.items()
        if gold and (len(gold.text) > MAX_LENGTH or not (choice_letters(gold.text) or read(gold.text)))
    }
    verdicts = _pool().verdicts([(None, expression) for expression in hard.values()]) if hard else []
    for row, verdict in zip(hard, verdicts, strict=True):
        if not verdict.is_equal:
            faults[row] = verdict.failure or "cannot be read by math-verify"
    return dict(sorted(faults.items()))


def fault_list(faults: dict[int, str], solutions: Sequence[str], num_shown: int = 10) -> str:
    """The first faults of [`unreadable_solutions`] as an error message names them."""
    shown = [f"row {row}: {solutions[row]!r:.80} {fault}" for row, fault in list(faults.items())[:num_shown]]
    return "; ".join(shown) + (", ..." if len(faults) > num_shown else "") + " (rows counted from 0)"
