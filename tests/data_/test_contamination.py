"""Training problems that are in a benchmark too: by hand, and the published counts."""

import re

import pytest
from datasets import Dataset
from published_rows import user, write_rows

from leash_trl.cli import contamination as command
from leash_trl.cli.errors import UserError
from leash_trl.data.contamination import count_overlaps, find_overlaps, normalized
from leash_trl.data.problems import load_problems
from leash_trl.data.prompts import BOXED_SUFFIX, DAPO_HEADS, DAPO_TAIL


def asked(*questions: str) -> Dataset:
    """Problems `0`, `1`, ... in TRL's columns."""
    return Dataset.from_list([{"id": str(i), "prompt": user(text)} for i, text in enumerate(questions)])


def found(training: list[str], benchmark: list[str], **arguments) -> list[tuple]:
    """Rows of the training problem and of the benchmark's, share and whether it is exact, of each overlap."""
    overlaps = find_overlaps(asked(*training), {"bench": asked(*benchmark)}, **arguments)
    columns = overlaps[["train_index", "benchmark_id", "share", "is_exact"]]
    return [(index, int(id_), share, exact) for index, id_, share, exact in columns.itertuples(index=False, name=None)]


def test_a_share_is_of_the_benchmark_problem_s_runs_and_no_overlap_at_the_threshold():
    # runs of 2 words of "a b c d e": ab bc cd de; the training problem has ab, bc and cd, 3 of 4
    assert found(["x a b c d x"], ["a b c d e"], ngram=2) == [(0, 0, 0.75, False)]
    assert found(["a b c d"], ["a b c d e"], ngram=2, threshold=0.74) == [(0, 0, 0.75, False)]
    assert found(["a b c d"], ["a b c d e"], ngram=2, threshold=0.75) == []
    # a repeated run counts once: "a b a b a" has ab and ba, the training problem ab
    assert found(["a b"], ["a b a b a"], ngram=2, threshold=0.4) == [(0, 0, 0.5, False)]
    # short benchmark problems are found as a whole only
    training = ["What is two plus two?", "What is two plus two, and what is three plus three times four?"]
    assert found(training, ["what is two plus two"]) == [(0, 0, 1, True)]
    assert found(["Find x - (1 - y)."], ["Find x - 1 - y."]) == []


def test_exact_means_the_same_words_signs_and_brackets_whatever_the_share():
    training = ["Solve \\(x+1 = 2\\) for $x$", "Solve $x-1=2$ for $x$.", "Solve x + 1 = 2 for x and check."]
    assert found(training, ["Solve $x + 1=2$ for $x$."], ngram=3) == [(0, 0, 1, True), (2, 0, 1, False)]
    assert found(["What is \\frac 12?"], ["Why?", "What is \\frac12 ?"], ngram=3) == [(0, 1, 0, True)]
    assert found(["("], ["("]) == [(0, 0, 1, True)]


def test_templates_of_the_sources_are_no_overlap():
    question = "How many of the first one hundred positive integers are squares or cubes?"
    training = [f"{DAPO_HEADS[0]}{question}{DAPO_TAIL}", f"What is {DAPO_HEADS[0]} now?"]
    assert found(training, [f"{question}{BOXED_SUFFIX}", f"Why?{BOXED_SUFFIX}"]) == [(0, 0, 1, True)]


SAME = {
    "Find $x$.": "find  x",
    "\\[ \\left( a \\, b \\right) \\]": "$(ab)$",
    "\\dfrac{1}{2}": "\\frac{1}{2}",
    "$1.5$ m.": "1.5 m",
    "求 x 的值。": "求x的值",
    "16 \u2212 7 = ?": "16 - 7 = ?",
}
OTHERS = {"1.5": "15", "2(x+1)": "2x+1", "x-1": "x+1", "x < 1": "x > 1", "16 \u00d7 7 = ?": "16 \u00f7 7 = ?"}


@pytest.mark.parametrize(("one", "other"), [*SAME.items(), *OTHERS.items()])
def test_what_changes_a_problem_is_normalized_apart(one, other):
    assert (normalized(one) == normalized(other)) == (one in SAME)


@pytest.mark.parametrize("arguments", [{"ngram": 0}, {"threshold": 1.0}, {"threshold": -0.1}], ids=str)
def test_what_no_overlap_could_be_found_with_is_refused(arguments):
    with pytest.raises(ValueError, match=r"ngram is .* threshold is"):
        found(["a"], ["b"], **arguments)


def test_counts_are_of_benchmark_problems_and_near_includes_exact():
    benchmarks = {"one": asked("a b c", "d e f", "g h i"), "two": asked("x y z")}
    overlaps = find_overlaps(asked("a b c", "A b c", "w d e f", "nothing of these"), benchmarks, ngram=2)
    assert count_overlaps(overlaps, benchmarks).T.to_dict("list") == {"one": [3, 1, 2], "two": [1, 0, 0]}
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
    names = ("precalculus/285", "intermediate_algebra/279", "intermediate_algebra/1063")
    assert [f"test/{name}.json" in {*overlaps["benchmark_id"]} for name in names] == [False, False, True]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A training file whose second problem is in the benchmark, a third for the most part and a fourth within it."""
    monkeypatch.chdir(tmp_path)
    question = "How many positive integers below one thousand are divisible by seven but not by eleven?"
    # 15 words make 6 runs of 10, and without the last word 5 of them
    most, within = question.replace(" eleven", ""), question.replace("How", "Tell how")
    rows = [("What is 2 + 2?", "4"), (question, "130"), (most, "13"), (within, "130")]
    for name, chosen in {"train": rows, "bench": rows[1:2]}.items():
        write_rows(tmp_path / f"{name}.jsonl", [{"problem": problem, "answer": answer} for problem, answer in chosen])


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


@pytest.mark.parametrize("output", ["train.jsonl", "link.jsonl", "new.csv"])
@pytest.mark.usefixtures("files")
def test_the_command_writes_new_jsonl_files_alone_and_never_over_what_it_reads(output, tmp_path):
    (tmp_path / "link.jsonl").symlink_to("bench.jsonl")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=f"output is '{output}'"):
        command.main(["--dataset_name", "train.jsonl", "--benchmarks", "bench.jsonl", "--output", output])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
