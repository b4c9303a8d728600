"""Training problems that are in a benchmark too: by hand, as properties, and the published counts."""

import json
import re

import datasets
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from leash_trl.cli import contamination as command
from leash_trl.cli.errors import UserError
from leash_trl.data.contamination import (
    count_overlaps,
    find_overlaps,
    ngrams,
    normalized,
)
from leash_trl.data.problems import load_problems
from leash_trl.data.prompts import BOXED_SUFFIX, DAPO_HEADS, DAPO_TAIL


WORDS = st.lists(st.sampled_from("abcd"), max_size=12).map(tuple)


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def asked(*questions: str) -> Dataset:
    """Problems `0`, `1`, ... in TRL's columns."""
    rows = [{"id": str(i), "prompt": [{"role": "user", "content": text}]} for i, text in enumerate(questions)]
    return Dataset.from_list(rows)


def shares(training: Dataset, benchmark: Dataset, **arguments) -> dict[tuple[str, str], float]:
    overlaps = find_overlaps(training, {"bench": benchmark}, **arguments)
    return {(overlap.train_id, overlap.benchmark_id): overlap.share for overlap in overlaps.itertuples()}


def pairs(overlaps) -> list[tuple]:
    return [*overlaps.itertuples(index=False, name=None)]


def test_share_is_of_the_benchmark_problem_s_runs():
    # runs of 2 words of "a b c d e": ab bc cd de; the training problem has ab, bc and cd, 3 of 4
    assert shares(asked("x a b c d x"), asked("a b c d e"), ngram=2) == {("0", "0"): 0.75}
    # a repeated run counts once: "a b a b a" has ab and ba, the training problem ab
    assert shares(asked("a b"), asked("a b a b a"), ngram=2, threshold=0.4) == {("0", "0"): 0.5}


def test_a_share_at_the_threshold_is_no_overlap():
    training, benchmark = asked("a b c d"), asked("a b c d e")
    assert shares(training, benchmark, ngram=2, threshold=0.75) == {}
    assert shares(training, benchmark, ngram=2, threshold=0.74) == {("0", "0"): 0.75}


def test_short_benchmark_problems_are_found_as_a_whole_only():
    training = asked("What is two plus two?", "What is two plus two, and what is three plus three times four?")
    assert shares(training, asked("what is two plus two")) == {("0", "0"): 1.0}


def test_exact_means_the_same_words_signs_and_brackets():
    training = asked("Solve \\(x+1 = 2\\) for $x$", "Solve $x-1=2$ for $x$.", "Solve x + 1 = 2 for x and check.")
    overlaps = find_overlaps(training, {"bench": asked("Solve $x + 1=2$ for $x$.")}, ngram=3)
    assert pairs(overlaps[["train_index", "share", "is_exact"]]) == [(0, 1.0, True), (2, 1.0, False)]


def test_exact_problems_are_found_whatever_their_share():
    overlaps = find_overlaps(asked("What is \\frac 12?"), {"bench": asked("Why?", "What is \\frac12 ?")}, ngram=3)
    assert pairs(overlaps) == [(0, "0", "bench", "1", 0.0, True)]
    assert pairs(find_overlaps(asked("("), {"bench": asked("(")})) == [(0, "0", "bench", "0", 1.0, True)]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("Find $x$.", "find  x", True),
        ("\\[ \\left( a \\, b \\right) \\]", "$(ab)$", True),
        ("\\dfrac{1}{2}", "\\frac{1}{2}", True),
        ("$1.5$ m.", "1.5 m", True),
        ("1.5", "15", False),
        ("2(x+1)", "2x+1", False),
        ("x-1", "x+1", False),
        ("x < 1", "x > 1", False),
        ("求 x 的值。", "求x的值", True),
        ("16 \u2212 7 = ?", "16 - 7 = ?", True),
        ("16 \u00d7 7 = ?", "16 \u00f7 7 = ?", False),
    ],
)
def test_normalized(one, other, is_same):
    assert (normalized(one) == normalized(other)) == is_same


@settings(deadline=None, max_examples=30)  # data sets are slow to make
@given(WORDS, WORDS, st.integers(1, 4))
def test_shares_are_what_a_plain_count_gives(one, other, n):
    mine, theirs = ngrams(one, n), ngrams(other, n)
    overlaps = find_overlaps(asked(" ".join(one)), {"bench": asked(" ".join(other))}, ngram=n, threshold=0.0)
    expected = [len(mine & theirs) / len(theirs)] if mine & theirs else []
    assert overlaps["share"].tolist() == expected
    assert overlaps["is_exact"].tolist() == [one == other] * len(expected)


