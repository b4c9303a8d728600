"""Results in the Hub's forms, read back by the Hub's own client."""

import json

import pytest
import yaml
from huggingface_hub import ModelCardData, parse_eval_result_entries
from huggingface_hub.repocard_data import model_index_to_eval_results
from sampled_run import completion, problem, write_run

from leash_trl.evaluation.hub_results import hub_benchmarks, hub_eval_results, model_card_results
from leash_trl.evaluation.results import load_results


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """aime24: of 30 problems with three completions each, one is solved once, 40 tokens but for one of 43; aime25: all
    right, 8 tokens; gym_test is not on the Hub."""
    hard = [problem(i, *(completion("2", 40, False) for _ in range(3))) for i in range(29)]
    hard.append(problem(29, completion("1", 43, True), completion("2", 40, False), completion("2", 40, False)))
    solved = [problem(i, *[completion("1", 8, True)] * 3) for i in range(30)]
    folder = tmp_path_factory.mktemp("run") / "run"
    return load_results(write_run(folder, {"aime24": hard, "gym_test": solved[:1], "aime25": solved}))


def test_eval_results_read_back(run):
    written = yaml.safe_load(hub_eval_results(run))
    assert set(written[0]) == {"dataset", "value", "notes"}
    aime24, aime25 = parse_eval_result_entries(written)
    assert (aime24.dataset_id, aime24.task_id, aime24.value) == ("HuggingFaceH4/aime_2024", "default", 1.11)
    assert (aime25.dataset_id, aime25.task_id, aime25.value) == ("math-ai/aime25", "default", 100)


def test_notes_say_how_it_was_measured(run):
    aime24 = parse_eval_result_entries(yaml.safe_load(hub_eval_results(run)))[0]
    low, high = (100 * end for end in (run.benchmarks[0].accuracy.low, run.benchmarks[0].accuracy.high))
    assert aime24.notes == (
        f"Avg@3 in % [{low:.1f}, {high:.1f}]; 30 problems; 40 tokens per completion; temperature 0.6, top_p 0.95, "
        "top_k 0, max_new_tokens 64, plain decoding"
    )


def test_model_card_takes_the_entries_and_gives_them_back(run):
    entries = model_card_results(run)
    card = ModelCardData(model_name="leash", eval_results=entries)
    index = card.to_dict()["model-index"]
    ids = [result["dataset"]["type"] for result in index[0]["results"]]
    assert ids == ["HuggingFaceH4/aime_2024", "math-ai/aime25"]
    name, back = model_index_to_eval_results(index)
    assert name == "leash"
    assert [(entry.metric_name, entry.metric_value) for entry in back] == [
        ("Avg@3 (%)", 1.11),
        ("mean tokens per completion", 40.0),
        ("Avg@3 (%)", 100.0),
        ("mean tokens per completion", 8.0),
    ]


@pytest.mark.parametrize(
    ("reference", "is_local"),
    [
        ("aime24", False),
        ("HuggingFaceH4/aime_2024:default", False),
        ("aime24=secret/aime.jsonl", True),
        ("secret/aime24.jsonl", True),
        (None, False),
    ],
)
def test_notes_say_that_rows_came_from_a_local_file_without_its_path(tmp_path, reference, is_local):
    solved = [problem(i, completion("1", 8, True)) for i in range(30)]
    folder = write_run(tmp_path / "run", {"aime24": solved})
    run = json.loads((folder / "run.json").read_text())
    run["benchmarks"]["aime24"] |= {} if reference is None else {"reference": reference}
    (folder / "run.json").write_text(json.dumps(run))
    text = hub_eval_results(load_results(folder))
    assert ("rows from a local copy" in text) == is_local
    assert "secret" not in text


def test_named_sources_are_on_the_hub_where_the_run_has_all_their_problems(tmp_path):
    solved = [problem(index, completion("1", 8, True)) for index in range(128)]
    sizes = {"aime24": 30, "aime25": 29, "gym_test": 128, "mine": 30}
    run = load_results(write_run(tmp_path / "run", {name: solved[:size] for name, size in sizes.items()}))
    # aime25 lacks a problem, the gym is not on the Hub, and nobody knows mine
    assert [(row.name, *place) for row, *place in hub_benchmarks(run)] == [
        ("aime24", "HuggingFaceH4/aime_2024", "default")
    ]


def test_a_problem_that_could_not_be_graded_does_not_keep_a_finished_run_from_the_hub(tmp_path):
    rows = [problem(i, completion("1", 8, None if i == 7 else True)) for i in range(30)]
    run = load_results(write_run(tmp_path / "run", {"aime24": rows}))
    (entry,) = parse_eval_result_entries(yaml.safe_load(hub_eval_results(run)))
    assert entry.value == 100.0
    assert "30 problems, 29 of them graded" in entry.notes
