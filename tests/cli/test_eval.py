"""`leash eval` and `leash filter` from the command line to the files, on the gym."""

import filecmp
import json
import re
import shutil
import signal
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock
from huggingface_hub import HfApi
from killed_command import killed_in_a_fork
from sampled_run import completion, problem, write_run

from leash_trl.cli.main import main
from leash_trl.cli.sampling import load_checked, resolve_engine
from leash_trl.cli.train import load_training_data
from leash_trl.cli.training_arguments import parse
from leash_trl.data import BOXED_SUFFIX
from leash_trl.evaluation.export import write_results
from leash_trl.evaluation.results import load_results
from leash_trl.evaluation.run_description import weights_fingerprint
from leash_trl.trainer.checkpoints import LOCK_FILE


SMALL = ["--model", "gym", "--num_samples", "2", "--temperature", "1", "--top_p", "1", "--max_new_tokens", "256"]
SMALL += ["--batch_size", "4", "--limit", "7"]


def identical(one: Path, other: Path) -> bool:
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(other)) for path in other.rglob("*") if path.is_file())
    return filecmp.cmpfiles(one, other, names, shallow=False)[0] == names


EVAL = ["eval", "--benchmarks", "gym_test", *SMALL, "--output_dir"]
FILTER = ["filter", "--dataset", "gym", "--target_quantile", "0.5", *SMALL, "--output_dir"]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A finished run of `EVAL`; for reading and copying only."""
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    assert main([*EVAL, str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def filtered(tmp_path_factory):
    """A finished run of `FILTER`, for reading only, and what it printed."""
    folder = tmp_path_factory.mktemp("filtered") / "run"
    with redirect_stdout(StringIO()) as printed:
        assert main([*FILTER, str(folder)]) == 0
    return folder, printed.getvalue()


@pytest.mark.parametrize("command", [EVAL, FILTER], ids=["eval", "filter"])
def test_a_killed_command_goes_on_to_the_same_files(command, evaluated, filtered, tmp_path):
    # killed when some problems were sampled; the fork imports nothing again, which would take most of the time
    assert killed_in_a_fork("4", [*command, str(tmp_path)]) == -signal.SIGKILL
    assert (tmp_path / "samples").is_dir()
    assert not (tmp_path / "results.json").exists()
    assert not (tmp_path / "dataset").exists()
    assert main([*command, str(tmp_path)]) == 0
    assert identical(evaluated if command is EVAL else filtered[0], tmp_path)


def test_filter_writes_a_data_set_that_trains(filtered):
    folder, printed = filtered
    assert "Of 7 problems, by right completions out of 2" in printed
    where = ["--dataset_name", str(folder / "dataset" / "train.jsonl")]
    script_args, _, _, dataset_args = parse([*where, "--target_length", "9", "--use_cpu", "true", "--bf16", "false"])
    rows = load_training_data(script_args, dataset_args)[0]
    assert len(rows) > 0
    assert {"prompt", "solution", "pass_rate", "correct_lengths"} <= {*rows.column_names}
    rows = [json.loads(line) for line in (folder / "dataset" / "train.jsonl").read_text().splitlines()]
    assert {row["pass_rate"] for row in rows} == {0.5}
    assert all(len(row["correct_lengths"]) == 1 for row in rows)
    assert rows[0]["prompt"][0]["role"] == "user"
    assert len((folder / "samples" / "gym.jsonl").read_text().splitlines()) == 7


def test_another_run_in_the_folder_is_refused(evaluated, capsys):
    before = (evaluated / "results.json").read_text()
    assert main([*EVAL, str(evaluated), "--seed", "1"]) == 2
    assert "seed: 0 there, 1 now" in capsys.readouterr().err
    assert (evaluated / "results.json").read_text() == before


def test_a_baseline_is_compared_problem_by_problem(evaluated, tmp_path, capsys):
    other = ["--seed", "1", "--baseline", str(evaluated)]
    assert main([*EVAL, str(tmp_path / "b"), *other, "--label", "second"]) == 0
    assert "Δ" in capsys.readouterr().out
    assert "second" in (tmp_path / "b" / "results.md").read_text()
    assert "baseline" in (tmp_path / "b" / "results.json").read_text()
    # what does not fit is said before anything is sampled
    assert main([*EVAL, str(tmp_path / "c"), *other, "--limit", "3"]) == 2
    assert "other problems" in capsys.readouterr().err
    assert not (tmp_path / "c" / "samples").exists()


def test_a_recipe_gives_the_options_and_the_command_line_overrides_it(tmp_path):
    recipe = tmp_path / "eval.yaml"
    recipe.write_text(
        "model: gym\nbenchmarks: [gym_test]\nnum_samples: 3\ntemperature: 1.0\nmax_new_tokens: 200\nlimit: 2\n"
        "lenient: true\n"
    )
    folder = tmp_path / "run"
    assert main(["eval", "--config", str(recipe), "--output_dir", str(folder), "--num_samples", "2"]) == 0
    run = json.loads((folder / "run.json").read_text())
    assert (run["num_samples"], run["sampling"]["max_new_tokens"], run["lenient"]) == (2, 200, True)
    assert run["benchmarks"]["gym_test"]["num_problems"] == 2
    assert run["sampling"] == {"temperature": 1.0, "top_p": 0.95, "top_k": 0, "max_new_tokens": 200}
    assert run["weights"]
    assert run["step"] is None
    assert not (folder / "hub_eval_results.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--benchmarks", "aime99"], "'aime99' is no data set"),
        (["--benchmarks", "gym_test", "--max_new_tokens", "100000"], "lower max_new_tokens"),
        (["--benchmarks", "gym_test", "--temperature", "-1"], "temperature is -1"),
        (["--benchmarks", "gym_test", "--decoding", "beam"], "decoding is 'beam'"),
        (["--benchmarks", "gym_test", "gym_test"], "two have the same name"),
        (["--benchmarks", "gym_test", "--baseline", "nowhere"], "nowhere"),
        (["--benchmarks", "gym_test", "--engine_kwargs", '{"seed": 2}'], "for --engine vllm"),
        (["--benchmarks", "gym_test", "--model", "nowhere/at/all"], "nowhere/at/all"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_sampled(arguments, message, tmp_path, capsys):
    assert main(["eval", *SMALL, *arguments, "--output_dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("leash eval: ")
    assert message in error
    assert not (tmp_path / "run").exists()


def test_another_checkpoint_is_another_run(tmp_path):
    for name in ("model.safetensors", "tokenizer_config.json", "chat_template.jinja"):
        before = weights_fingerprint(tmp_path)
        (tmp_path / name).write_bytes(b"0" * 3_000_000)
        first = weights_fingerprint(tmp_path)
        (tmp_path / name).write_bytes(b"1" + b"0" * 2_999_999)
        assert len({before, first, weights_fingerprint(tmp_path)}) == 3


@pytest.mark.parametrize("file", ["config.json", "adapter_config.json"])
def test_a_model_on_the_hub_is_known_by_its_commit(file, loopback_hub, tmp_path):
    (tmp_path / file).write_text("{}")
    with loopback_hub.online():
        HfApi().create_repo("me/model")
        HfApi().upload_folder(repo_id="me/model", folder_path=tmp_path)
        commits = loopback_hub.commits("me/model")
        assert weights_fingerprint("me/model") == commits[-1].oid
        assert weights_fingerprint("me/model", commits[-1].oid) == commits[-1].oid


def test_two_processes_do_not_sample_into_one_folder(tmp_path, capsys):
    with FileLock(tmp_path / LOCK_FILE):  # in a folder that the other process has just made
        assert main([*EVAL, str(tmp_path)]) == 2
        assert tmp_path.is_dir()
    assert "is in use by another run" in capsys.readouterr().err


def test_filter_leaves_golds_out_that_cannot_be_read(tmp_path, caplog):
    data = tmp_path / "data.jsonl"
    rows = [{"problem": f"1 + {n} = ?", "answer": str(n + 1)} for n in range(1, 4)] + [
        {"problem": "x", "answer": "$$"}
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    everything = ["--min_passes", "0", "--max_passes", "2", "--output_dir", str(tmp_path / "run")]
    assert main(["filter", "--dataset", str(data), *SMALL, *everything]) == 0
    assert "row 3" in caplog.text
    assert len((tmp_path / "run" / "dataset" / "train.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("name", ["config.json", "trainer_state.json"])
def test_a_folder_with_a_model_is_refused(name, tmp_path, capsys):
    (tmp_path / name).touch()
    assert main(["eval", "--benchmarks", "gym_test", *SMALL, "--output_dir", str(tmp_path)]) == 2
    assert "holds a model or a training run" in capsys.readouterr().err


def test_a_filter_that_keeps_nothing_says_so_and_writes_nothing(tmp_path, capsys):
    nothing = ["--min_passes", "0", "--max_passes", "0", "--limit", "2"]
    assert main(["filter", "--dataset", "gym", *SMALL, *nothing, "--output_dir", str(tmp_path)]) == 2
    assert "nothing is left" in capsys.readouterr().err
    assert not (tmp_path / "dataset").exists()


def test_the_papers_recipe_takes_what_filter_wrote(tmp_path):
    data = tmp_path / "train.jsonl"
    row = {"id": "a", "prompt": [{"role": "user", "content": "1 + 1 = ?"}], "solution": "2", "pass_rate": 0.5}
    data.write_text(json.dumps(row) + "\n")
    recipe = Path(__file__).parent.parent / "recipes" / "leash_1.5b_4k.yaml"
    script_args, _, _, dataset_args = parse(
        ["--config", str(recipe), "--dataset_name", str(data), "--use_cpu", "true", "--bf16", "false"]
    )
    (loaded,) = load_training_data(script_args, dataset_args)[0]
    assert loaded["prompt"] == row["prompt"]


def test_a_misspelt_key_of_a_recipe_is_named(tmp_path, capsys):
    recipe = tmp_path / "eval.yaml"
    recipe.write_text("benchmark: [gym_test]\n")
    assert main(["eval", "--config", str(recipe)]) == 2
    assert "unknown key 'benchmark', did you mean benchmarks?" in capsys.readouterr().err


def test_golds_that_cannot_be_read_are_named_by_row(tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    rows = [{"problem": "1 + 1", "answer": "2"}, {"problem": "2 + 2", "answer": r"\text{}"}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["eval", *SMALL, "--benchmarks", str(data), "--output_dir", str(tmp_path / "run")]) == 2
    assert "row 1" in capsys.readouterr().err


def test_the_suffix_reaches_the_questions(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"problem": "1 + 1 = ?", "answer": "2"}) + "\n")
    for suffix, effort, words, question in (
        (" Be brief.", None, None, "1 + 1 = ? Be brief."),
        (None, None, None, f"1 + 1 = ?{BOXED_SUFFIX}"),
        (None, "low", None, f"1 + 1 = ?{BOXED_SUFFIX} Effort: low."),
        ("", "low", " ({effort})", "1 + 1 = ? (low)"),
    ):
        asked = {"prompt_suffix": suffix, "effort": effort, "effort_suffix": words}
        arguments = SimpleNamespace(**asked, limit=None, model_name_or_path="gym", revision=None)
        problems = load_checked(str(data), arguments, "benchmark", drops_unreadable=False)
        assert problems[0]["prompt"][0]["content"] == question


@pytest.mark.parametrize(
    ("has_vllm", "has_gpu", "expected"),
    [(True, True, "vllm"), (True, False, "transformers"), (False, True, "transformers")],
)
def test_vllm_is_taken_where_it_is_installed_and_there_is_a_gpu(has_vllm, has_gpu, expected, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if has_vllm else None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    assert resolve_engine("auto") == expected
    assert resolve_engine("transformers") == "transformers"


def test_whole_benchmarks_of_the_hub_are_ready_to_publish(tmp_path):
    problems = [problem(index, completion("1", 10, True)) for index in range(30)]
    for name, rows in (("whole", problems), ("part", problems[:2])):
        folder = write_run(tmp_path / name, {"hmmt_feb25": rows})
        write_results(folder, load_results(folder), None)
    assert "MathArena/hmmt_feb_2025" in (tmp_path / "whole" / "hub_eval_results.yaml").read_text()
    assert not (tmp_path / "part" / "hub_eval_results.yaml").exists()


def test_a_damaged_line_is_sampled_again_by_the_same_command(evaluated, tmp_path, capsys):
    shutil.copytree(evaluated, tmp_path / "damaged")
    samples = tmp_path / "damaged" / "samples" / "gym_test.jsonl"
    lines = samples.read_bytes().splitlines(keepends=True)
    # a line that is no row, and one row twice
    samples.write_bytes(b"".join([*lines[:2], b"\xff\n", *lines[3:], lines[0]]))
    before = samples.read_bytes()
    for reader in ("behavior", "report"):
        assert main([reader, str(tmp_path / "damaged"), "--output", str(tmp_path / reader)]) == 2
        error = capsys.readouterr().err
        assert re.search(rf"leash {reader}: {samples}, line 3: .*run the command", error), error
    assert samples.read_bytes() == before
    assert main([*EVAL, str(tmp_path / "damaged")]) == 0
    aside = samples.with_name("gym_test.damaged.jsonl")
    assert aside.read_bytes() == b"\xff\n" + lines[0]
    aside.unlink()
    assert identical(evaluated, tmp_path / "damaged")


def test_a_row_that_is_there_twice_does_not_stop_a_finished_run(evaluated, tmp_path):
    shutil.copytree(evaluated, tmp_path / "run")
    samples = tmp_path / "run" / "samples" / "gym_test.jsonl"
    whole = samples.read_bytes()
    samples.write_bytes(whole + whole.splitlines(keepends=True)[1])
    assert main([*EVAL, str(tmp_path / "run")]) == 0
    assert samples.read_bytes() == whole


@pytest.mark.parametrize("is_finished", [True, False])
def test_the_same_command_grades_again_what_the_machine_kept_from_being_graded(evaluated, tmp_path, is_finished):
    shutil.copytree(evaluated, tmp_path / "failed")
    path = tmp_path / "failed" / "samples" / "gym_test.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    answered = next(c for row in rows for c in row["completions"] if c["answer"] is not None)
    answered |= {"is_correct": None, "grader_failure": "lost its worker"}
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in (rows if is_finished else rows[:5])))
    assert main([*EVAL, str(tmp_path / "failed")]) == 0
    assert identical(evaluated, tmp_path / "failed")
