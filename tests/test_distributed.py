"""Two processes: the same lambda on both, and the same as one process gets from the same lengths."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import cut_run
import pytest
import scripted_run
import torch


SCRIPT = Path(__file__).parent / "two_process_run.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("two-processes")


@pytest.fixture(scope="module")
def seen(folder, tiny_model_path) -> list[dict]:
    """What each of two processes saw."""
    # not `accelerate launch --cpu --num_processes 2`, which starts one process
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(SCRIPT)]
    python_path = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
    finished = subprocess.run(
        [*command, tiny_model_path, str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": python_path},
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-8000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.fixture
def ranks(seen, request) -> list[dict]:
    """What each process saw of one scenario, the plain one by default."""
    return [rank["scenarios"][getattr(request, "param", "plain")] for rank in seen]


@pytest.fixture
def gradient_runs(seen) -> list[dict]:
    """What each process saw, by case of gradient_run and trainer."""
    return [rank["gradients"] for rank in seen]


def scenario(name: str):
    """Runs a test on another scenario than the plain one."""
    return pytest.mark.parametrize("ranks", [name], indirect=True)


def test_there_really_are_two_processes(ranks):
    assert [rank["world_size"] for rank in ranks] == [2, 2]
    assert [rank["rank"] for rank in ranks] == [0, 1]


def test_both_processes_log_the_same(ranks):
    assert ranks[0]["batches"] == ranks[1]["batches"]
    assert ranks[0]["state"] == ranks[1]["state"]
    assert len(ranks[0]["batches"]) == 4


def test_processes_share_what_has_a_signal(ranks):
    together = sorted(ranks[0]["trained_on"] + ranks[1]["trained_on"])
    signal = sorted(advantage for advantage in ranks[0]["advantages"] if advantage != 0)
    assert [advantage for advantage in together if advantage != 0] == pytest.approx(signal, abs=1e-6)
    assert len(ranks[0]["trained_on"]) == len(ranks[1]["trained_on"])


def test_two_processes_move_lambda_like_one(ranks, tiny_model_path, tmp_path):
    single = scripted_run.run(tiny_model_path, str(tmp_path), batch_size=12)
    assert single["world_size"] == 1
    lambdas = [batch["leash/lambda"] for batch in single["batches"]]
    assert lambdas == [batch["leash/lambda"] for batch in ranks[0]["batches"]]
    assert single["state"] == ranks[0]["state"]
    assert len(set(lambdas)) == 4
    assert max(single["advantages"]) > 0.5
    assert single["table_lengths"] == ranks[0]["table_lengths"]
    assert single["table_advantages"] == pytest.approx(ranks[0]["table_advantages"], abs=1e-12)
    assert single["advantages"] == pytest.approx(ranks[1]["advantages"], abs=1e-12)


@scenario("budgets")
def test_two_processes_move_the_multiplier_of_each_budget_like_one(ranks, tiny_model_path, tmp_path):
    single = scripted_run.run(tiny_model_path, str(tmp_path), batch_size=12, multiplier_per="level")
    assert ranks[0]["state"] == ranks[1]["state"] == single["state"]
    assert ranks[0]["batches"] == ranks[1]["batches"] == single["batches"]
    lambdas = [multiplier["lambda"] for multiplier in single["state"]["multipliers"].values()]
    assert len(set(lambdas)) == len(lambdas) > 1


@scenario("resumed window")
def test_a_window_saved_by_two_processes_resumes_on_two_and_warns_on_one(ranks, seen, folder, tiny_model_path):
    """Inside a window of two updates: two processes go on with their completions, one process generates anew."""
    whole = [rank["scenarios"]["window"] for rank in seen]
    assert [rank["state"] for rank in ranks] == [rank["state"] for rank in whole]
    assert [rank["losses"] for rank in ranks] == [rank["losses"][1:] for rank in whole]
    checkpoint = str(folder / "window" / "checkpoint-1")
    with pytest.warns(UserWarning, match="'num_processes': 2"):
        alone = scripted_run.run(tiny_model_path, str(folder / "one"), 12, steps_per_generation=2, resume=checkpoint)
    assert len(alone["losses"]) == 3


@scenario("dynamic sampling")
def test_dynamic_sampling_keeps_two_processes_in_step(ranks):
    first, second = ranks
    for key in ("state", "wasted", "prompts_drawn", "final_lengths", "loss_tokens", "losses", "advantages"):
        assert first[key] == second[key], key
    assert first["prompts_drawn"] > 0
    assert any(share > 0 for share in first["wasted"])
    # together they train on what both agreed on
    has_signal = [advantage != 0 for advantage in first["advantages"]]
    expected = [length for length, signal in zip(first["final_lengths"], has_signal, strict=True) if signal]
    trained = first["own_lengths"] + second["own_lengths"]
    assert len(trained) - len(expected) in (0, 1)  # one more, where both need as many
    assert not Counter(expected) - Counter(trained)
    assert first["loss_tokens"] == sum(first["final_lengths"])


@scenario("oversampling")
def test_oversampling_keeps_two_processes_in_step(ranks):
    first, second = ranks
    for key in ("state", "wasted", "extra", "prompts_drawn", "signal_record", "final_lengths", "losses", "advantages"):
        assert first[key] == second[key], key
    assert first["extra"][0] == 0  # nothing is known before the first batch
    assert all(extra % 2 == 0 for extra in first["extra"])
    assert 0 < max(first["extra"]) <= 4  # half of 8 groups
    assert len(first["advantages"]) == 16
    has_signal = [advantage != 0 for advantage in first["advantages"]]
    expected = [length for length, signal in zip(first["final_lengths"], has_signal, strict=True) if signal]
    trained = first["own_lengths"] + second["own_lengths"]
    assert not Counter(expected) - Counter(trained)
    assert first["loss_tokens"] == sum(first["final_lengths"])


@scenario("oversampled window")
def test_oversampling_keeps_two_processes_in_step_where_two_updates_share_a_window(ranks):
    first, second = ranks
    for key in ("state", "batches", "drawn_in", "signal_record", "final_lengths", "losses", "advantages"):
        assert first[key] == second[key], key
    assert sorted(set(first["drawn_in"])) == [0, 1]  # four updates
    assert first["micro_steps_per_epoch"] == second["micro_steps_per_epoch"] == 64 // 8 * 2
    extra, _, later, _ = first["extra"]
    assert extra == 0 < later <= 4
    assert later % 2 == 0
    assert len(first["advantages"]) == 16
    has_signal = [advantage != 0 for advantage in first["advantages"]]
    expected = [length for length, signal in zip(first["final_lengths"], has_signal, strict=True) if signal]
    assert not Counter(expected) - Counter(first["own_lengths"] + second["own_lengths"])
    assert first["loss_tokens"] == sum(first["final_lengths"])


@scenario("resumed oversampling")
def test_oversampling_in_two_processes_resumes_where_it_was(ranks, seen):
    whole = [rank["scenarios"]["oversampling"] for rank in seen]
    for rank, unbroken in zip(ranks, whole, strict=True):
        for key in ("state", "prompts_drawn", "signal_record", "generated_tokens", "final_lengths", "own_lengths"):
            assert rank[key] == unbroken[key], key
        assert rank["losses"] == unbroken["losses"][2:]


@scenario("split groups")
def test_dynamic_sampling_over_processes_needs_whole_groups(ranks):
    assert all("must be a multiple of num_generations" in rank["error"] for rank in ranks)


def test_both_processes_grade_again_when_one_of_them_cuts(seen):
    """The numbers are those of one process, see cut_run: row 3 of twelve is cut from 50 to 40 tokens."""
    ranks = [rank["cuts"]["one process cuts"] for rank in seen]
    assert ranks[0]["graded"] == [cut_run.LENGTHS[:6], cut_run.KEPT[:6]]
    assert ranks[1]["graded"] == [cut_run.LENGTHS[6:], cut_run.LENGTHS[6:]]
    assert ranks[0]["tokens"] + ranks[1]["tokens"] == cut_run.KEPT
    assert ranks[0]["own_advantages"] + ranks[1]["own_advantages"] == pytest.approx(cut_run.ADVANTAGES, abs=1e-6)
    for rank in ranks:
        assert rank["task_rewards"] == cut_run.REWARDS
        assert rank["advantages"] == pytest.approx(cut_run.ADVANTAGES, abs=1e-6)
        assert rank["loss_tokens"] == sum(cut_run.KEPT)
        assert rank["log"]["leash/cut_share"] == pytest.approx(1 / 12)
        assert rank["log"]["tokens"] == pytest.approx(sum(cut_run.KEPT) / 2)  # TRL takes the mean over processes
        assert rank["table"]["kept_length"] == rank["table"]["seen"] == cut_run.KEPT
        assert rank["table"]["length"] == cut_run.LENGTHS
        assert rank["table_rewards"] == cut_run.REWARDS
    assert ranks[0]["log"] == ranks[1]["log"]


def test_a_cut_and_dynamic_sampling_keep_two_processes_in_step(seen):
    """In the first round the first process cuts, in the second round the second one."""
    ranks = [rank["cuts"]["one at a time"] for rank in seen]
    outlier, cut, quiet = [10, 10, 10, 50], [10, 10, 10, 40], [10, 12, 14, 16]
    first = [[*outlier, *outlier], [*cut, *outlier], [*quiet, *quiet], [*quiet, *quiet]]
    assert ranks[0]["graded"] == first
    assert ranks[1]["graded"] == [[*quiet, *quiet], [*quiet, *quiet], [*outlier, *quiet], [*cut, *quiet]]
    # the fresh group that was cut replaces the first dead group of the second process
    assert ranks[0]["tokens"] == [*cut, *outlier]
    assert ranks[1]["tokens"] == [*cut, *quiet]
    signal, wrong, none = [0.5, 0.5, 0.5, -1.5], [0.5, -1.5, 0.5, 0.5], [0.0] * 4
    assert ranks[0]["advantages"] == pytest.approx([*signal, *wrong, *signal, *none], abs=1e-6)
    for rank in ranks:
        assert rank["advantages"] == ranks[0]["advantages"]
        assert rank["loss_tokens"] == sum([*cut, *outlier, *cut, *quiet])
        assert rank["log"]["leash/cut_share"] == pytest.approx(2 / 32)


@pytest.mark.parametrize("case", ["dapo", "grpo", "bnpo", "rows stay", "importance ratios"])
def test_two_processes_keep_the_gradients_of_the_stock_trainer(case, gradient_runs):
    for rank in gradient_runs:
        stock, ours = rank[case, "stock"], rank[case, "ours"]
        assert stock["world_size"] == ours["world_size"] == 2
        for theirs, mine in zip(stock["gradients"], ours["gradients"], strict=True):
            assert theirs.norm() > 1e-4
            assert (mine - theirs).norm() < 1e-11 * theirs.norm()
        assert sum(ours["positions"]) < (1.0 if case in ("bnpo", "rows stay") else 0.7) * sum(stock["positions"])


@pytest.mark.parametrize("case", ["dapo", "grpo", "importance ratios"])
def test_what_two_processes_compute_at_the_same_time_is_alike(case, gradient_runs):
    passes = [rank[case, "ours"]["positions"] for rank in gradient_runs]
    assert [len(each) for each in passes] == [8, 8]  # two updates of four micro-batches
    assert sum(map(max, zip(*passes, strict=True))) < 1.25 * sum(map(sum, passes)) / 2


def test_shares_are_those_of_both_processes(gradient_runs):
    for case in ("dapo", "rows stay"):
        shares = [rank[case, "ours"]["shares"] for rank in gradient_runs]
        assert shares[0] == shares[1]
    assert gradient_runs[0]["dapo", "ours"]["shares"]["microbatch/skipped_share"] > 0


def test_importance_ratios_are_padded_with_one(gradient_runs):
    """TRL's VESPO sums their logarithms over all columns."""
    for rank in gradient_runs:
        assert rank["dapo", "ours"]["ratios"].tolist() == [[0.5, 0.5, 1.0], [0.5, 0.5, 0.5]]


def test_a_field_that_one_process_alone_has_stops_neither(gradient_runs):
    assert all(rank["dapo", "ours"]["leaves_images"] for rank in gradient_runs)
