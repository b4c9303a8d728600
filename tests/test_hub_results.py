"""Results in the Hub's forms, read back by the Hub's own client."""

import json

import pytest
import yaml
from huggingface_hub import ModelCardData, parse_eval_result_entries
from huggingface_hub.repocard_data import model_index_to_eval_results
from sampled_run import completion, problem, write_run

from leash_trl.evaluation.hub_results import HubBenchmark, hub_benchmarks, hub_eval_results, model_card_results
from leash_trl.evaluation.results import load_results


BENCHMARKS = {
    "gpqa": HubBenchmark("Idavidrein/gpqa", "diamond", revision="abc"),
    "aime": HubBenchmark("math-ai/aime25"),
    "elsewhere": HubBenchmark("a/b"),
}


@pytest.fixture
def run(tmp_path):
    """gpqa: one of six right, a third at best, 40 1/6 tokens; aime: all right, 8 tokens; gym is not on the Hub."""
    gpqa = [
        problem(0, completion("1", 40, True), completion("2", 40, False), completion("2", 41, False)),
        problem(1, completion("2", 40, False), completion("2", 40, False), completion("2", 40, False)),
    ]
    solved = [problem(0, *[completion("1", 8, True)] * 3)]
    return load_results(write_run(tmp_path / "run", {"gpqa": gpqa, "gym": solved, "aime": solved}))


def test_eval_results_read_back(run):
    text = hub_eval_results(
        run, BENCHMARKS, date="2026-11-21", source_url="https://example.org/run", source_name="logs", source_user="me"
    )
    gpqa, aime = parse_eval_result_entries(yaml.safe_load(text))
    assert (gpqa.dataset_id, gpqa.task_id, gpqa.dataset_revision) == ("Idavidrein/gpqa", "diamond", "abc")
    assert gpqa.value == 16.67
    assert gpqa.date == "2026-11-21"
    assert (gpqa.source_url, gpqa.source_name, gpqa.source_user) == ("https://example.org/run", "logs", "me")
    assert gpqa.source_org is None
    assert (aime.dataset_id, aime.task_id, aime.dataset_revision, aime.value) == (
        "math-ai/aime25",
        "default",
        None,
        100,
    )


def test_notes_say_how_it_was_measured(run):
    gpqa = parse_eval_result_entries(yaml.safe_load(hub_eval_results(run, BENCHMARKS)))[0]
    assert gpqa.notes.startswith(
        "Avg@3 in % [0.1, 98.3]; 2 problems; 40 tokens per completion; temperature 0.6, top_p 0.95, top_k 0, "
        "max_new_tokens 64, plain decoding; Warning: few problems"
    )


def test_fields_that_are_not_given_are_not_written(run):
    first = yaml.safe_load(hub_eval_results(run, BENCHMARKS))[0]
    assert set(first) == {"dataset", "value", "notes"}


def test_a_source_needs_a_link(run):
    with pytest.raises(ValueError, match="`source_url` must also be provided"):
        hub_eval_results(run, BENCHMARKS, source_org="us")


def test_model_card_takes_the_entries_and_gives_them_back(run):
    entries = model_card_results(run, BENCHMARKS)
    card = ModelCardData(model_name="leash", eval_results=entries)
    index = card.to_dict()["model-index"]
    assert [result["dataset"]["type"] for result in index[0]["results"]] == ["Idavidrein/gpqa", "math-ai/aime25"]
    name, back = model_index_to_eval_results(index)
    assert name == "leash"
    assert [(entry.metric_name, entry.metric_value) for entry in back] == [
        ("Avg@3 (%)", 16.67),
        ("mean tokens per completion", 40.2),
        ("Avg@3 (%)", 100.0),
        ("mean tokens per completion", 8.0),
    ]
    assert back[0].dataset_revision == "abc"


@pytest.mark.parametrize("publish", [hub_eval_results, model_card_results])
def test_what_is_not_finished_is_not_published(tmp_path, publish):
    folder = write_run(tmp_path / "part", {"gpqa": [problem(0, completion("1", 8, True))]}, expected={"gpqa": 198})
    with pytest.raises(ValueError, match="gpqa of 'base' has 1 of 198 problems; finish the run"):
        publish(load_results(folder, allow_partial=True), BENCHMARKS)


def test_a_run_with_nothing_for_the_hub_is_refused(run):
    with pytest.raises(ValueError, match=r"none of the benchmarks of 'base' \(gpqa, gym, aime\) is among .* \(mmlu\)"):
        hub_eval_results(run, {"mmlu": HubBenchmark("TIGER-Lab/MMLU-Pro")})


@pytest.mark.parametrize("publish", [hub_eval_results, model_card_results])
def test_a_part_of_a_benchmark_is_not_published(run, publish):
    # --limit 2: the run is whole, but the benchmark has more problems than it asked for
    with pytest.raises(ValueError, match="gpqa of 'base' has 2 problems, but Idavidrein/gpqa has 198; evaluate all"):
        publish(run, {"gpqa": HubBenchmark("Idavidrein/gpqa", "diamond", num_problems=198)})
    assert publish(run, {"gpqa": HubBenchmark("Idavidrein/gpqa", "diamond", num_problems=2)})


@pytest.mark.parametrize(
    ("reference", "is_local"),
    [
        ("gpqa_diamond", False),
        ("Idavidrein/gpqa:gpqa_diamond", False),
        ("gpqa_diamond=secret/gpqa.jsonl", True),
        ("secret/gpqa_diamond.jsonl", True),
        (None, False),
    ],
)
def test_notes_say_that_rows_came_from_a_local_file_without_its_path(tmp_path, reference, is_local):
    solved = [problem(0, completion("1", 8, True))]
    folder = write_run(tmp_path / "run", {"gpqa_diamond": solved})
    run = json.loads((folder / "run.json").read_text())
    run["benchmarks"]["gpqa_diamond"] |= {} if reference is None else {"reference": reference}
    (folder / "run.json").write_text(json.dumps(run))
    text = hub_eval_results(load_results(folder), {"gpqa_diamond": HubBenchmark("Idavidrein/gpqa")})
    assert ("rows from a local copy" in text) == is_local
    assert "secret" not in text


def test_named_sources_are_on_the_hub_where_the_run_has_all_their_problems(tmp_path):
    solved = [problem(index, completion("1", 8, True)) for index in range(128)]
    sizes = {"aime24": 30, "aime25": 29, "gym_test": 128, "mine": 30}
    run = load_results(write_run(tmp_path / "run", {name: solved[:size] for name, size in sizes.items()}))
    # aime25 lacks a problem, the gym is not on the Hub, and nobody knows mine
    assert hub_benchmarks(run) == {"aime24": HubBenchmark("HuggingFaceH4/aime_2024", num_problems=30)}


def test_a_problem_that_could_not_be_graded_does_not_keep_a_finished_run_from_the_hub(tmp_path):
    rows = [problem(i, completion("1", 8, None if i == 7 else True)) for i in range(30)]
    run = load_results(write_run(tmp_path / "run", {"aime24": rows}))
    (entry,) = parse_eval_result_entries(yaml.safe_load(hub_eval_results(run, hub_benchmarks(run))))
    assert entry.value == 100.0
    assert "30 problems, 29 of them graded" in entry.notes
