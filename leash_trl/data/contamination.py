"""Finds training problems that are also in a benchmark, by shared runs of words."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import pandas as pd
from datasets import Dataset

from leash_trl.data.prompts import bare_question


COLUMNS = ["train_index", "train_id", "benchmark", "benchmark_id", "share", "is_exact"]

LATEX_SPACING = re.compile(r"\\(?:[,;:! ]|q?quad\b|left\b|right\b|displaystyle\b)|~")
FRACTION = re.compile(r"\\[dtc]frac\b")
OPERATORS = r"+\-*/=<>^\u00d7\u00f7\u2264\u2265\u2260\u00b1"
# an operator is a word, because it may be the only difference of two problems; so is a character of Chinese or
# Japanese, because no blanks separate the words
WORD = re.compile(rf"[{OPERATORS}\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")

MATH_DELIMITER = re.compile(r"\\[()\[\]]")
# these may change without changing the problem; the point of a decimal may not
UNSEEN = re.compile(rf"[^\w{OPERATORS}!().]|_|\.(?!\d)")

Words = tuple[str, ...]


def normalized(text: str) -> str:
    r"""Letters, numbers, operators and brackets of a text: without case, blanks, punctuation and LaTeX's delimiters.

    Example:
        >>> normalized("Find $\\left( x\\,+ y \\right)$.") == normalized("find $$(x+y)$$")
        True
        >>> normalized("$x + y$") == normalized("$x - y$")
        False
    """
    return UNSEEN.sub("", MATH_DELIMITER.sub("", _plain(text)))


def _plain(text: str) -> str:
    return FRACTION.sub(r"\\frac", LATEX_SPACING.sub(" ", text)).replace("\u2212", "-").lower()


def words(text: str) -> Words:
    r"""Words, numbers and operators of a text in order, without punctuation, brackets and LaTeX spacing.

    Example:
        >>> words("Find $\\dfrac{1}{x_2} + 3$, please.")
        ('find', 'frac', '1', 'x', '2', '+', '3', 'please')
    """
    return tuple(WORD.findall(_plain(text)))


def ngrams(text_words: Words, n: int) -> frozenset[Words]:
    """Distinct runs of n words; a shorter text is one run; a text without words has none.

    Example:
        >>> sorted(ngrams(("a", "b", "c"), 2))
        [('a', 'b'), ('b', 'c')]
        >>> ngrams(("a",), 2)
        frozenset({('a',)})
    """
    starts = range(max(1, len(text_words) - n + 1)) if text_words else ()
    return frozenset(text_words[start : start + n] for start in starts)


def _questions(problems: Dataset) -> Iterable[tuple[str, str]]:
    """Ids and bare questions: the last messages without the templates of known sources."""
    for row in problems.select_columns(["id", "prompt"]):
        yield row["id"], bare_question(row["prompt"][-1]["content"])


def find_overlaps(
    training: Dataset, benchmarks: Mapping[str, Dataset], *, ngram: int = 10, threshold: float = 0.6
) -> pd.DataFrame:
    r"""Training problems that are also in a benchmark, word for word or nearly.

    A benchmark problem with fewer than n words only matches a training problem that equals it completely, operators
    and brackets included: many short problems differ in nothing else.

    Args:
        training (`Dataset`), benchmarks (`Mapping[str, Dataset]`): Training problems, and benchmarks by name, as
            `load_problems` returns them.
        ngram (`int`): Words and operators in a run.
        threshold (`float`): A training problem that holds more than this share of a benchmark problem's n-grams is
            reported, in [0, 1). The share is of one training problem, never of several together.

    Returns:
        `DataFrame`: A row per pair, in the order of the training problems, then of the benchmarks: `train_index`, the
        training problem's row from 0; `train_id`; `benchmark`; `benchmark_id`; `share`, in [0, 1], of the benchmark
        problem's n-grams that the training problem holds; `is_exact`, whether letters, numbers, operators and
        brackets are the same in the same order. An exact pair counts whatever its share, which blanks can lower:
        `\frac12` is one word, `\frac 12` is two.

    Raises:
        `ValueError`: If `ngram` or `threshold` is out of range.
    """
    if ngram < 1 or not 0 <= threshold < 1:
        raise ValueError(f"ngram is {ngram} and threshold is {threshold}, must be 1 or more and in [0, 1)")
    known: list[tuple[str, str, int]] = []  # benchmark, id and number of n-grams of each of its problems
    with_run: defaultdict[Words, list[int]] = defaultdict(list)
    with_text: defaultdict[str, list[int]] = defaultdict(list)
    for name, problems in benchmarks.items():
        for problem_id, question in _questions(problems):
            question_words = words(question)
            runs = ngrams(question_words, ngram) if len(question_words) >= ngram else frozenset()
            for run in runs:
                with_run[run].append(len(known))
            if text := normalized(question):
                with_text[text].append(len(known))
            known.append((name, problem_id, len(runs)))
    overlaps = []
    for index, (train_id, question) in enumerate(_questions(training)):
        shared = Counter(place for run in ngrams(words(question), ngram) for place in with_run.get(run, ()))
        exact = with_text.get(normalized(question), [])
        for place in sorted({*shared, *exact}):
            name, problem_id, num_ngrams = known[place]
            share = shared[place] / num_ngrams if num_ngrams else 1.0
            if share > threshold or place in exact:
                overlaps.append((index, train_id, name, problem_id, share, place in exact))
    return pd.DataFrame(overlaps, columns=COLUMNS).astype({"train_index": int, "is_exact": bool})


def count_overlaps(overlaps: pd.DataFrame, benchmarks: Mapping[str, Dataset]) -> pd.DataFrame:
    """By benchmark, its `problems`, those `verbatim` in the training data, and those `near`, these included."""
    found = overlaps.groupby(["benchmark", "benchmark_id"])["is_exact"].any().groupby("benchmark").agg(["sum", "size"])
    counts = found.reindex([*benchmarks], fill_value=0).set_axis(["verbatim", "near"], axis="columns")
    counts.insert(0, "problems", [len(problems) for problems in benchmarks.values()])
    return counts
