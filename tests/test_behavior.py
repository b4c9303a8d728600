"""Keywords of the paper's behaviour analysis, their means over checkpoints, and `leash behavior`."""

import csv
import io
import json
import re
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled_run import problem, write_run

from leash_trl.analysis.behavior import (
    KEYWORDS,
    behavior,
    behavior_csv,
    behavior_table,
    keyword_counts,
    keyword_groups,
    load_behaviors,
    over_training,
    training_steps,
)
from leash_trl.evaluation.results import load_results
from leash_trl.evaluation.samples import SampledCompletion


def found(text, **kwargs):
    return {keyword: count for keyword, count in keyword_counts(text, **kwargs).keywords.items() if count}


def test_keywords_are_the_papers():
    assert {group: len(words) for group, words in KEYWORDS.items()} == {"summary": 5, "rethink": 15, "plan": 6}
    assert sorted(sum(KEYWORDS.values(), ()))[:6] == ["First", "Second", "So", "Step", "Therefore", "Thus"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So also SO so", {"so": 3}),
        ("first First FIRST firstly", {"first": 3}),
        ("step-by-step, steps, misstep, Step 2", {"step": 3}),
        ("re-evaluate reevaluate reevaluation reevaluations", {"re-evaluate": 1, "reevaluate": 1, "reevaluation": 1}),
        ("re\u2011evaluate, double\u2010check", {"re-evaluate": 1, "double-check": 1}),
        ("pre-evaluate, re evaluate, re--evaluate", {}),
        ("check again, check\nagain, check  again, checkagain", {"check again": 3}),
        ("double-check again", {"double-check": 1}),
        ("check again. Double-check", {"check again": 1, "double-check": 1}),
        ("think again, rethink, rethinking", {"think again": 1, "rethink": 1}),
        ("Wait, wait! await waiting", {"wait": 2}),
        ("\\boxed{first}, `second`", {"first": 1, "second": 1}),
        ("", {}),
    ],
)
def test_counts_by_hand(text, expected):
    assert found(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So so SO", {"So": 1}),
        ("first First FIRST", {"first": 1, "First": 1}),
        ("Wait wait", {"wait": 1}),
        ("Double-check double-check", {"double-check": 1}),
        ("Double-check again, double-check again", {"double-check": 1, "check again": 1}),
        ("Therefore therefore Overall overall", {"Therefore": 1, "overall": 1}),
    ],
)
def test_case_decides_on_request(text, expected):
    assert found(text, case_sensitive=True) == expected


def test_groups_are_the_sums_of_their_keywords():
    counts = keyword_counts("So, wait: first recheck. Thus the second step.")
    assert counts.groups == {"summary": 2, "rethink": 2, "plan": 3}


def test_spellings_that_differ_by_case_are_one_keyword():
    assert keyword_groups()["summary"] == ("so", "therefore", "thus", "conclude", "overall")
    assert keyword_groups(case_sensitive=True) == KEYWORDS


words = st.sampled_from([*sum(KEYWORDS.values(), ()), "also", "steps", "double-check again", "the", "re-", "x^2"])
texts = st.lists(words, max_size=20).map(" ".join)


@given(texts, texts)
def test_texts_apart_add_up(first, second):
    together, one, other = (keyword_counts(text) for text in (f"{first} . {second}", first, second))
    assert together.keywords == {key: one.keywords[key] + other.keywords[key] for key in together.keywords}


@given(texts)
def test_case_of_the_text_does_not_matter_unless_it_decides(text):
    assert keyword_counts(text) == keyword_counts(text.upper()) == keyword_counts(text.lower())


@given(texts)
def test_spellings_of_the_table_are_a_part_of_all(text):
    strict, loose = keyword_counts(text, case_sensitive=True), keyword_counts(text)
    assert all(strict.groups[group] <= loose.groups[group] for group in loose.groups)


