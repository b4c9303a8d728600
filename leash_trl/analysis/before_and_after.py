"""Builds the part of a report that shows completions of the baseline and of another run side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leash_trl.analysis.page import Completion, Paragraph, Section, SideBySide
from leash_trl.analysis.run_labels import run_labels
from leash_trl.evaluation.samples import ProblemSamples, SampledCompletion, load_samples


VERDICTS = {True: "right", False: "wrong", None: "not graded"}


@dataclass(frozen=True)
class Pair:
    """Two runs' completions of one problem, with the same number.

    Args:
        benchmark (`str`), problem (`ProblemSamples`):
            The problem, as the second run has it.
        number (`int`):
            Which of its samples, from 1.
        before (`SampledCompletion`), after (`SampledCompletion`):
            What the first and the second run said.
    """

    benchmark: str
    problem: ProblemSamples
    number: int
    before: SampledCompletion
    after: SampledCompletion

    @property
    def change(self) -> int:
        """Change of the length in tokens; negative is shorter."""
        return self.after.num_tokens - self.before.num_tokens

    @property
    def verdicts(self) -> tuple[bool | None, bool | None]:
        """Whether the first and the second run were correct; `None` if not graded."""
        return self.before.is_correct, self.after.is_correct


def before_and_after_section(folders: Sequence[Path]) -> list[Section]:
    """Completions of the first run beside those of each other run: one section, or none without common problems.

    Args:
        folders (`Sequence[Path]`):
            Folders that `leash eval` wrote; the first is the baseline.

    Raises:
        `ValueError`: If one is no such folder, or is not finished.
    """
    (first, base), *others = run_labels(folders).items()
    baseline = load_samples(first)[1] if others else {}
    blocks: list[Paragraph | SideBySide] = []
    for folder, label in others:
        pairs = sample_pairs(baseline, load_samples(folder)[1])
        if not pairs:
            continue
        verdicts = [pair.verdicts for pair in pairs]
        rule = (
            f"{label} beside {base}, sample by sample on the same problems: {len(pairs):,} pairs, of which "
            f"{verdicts.count((True, False)):,} became wrong and {verdicts.count((False, True)):,} became right. A "
            "rule chose what is shown: the median change in tokens, the largest saving, and the first pair that "
            "became wrong."
        )
        blocks += [Paragraph(rule), *(_side_by_side(reason, pair, base, label) for reason, pair in chosen(pairs))]
    return [Section("Before and after", blocks)] if blocks else []


def sample_pairs(
    before: Mapping[str, Sequence[ProblemSamples]], after: Mapping[str, Sequence[ProblemSamples]]
) -> list[Pair]:
    """Completions of the problems that two runs share, in the order of the second run.

    Args:
        before (`Mapping[str, Sequence[ProblemSamples]]`), after (`Mapping[str, Sequence[ProblemSamples]]`):
            Samples of the two runs by benchmark.
    """
    earlier = {(name, problem.id): problem for name, problems in before.items() for problem in problems}
    return [
        Pair(name, problem, number, *completions)
        for name, problems in after.items()
        for problem in problems
        if (name, problem.id) in earlier
        for number, completions in enumerate(
            zip(earlier[name, problem.id].completions, problem.completions, strict=False), 1
        )
    ]


def chosen(pairs: Sequence[Pair]) -> list[tuple[str, Pair]]:
    """The pairs to show, each with the reason: a rule chooses them, so that nobody picks the good ones.

    The median change in tokens (the lower one of two); the largest saving, if any was shorter; the first that became
    wrong, if any did. A pair that is several of these comes once.

    Args:
        pairs (`Sequence[Pair]`):
            One pair or more. Of equal ones the first counts.
    """
    by_change = sorted(range(len(pairs)), key=lambda place: pairs[place].change)
    reasons = {by_change[(len(pairs) - 1) // 2]: ["median change in tokens"]}
    if pairs[by_change[0]].change < 0:
        reasons.setdefault(by_change[0], []).append("largest saving")
    wrong = [place for place, pair in enumerate(pairs) if pair.verdicts == (True, False)]
    if wrong:
        reasons.setdefault(wrong[0], []).append("first that became wrong")
    return [(", ".join(words), pairs[place]) for place, words in reasons.items()]


def _side_by_side(reason: str, pair: Pair, base: str, label: str) -> SideBySide:
    title = f"{reason[0].upper()}{reason[1:]}: {pair.problem.id} of {pair.benchmark}, sample {pair.number}, gold "
    completions = []
    for name, said in ((base, pair.before), (label, pair.after)):
        answer = "no answer" if said.answer is None else f"answer {said.answer}"
        cut = ", cut off" if said.finish_reason == "length" else ""
        head = f"{name}: {said.num_tokens:,} tokens, {answer}, {VERDICTS[said.is_correct]}{cut}"
        completions.append(Completion(head, said.text))
    return SideBySide(f"{title}answer {pair.problem.solution}", completions)