def test_templates_of_the_sources_are_no_overlap():
    question = "How many of the first one hundred positive integers are squares or cubes?"
    training = asked(f"{DAPO_HEADS[0]}{question}{DAPO_TAIL}", f"What is {DAPO_HEADS[0]} now?")
    assert shares(training, asked(f"{question}{BOXED_SUFFIX}", f"Why?{BOXED_SUFFIX}")) == {("0", "0"): 1.0}


def test_counts_are_of_benchmark_problems_and_near_includes_exact():
    benchmarks = {"one": asked("a b c", "d e f", "g h i"), "two": asked("x y z")}
    training = asked("a b c", "A b c", "w d e f", "nothing of these")
    overlaps = find_overlaps(training, benchmarks, ngram=2)
    counts = count_overlaps(overlaps, benchmarks)
    assert counts.T.to_dict("list") == {"one": [3, 1, 2], "two": [1, 0, 0]}
    assert pairs(overlaps)[2] == (2, "2", "one", "1", 1.0, False)
    nothing = find_overlaps(asked("x"), benchmarks)
    assert count_overlaps(nothing, benchmarks)["near"].tolist() == [0, 0]


def test_published_counts_for_dapo(shared_data):
    names = {"aime24": "aime24", "amc23": "amc23", "math500": "math500", "gsm8k": "gsm8k_test"}
    benchmarks = {name: load_problems(f"{name}={shared_data / file}.jsonl") for name, file in names.items()}
    overlaps = find_overlaps(load_problems(str(shared_data / "dapo_17k_questions.jsonl")), benchmarks)
    # Published with the data: AIME24 and GSM8K 0; AMC23 8 verbatim, 21 above 60 %; MATH-500 8 verbatim, at most 19
    # near, all by words alone. Operators set apart its eighth, test/precalculus/285.json (another sign) and
    # test/intermediate_algebra/279.json (64 % by words), and bring test/intermediate_algebra/1063.json above 60 %.
    assert count_overlaps(overlaps, benchmarks).T.to_dict("list") == {
        "aime24": [30, 0, 0],
        "amc23": [40, 8, 21],
        "math500": [500, 7, 18],
        "gsm8k": [1319, 0, 0],
    }
    found = {*overlaps["benchmark_id"]}
    assert "test/precalculus/285.json" not in found
    assert "test/intermediate_algebra/279.json" not in found
    assert "test/intermediate_algebra/1063.json" in found


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A training file whose second problem is in the benchmark, a third for the most part and a fourth within it."""
    monkeypatch.chdir(tmp_path)
    question = "How many positive integers below one thousand are divisible by seven but not by eleven?"
    # 15 words make 6 runs of 10, and without the last word 5 of them
    most, within = question.replace(" eleven", ""), question.replace("How", "Tell how")
    rows = [("What is 2 + 2?", "4"), (question, "130"), (most, "13"), (within, "130")]
    longer = [(question.replace("How", "Please say how"), "130")]
    for name, chosen in {"train": rows, "bench": rows[1:2], "longer": longer}.items():
        lines = [json.dumps({"problem": problem, "answer": answer}) for problem, answer in chosen]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))


@pytest.mark.usefixtures("files")
def test_the_command_reports_and_writes_what_can_be_trained_on(capsys):
    output = "out/clean.jsonl"
    command.main(["--dataset_name", "train.jsonl", "--benchmarks", "aime24=bench.jsonl", "--output", output])
    out = capsys.readouterr().out
    assert "train.jsonl: 4 problems" in out
    assert re.search(r"aime24 +1 +1 +1\n", out)
    assert re.search(r"aime24-0 +train-3 +1\.0*\n +aime24 +aime24-0 +train-2 +0\.83", out)
    assert "train-1 " not in out
    assert f"wrote {output}: 1 of 4 problems" in out
    assert load_problems(output).to_list() == load_problems("train.jsonl").to_list()[:1]


@pytest.mark.parametrize("output", ["train.jsonl", "link.jsonl", "sub/data.jsonl"])
@pytest.mark.usefixtures("files")
def test_the_command_never_writes_over_what_it_reads(output, tmp_path):
    (tmp_path / "link.jsonl").symlink_to("train.jsonl")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data.jsonl").write_bytes((tmp_path / "longer.jsonl").read_bytes())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    with pytest.raises(UserError, match=f"output is '{output}'"):
        command.main(
            ["--dataset_name", "train.jsonl", "--benchmarks", "aime24=bench.jsonl", "sub", "--output", output]
        )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")} == before
