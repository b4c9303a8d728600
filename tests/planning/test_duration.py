"""How many updates, completions and tokens a run has, and how long it takes."""

import re

import yaml
from conftest import ROOT
from written_runs import write_training

from leash_trl.cli.main import main
from leash_trl.planning.duration import MeasuredUpdate, RunSize, measured_update, run_size_lines


GYM = ["--config", str(ROOT / "recipes" / "gym" / "leash.yaml")]


def test_a_logged_step_time_is_a_mean_over_the_updates_since_the_entry_before():
    log = [
        {"step": 1, "step_time": 4.0, "leash/generated_tokens": 300},
        {"step": 2, "eval_loss": 0.0},
        {"step": 3, "step_time": 1.0, "leash/generated_tokens": 600},
    ]
    # 4 s, and twice 1 s
    assert measured_update(log) == MeasuredUpdate(num_updates=3, seconds_per_update=2.0, tokens_per_update=200)


def test_time_at_each_known_rate_by_hand():
    size = RunSize("run", num_updates=200, num_completions=18_000, num_gpus=4)
    measured = MeasuredUpdate(num_updates=5, seconds_per_update=9.0, tokens_per_update=50_000)
    _, tokens, at_most, given, of_run = run_size_lines(
        size, longest=800, target_length=400, step_seconds=36, tokens_per_second=500, measured=measured
    )
    assert "7.2 M, 4.0 hours (16 GPU hours)" in tokens
    assert "14.4 M, 8.0 hours (32 GPU hours)" in at_most
    assert "2.0 hours (8 GPU hours)" in given
    assert "30.0 minutes (2 GPU hours)" in of_run
    assert "10.0 M" in of_run
    assert "optimizer" in of_run  # whose step TRL's step_time leaves out


def plan(capsys, *argv):
    """What the command prints."""
    assert main(["plan", *argv]) == 0
    return capsys.readouterr().out


def test_the_command_plans_a_run_without_a_gpus_memory(capsys):
    out = plan(capsys, *GYM, "--step_seconds", "36")
    assert "100 policy updates, 12,800 completions" in out
    assert "1.0 hours" in out
    assert "GiB" not in out


def test_without_max_steps_a_run_is_planned_for_a_thousand_problems(capsys):
    # 2 epochs of 1,000 problems, 8 completions each, 128 an update
    out = plan(capsys, *GYM, "--max_steps", "-1", "--num_train_epochs", "2")
    assert "125 policy updates, 16,000 completions" in out


def test_each_question_is_asked_once_per_effort(capsys):
    out = plan(capsys, *GYM, "--max_steps", "-1", "--num_train_epochs", "2", "--efforts", "{low: 16, high: 40}")
    # twice the updates and completions of the test above, at a mean target of 28
    assert "250 policy updates, 32,000 completions" in out
    assert re.search(r"target.* 28 .*: 0\.9 M$", out, re.MULTILINE)


def test_completions_at_most_include_all_rounds_of_dynamic_sampling(capsys):
    out = plan(capsys, *GYM, "--dynamic_sampling_rounds", "3")
    # without a further round 12,800 of 24 tokens, with three 51,200 of 192
    assert re.search(r"target.* 12,800 .* 24 .*: 0\.3 M$", out, re.MULTILINE)
    assert re.search(r"at most.* 51,200 .* 192.*: 9\.8 M$", out, re.MULTILINE)


def test_each_completion_may_be_used_in_several_updates(capsys):
    assert "100 policy updates, 6,400 completions" in plan(capsys, *GYM, "--num_iterations", "2")


def test_the_command_plans_the_recipe_of_a_run_by_its_log(tmp_path, capsys):
    log = [{"step_time": 30.0, "leash/generated_tokens": 500}, {"step_time": 42.0, "leash/generated_tokens": 1000}]
    write_training(tmp_path / "run", log)
    recipe = {
        "model_name_or_path": "gym",
        "max_steps": 2,
        "target_length": 24,
        "per_device_train_batch_size": 8,
        "bf16": False,
    }
    (tmp_path / "run" / "leash_recipe.yaml").write_text(yaml.safe_dump(recipe))
    out = plan(capsys, "--run", str(tmp_path / "run"), "--max_steps", "100")
    assert "1.0 hours at 36.00 seconds" in out
