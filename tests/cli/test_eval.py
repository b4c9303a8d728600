"""`leash eval` and `leash filter` from the command line to the files, on the gym."""

import json
import re
import signal
from unittest.mock import Mock

import pytest
from conftest import gym_tokenizer
from datasets import Dataset
from huggingface_hub import HfApi
from killed_command import killed_in_a_fork
from PIL import Image
from published_rows import write_rows
from written_runs import files_in

from leash_trl.cli.arguments import parse
from leash_trl.cli.commands.eval import EvalArguments
from leash_trl.cli.main import main
from leash_trl.cli.sampling_arguments import SamplingArguments, load_engine, load_problems_to_sample
from leash_trl.comparison.progress import BAR_PATTERN
from leash_trl.data import BOXED_SUFFIX
from leash_trl.engines import vllm_engine
from leash_trl.evaluation.runs import read_lines
from leash_trl.evaluation.sampling import weights_fingerprint
from leash_trl.evaluation.shortest_correct import shortest_correct_text


SMALL = ["--config", "tests/fixtures/small_eval.yaml"]
EVAL = ["eval", "--benchmarks", "gym_test", *SMALL, "--output_dir"]
FILTER = ["filter", "--dataset_name", "gym", "--target_quantile", "0.5", *SMALL, "--output_dir"]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A finished run of `EVAL`; for reading only."""
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    assert main([*EVAL, str(folder)]) == 0
    return folder


def kept_rows(folder):
    """The problems that a filter kept."""
    return [json.loads(line) for line in (folder / "dataset" / "train.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("command", [EVAL, FILTER], ids=["eval", "filter"])
def test_a_killed_command_goes_on_to_the_same_files(command, tmp_path):
    assert main([*command, str(tmp_path / "whole")]) == 0
    folder = tmp_path / "run"
    # killed when some problems were sampled; the fork imports nothing again, which would take most of the time
    assert killed_in_a_fork(4, [*command, str(folder)]) == -signal.SIGKILL
    assert (folder / "samples").is_dir()
    assert not (folder / "results.json").exists()
    assert not (folder / "dataset").exists()
    assert main([*command, str(folder)]) == 0
    assert files_in(tmp_path / "whole") == files_in(folder)


def test_filter_keeps_problems_with_pass_rate_and_target_of_their_own(tmp_path):
    assert main([*FILTER, str(tmp_path)]) == 0
    for row in kept_rows(tmp_path):  # of two completions one is right
        assert row["pass_rate"] == 0.5
        assert row["target_length"] == row["correct_lengths"][0]


def test_filter_writes_the_shortest_right_completion_of_each_problem_for_supervised_training(tmp_path, capsys):
    words = "filter --dataset_name gym --shortest_correct --output_dir"
    assert main([*words.split(), str(tmp_path), *SMALL]) == 0
    problems = read_lines(tmp_path / "samples" / "gym.jsonl")
    texts = {problem["id"]: shortest_correct_text(problem["completions"]) for problem in problems}
    expected = {name: f"<think>{text}" for name, text in texts.items() if text is not None}
    rows = [json.loads(line) for line in (tmp_path / "shortest_correct" / "train.jsonl").read_text().splitlines()]
    assert {row["id"]: row["completion"][0]["content"] for row in rows} == expected
    printed = capsys.readouterr().out
    assert f"{7 - len(expected)} problems" in printed
    # TRL's own limit would cut longer completions, and with them their ends.
    assert f"--max_length {max(row['num_tokens'] for row in rows)}" in printed


def test_a_recipe_gives_the_options_and_the_record_has_them(evaluated):
    run = json.loads((evaluated / "run.json").read_text())
    sampling = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_new_tokens": 256,
    }
    assert {
        "num_samples": 2,
        "lenient": True,
        "step": None,
        "sampling": sampling,
    }.items() <= run.items()
    assert run["benchmarks"]["gym_test"]["num_problems"] == 7
    assert run["weights"]


def test_a_baseline_is_compared_problem_by_problem(evaluated, tmp_path, capsys):
    words = ["--seed", "1", "--baseline", str(evaluated), "--label", "second"]
    assert main([*EVAL, str(tmp_path), *words]) == 0
    assert "Δ" in capsys.readouterr().out
    assert "second" in (tmp_path / "results.md").read_text()
    assert "tokens_change" in (tmp_path / "results.csv").read_text()


def test_the_progress_bar_counts_the_problems_of_all_benchmarks(tmp_path, capsys):
    words = ["eval", "--benchmarks", "gym_test", "gym_stories_test", *SMALL, "--output_dir", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().err
    assert "gym_stories_test (2 of 2)" in printed
    *_, last = BAR_PATTERN.finditer(printed)
    assert (last["num_done"], last["total"], last["unit"]) == ("14", "14", "problem")  # 7 each
    assert re.search(r"accuracy=[\d.]+, tokens=\d+\]$", last["bar"])


def test_another_checkpoint_is_another_run(tmp_path):
    for name in ("model.safetensors", "tokenizer_config.json", "chat_template.jinja"):
        before = weights_fingerprint(tmp_path)
        (tmp_path / name).write_bytes(b"0" * 3_000_000)
        first = weights_fingerprint(tmp_path)
        (tmp_path / name).write_bytes(b"1" + b"0" * 2_999_999)
        assert len({before, first, weights_fingerprint(tmp_path)}) == 3


@pytest.mark.parametrize("file", ["config.json", "adapter_config.json"])
def test_a_model_on_the_hub_is_known_by_its_commit(file, hub):
    HfApi().create_repo("me/model")
    HfApi().upload_file(repo_id="me/model", path_or_fileobj=b"{}", path_in_repo=file)
    commit = hub.commits("me/model")[-1].oid
    assert weights_fingerprint("me/model") == weights_fingerprint("me/model", commit) == commit


def test_filter_leaves_golds_out_that_cannot_be_read_and_keeps_own_columns(tmp_path, caplog):
    date = "2024-01-02 03:04:05"  # which datasets reads as a time
    rows = [{"problem": f"1 + {n} = ?", "answer": str(n + 1), "made": date} for n in range(1, 4)]
    file = write_rows(tmp_path / "data.jsonl", [*rows, {"problem": "x", "answer": "$$"}])
    words = f"filter --dataset_name {file} --min_passes 0 --max_passes 2 --output_dir {tmp_path / 'run'}"
    assert main([*words.split(), *SMALL]) == 0
    assert "row 3" in caplog.text
    assert [row["made"] for row in kept_rows(tmp_path / "run")] == [date] * 3


@pytest.mark.parametrize("name", ["image", "images"])
def test_problems_with_pictures_are_refused_since_prompts_would_lack_them(name, tmp_path, capsys):
    picture = Image.new("RGB", (1, 1))
    row = {"prompt": "1 + 1 = ?", "solution": "2", name: picture if name == "image" else [picture]}
    Dataset.from_list([row]).save_to_disk(tmp_path / "data")
    assert main(["filter", *SMALL, "--dataset_name", str(tmp_path / "data"), "--output_dir", str(tmp_path)]) == 2
    assert f"'{name}'" in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_filter_that_keeps_nothing_says_so_and_writes_nothing(tmp_path, capsys):
    words = f"filter --dataset_name gym --min_passes 0 --max_passes 0 --limit 2 --output_dir {tmp_path}"
    assert main([*words.split(), *SMALL]) == 2
    assert "nothing is left" in capsys.readouterr().err
    assert not (tmp_path / "dataset").exists()


def test_the_prompt_ending_ends_the_questions(tmp_path):
    file = write_rows(tmp_path / "data.jsonl", [{"problem": "1 + 1 = ?", "answer": "2"}])
    arguments = SamplingArguments(output_dir="", model_name_or_path="gym", prompt_ending=" (low)")
    (row,) = load_problems_to_sample(file, arguments, "benchmark", gym_tokenizer())
    assert row["prompt"][0]["content"] == f"1 + 1 = ?{BOXED_SUFFIX} (low)"


@pytest.mark.parametrize(
    ("has_vllm", "has_gpu", "engine"),
    [
        (True, True, "vllm"),
        (True, False, "transformers"),
        (False, True, "transformers"),
    ],
)
def test_vllm_is_taken_where_it_is_installed_and_there_is_a_gpu(has_vllm, has_gpu, engine, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if has_vllm else None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    assert SamplingArguments(output_dir="", model_name_or_path="gym").engine == engine


def test_vllm_gets_room_for_the_longest_request_and_the_options_of_its_own(monkeypatch, tmp_path):
    engine_class = Mock()
    engine_class.return_value.max_length = None
    monkeypatch.setattr(vllm_engine, "VllmEngine", engine_class)
    words = [*EVAL[1:], str(tmp_path), "--engine", "vllm", "--engine_kwargs", '{"seed": 7, "swap_space": 1}']
    arguments = parse(EvalArguments, words, "leash eval", takes_recipe=True)
    problems = {"gym_test": load_problems_to_sample("gym_test", arguments, "benchmark", gym_tokenizer())}
    engine = load_engine(arguments, arguments.sampling_plan(), problems, gym_tokenizer())
    assert engine is engine_class.return_value
    options = engine_class.call_args.kwargs
    assert (options["seed"], options["swap_space"], options["dtype"]) == (7, 1, "auto")
    assert 256 < options["max_model_len"] < 512