def test_the_figures_of_the_docstring(shared_data):
    traces = [json.loads(line) for line in (shared_data / "traces.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = []
    for is_math in (True, False):
        chosen = [trace["completion"] for trace in traces if (trace["task"] == "math") is is_math]
        for case_sensitive in (False, True):
            counts = [keyword_counts(text, case_sensitive).groups for text in chosen]
            rows.append([sum(count[group] for count in counts) for group in KEYWORDS])
    assert rows == [[48, 11, 6], [40, 6, 6], [660, 152, 152], [546, 29, 152]]
    for row, characters in zip(rows, (6674, 6674, 145_590, 145_590), strict=True):
        rates = " | ".join(f"{1000 * count / characters:.2f}" for count in row)
        shares = f"{row[0] / row[1]:.1f} | {row[0] / row[2]:.1f}"
        assert f"| {rates} | {shares} |" in keyword_counts.__doc__


def completion(text, num_tokens):
    return SampledCompletion(0, text, num_tokens, num_tokens, "eos", "4", True)


PROBLEMS = [
    problem(0, completion("So first. Wait.", 10), completion("So so so", 30)),
    problem(1, completion("nothing", 20), completion("second step", 20)),
]


def only(folder):
    (point,) = load_behaviors([folder])
    return point


def test_behavior_by_hand():
    result = behavior({"a": PROBLEMS}, "base", 7)
    # per problem: tokens 20 and 20; summary (1 + 3) / 2 = 2 and 0; rethink 0.5 and 0; plan 0.5 and 1
    assert (result.tokens.value, result.num_problems, result.num_responses) == (20.0, 2, 4)
    assert {group: mean.value for group, mean in result.groups.items()} == {
        "summary": 1,
        "rethink": 0.25,
        "plan": 0.75,
    }
    # 2 and 0: their mean is 1 -+ 12.706 * 1
    assert (result.groups["summary"].low, result.groups["summary"].high) == pytest.approx((0.0, 13.706), abs=1e-3)
    assert "a has 2" in result.warning
    assert (result.tokens.low, result.tokens.high) == (20.0, 20.0)
    assert (result.keywords["so"], result.keywords["step"], result.keywords["thus"]) == (1.0, 0.25, 0.0)
    assert result.per_1000_tokens("summary") == 50.0  # one in twenty


def test_behavior_can_match_by_case():
    result = behavior({"a": PROBLEMS}, "base", case_sensitive=True)
    # So at the start of two texts: (1 + 1) / 2 in the first problem; Wait is not wait
    assert result.groups["summary"].value == 0.5
    assert result.groups["rethink"].value == 0.0


def test_all_benchmarks_of_a_run_count_alike(tmp_path):
    more = [problem(0, completion("Thus", 40), completion("Thus", 40), name="q")]
    result = only(write_run(tmp_path / "run", {"a": PROBLEMS, "b": more}, "base", step=3))
    # means of a and b: tokens 20 and 40, summary 1 and 1, plan 0.75 and 0
    assert result.tokens.value == 30.0
    assert result.groups["summary"].value == 1.0
    assert (result.groups["plan"].value, result.keywords["step"]) == (0.375, 0.125)
    assert not result.groups["summary"].has_interval  # b has one problem
    assert (result.label, result.step, result.num_problems, result.num_responses) == ("base", 3, 3, 6)


def test_tokens_have_the_interval_of_the_runs_results(tmp_path):
    rng = np.random.default_rng(0)
    benchmarks = {
        name: [problem(i, completion("", int(n)), name=name) for i, n in enumerate(rng.integers(1, 99, size))]
        for name, size in (("a", 9), ("b", 5))
    }
    folder = write_run(tmp_path / "run", benchmarks, "base")
    tokens, expected = only(folder).tokens, load_results(folder).overall.tokens
    assert astuple(tokens) == pytest.approx(astuple(expected), rel=1e-12)


def test_an_unfinished_run_is_refused(tmp_path):
    folder = write_run(tmp_path / "run", {"a": PROBLEMS}, "base")
    samples = folder / "samples" / "a.jsonl"
    samples.write_text(samples.read_text().splitlines()[0] + "\n")
    with pytest.raises(ValueError, match=r"is not finished: a has 1 of 2 problems; run the command that began it"):
        load_behaviors([folder])
    with pytest.raises(ValueError, match=r"has no run\.json"):
        load_behaviors([tmp_path])


def test_checkpoints_are_sorted_by_step_only_if_steps_tell_them_apart():
    late, early, base = (
        behavior({"a": PROBLEMS}, label, step) for label, step in (("l", 9), ("e", 1), ("base", None))
    )
    assert over_training([late, early]) == [early, late]
    assert over_training([late, early, base]) == [base, early, late]
    assert over_training([late, base, base]) == [late, base, base]
    assert over_training([late, early, late]) == [late, early, late]


def test_one_checkpoint_without_a_step_is_step_zero_where_others_have_one():
    late, early, base, start = (
        behavior({"a": PROBLEMS}, label, step) for label, step in (("l", 9), ("e", 1), ("base", None), ("start", 0))
    )
    assert training_steps([late, base, early]) == [9, 0, 1]
    assert training_steps([start]) == [0]
    assert training_steps([base]) is None
    assert training_steps([base, base, late]) is None
    assert training_steps([base, start, late]) is None
    assert training_steps([late, late]) is None


def test_checkpoints_bear_the_labels_of_their_runs_in_the_order_of_their_steps(tmp_path):
    runs = [write_run(tmp_path / name, {"a": PROBLEMS}, "leash", step=step) for name, step in (("x", 9), ("y", None))]
    assert [point.label for point in load_behaviors(runs)] == ["leash", "leash, step 9"]
    runs.append(write_run(tmp_path / "z", {"a": PROBLEMS}, "leash", step=9))
    assert [point.label for point in load_behaviors(runs)] == ["leash, step 9 (x)", "leash", "leash, step 9 (z)"]


def test_table_and_csv_tell_the_numbers():
    points = [behavior({"a": PROBLEMS}, "base", None), behavior({"a": PROBLEMS}, "leash", 5)]
    table = behavior_table(points)
    assert all(len(row) == len(table.head) for row in table.rows)
    assert table.rows[1][:5] == ["leash", "5", "4", "20.0 [20.0, 20.0]", "1 [0, 13.7]"]
    assert "few problems" in table.caption
    assert table.rows[0][1] == ""
    assert table.rows[0][-3:] == ["50", "12.5", "37.5"]
    (first, second) = csv.DictReader(io.StringIO(behavior_csv(points)))
    # rethink and step name a group, a column and keywords
    assert (first["rethink"], first["keyword rethink"], first["step"], first["keyword step"]) == (
        "0.25",
        "0.0",
        "",
        "0.25",
    )
    assert (second["summary"], second["summary_low"]) == ("1.0", "0.0")
    assert (second["step"], second["summary_per_1000_tokens"]) == ("5", "50.0")
    assert float(second["summary_high"]) == points[1].groups["summary"].high


def test_the_command_writes_the_same_files_twice(tmp_path, capsys):
    from leash_trl.cli.behavior import main

    runs = [str(write_run(tmp_path / f"run-{step}", {"a": PROBLEMS}, "leash", step=step)) for step in (20, 10)]
    for output in ("one", "two"):
        main([*runs, "--output", str(tmp_path / output)])
    names = {"behavior.md", "behavior.csv", "behavior.png"}
    assert {path.name for path in (tmp_path / "one").iterdir()} == names
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)
    written = (tmp_path / "one" / "behavior.md").read_text()
    assert re.findall(r"^\| leash, step (\d+) \| \1 \|", written, re.MULTILINE) == ["10", "20"]
    assert written in capsys.readouterr().out


def test_the_command_can_match_by_case(tmp_path):
    from leash_trl.cli.behavior import main

    run = write_run(tmp_path / "run", {"a": PROBLEMS}, "leash")
    main([str(run), "--case_sensitive", "--output", str(tmp_path / "out")])
    (row,) = csv.DictReader((tmp_path / "out" / "behavior.csv").read_text().splitlines())
    assert row["rethink"] == "0.0"


def test_the_command_says_what_is_no_run(tmp_path):
    from leash_trl.cli.behavior import main
    from leash_trl.cli.errors import UserError

    with pytest.raises(UserError, match=r"has no run\.json"):
        main([str(tmp_path)])
