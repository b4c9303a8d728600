"""The sentences a report begins with: what the change is, and whether its intervals say that there is one."""

from collections.abc import Mapping

from leash_trl.evaluation.bootstrap import Estimate
from leash_trl.evaluation.numbers import percent, points, tokens, with_interval
from leash_trl.evaluation.results import OVERALL, Change, RunResults


FEW_PROBLEMS = 10  # below that an interval over problems says little
NO_CLEAR_CHANGE = "no clear change (the interval includes zero)"


def headline(results: Mapping[str, RunResults], changes: Mapping[str, Mapping[str, Change]]) -> list[str]:
    """One sentence for each run that is compared with the first; on the first alone if there is no other.

    Args:
        results (`Mapping[str, RunResults]`):
            Runs by their labels, the baseline first.
        changes (`Mapping[str, Mapping[str, Change]]`):
            Changes against the baseline, by label and benchmark; runs that cannot be compared are left out.
    """
    base, *others = results
    if not others:
        return [_alone(base, results[base])]
    return [
        _change(label, base, changes[label][OVERALL], results[label])
        if label in changes
        else f"{label} is not compared with {base}: their problems differ."
        for label in others
    ]


def _alone(label: str, result: RunResults) -> str:
    accuracy, length = result.overall.accuracy, result.overall.tokens
    return (
        f"{label}, on {_problems(result)}: accuracy {percent(accuracy.value)} % [{percent(accuracy.low)}, "
        f"{percent(accuracy.high)}], {with_interval(length, tokens)} tokens per response. There is no baseline, so "
        f"this page says nothing of a change.{_caution(result)}"
    )


def _change(label: str, base: str, change: Change, result: RunResults) -> str:
    return (
        f"{label} against {base}, on the same {_problems(result)}: {_tokens_words(change.relative_tokens)}, "
        f"{_accuracy_words(change.accuracy)}.{_caution(result)}"
    )


def _tokens_words(change: Estimate) -> str:
    if change.high < 0:
        fewer = Estimate(-change.value, -change.high, -change.low)
        return _share("fewer", fewer)
    if change.low > 0:
        return _share("more", change)
    return f"tokens {points(change.value)} % [{points(change.low)}, {points(change.high)}], {NO_CLEAR_CHANGE}"


def _share(word: str, change: Estimate) -> str:
    return f"{percent(change.value)} % {word} tokens [{percent(change.low)}, {percent(change.high)}]"


def _accuracy_words(change: Estimate) -> str:
    difference = f"{points(change.value)} points [{points(change.low)}, {points(change.high)}]"
    if change.high < 0:
        return f"accuracy fell: {difference}"
    return f"accuracy {difference}" if change.low > 0 else f"accuracy {difference}, {NO_CLEAR_CHANGE}"


def _problems(result: RunResults) -> str:
    number, benchmarks = result.overall.num_problems, len(result.benchmarks)
    word = "problem" if number == 1 else "problems"
    return f"{number:,} {word}" if benchmarks == 1 else f"{number:,} {word} of {benchmarks} benchmarks"


def _caution(result: RunResults) -> str:
    if result.overall.num_problems >= FEW_PROBLEMS:
        return ""
    return f" With fewer than {FEW_PROBLEMS} problems, intervals say little."
