"""The sentences a report begins with: what the change is, and whether its intervals say that there is one."""

import math
from collections.abc import Callable, Mapping

from leash_trl.evaluation.changes import Change
from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.numbers import percent, points, tokens
from leash_trl.evaluation.results import OVERALL, RunResults


NO_CLEAR_CHANGE = "no clear change (the interval includes zero)"
NO_INTERVAL = "which may be chance (one problem gives no interval)"


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
        f"{label}, on {_problems(result)}: accuracy {percent(accuracy.value)} %{_interval(accuracy, percent)}, "
        f"{tokens(length.value)} tokens per response{_interval(length, tokens)}. There is no baseline, so this page "
        "says nothing of a change."
    )


def _change(label: str, base: str, change: Change, result: RunResults) -> str:
    return (
        f"{label} against {base}, on the same {_problems(result)}: {_tokens_words(change.relative_tokens)}, "
        f"{_accuracy_words(change.accuracy)}."
    )


def _tokens_words(change: Estimate) -> str:
    if change.high < 0:
        change, word = Estimate(-change.value, -change.high, -change.low), "fewer"
    elif change.low > 0:
        word = "more"
    else:
        return f"tokens {points(change.value)} %{_interval(change, points)}, {_doubt(change)}"
    return f"{percent(change.value)} % {word} tokens{_interval(change, percent)}"


def _accuracy_words(change: Estimate) -> str:
    difference = f"{points(change.value)} points{_interval(change, points)}"
    if change.high < 0:
        return f"accuracy fell: {difference}"
    return f"accuracy {difference}" if change.low > 0 else f"accuracy {difference}, {_doubt(change)}"


def _interval(number: Estimate, shown: Callable[[float], str]) -> str:
    return "" if math.isnan(number.low) else f" [{shown(number.low)}, {shown(number.high)}]"


def _doubt(change: Estimate) -> str:
    return NO_INTERVAL if math.isnan(change.low) else NO_CLEAR_CHANGE


def _problems(result: RunResults) -> str:
    number, benchmarks = result.overall.num_problems, len(result.benchmarks)
    word = "problem" if number == 1 else "problems"
    return f"{number:,} {word}" if benchmarks == 1 else f"{number:,} {word} of {benchmarks} benchmarks"
