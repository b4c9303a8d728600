"""Two processes: the same lambda on both, the same as one process gets from the same lengths, TRL's gradients."""

from collections import Counter
from functools import partial

import gradient_run
import pytest
import scripted_run
from processes import in_two_processes


def train_all(model_path, folder):
    """One launch for all, for starting takes longest; the gradients leave float64 behind, and so come last."""
    seen = {name: scripted_run.run(name, model_path, folder) for name in scripted_run.SCENARIOS}
    seen["gradients"] = gradient_run.run_all(model_path, str(folder))
    return seen


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, tiny_model_path):
    """What each of two processes saw, by scenario."""
    folder = tmp_path_factory.mktemp("two-processes")
    return in_two_processes(partial(train_all, tiny_model_path, folder), folder)


@pytest.mark.parametrize("scenario", scripted_run.SCENARIOS)
def test_both_processes_come_to_the_same(ranks, scenario):
    first, second = (dict(rank[scenario]) for rank in ranks)
    assert first.pop("rank") == (0, 2)
    assert second.pop("rank") == (1, 2)
    trained = first.pop("trained")
    trained_by_second = second.pop("trained")
    assert first == second
    # together they train on what has a signal, and on one completion more a micro-batch where both need as many
    rows = zip(first["lengths"], first["advantages"], strict=True)
    lengths_with_signal = Counter(length for length, advantage in rows if advantage != 0)
    assert not lengths_with_signal - Counter(trained + trained_by_second)
    assert len(trained) == len(trained_by_second)
    assert 2 * len(trained) - lengths_with_signal.total() <= 2


@pytest.mark.parametrize("scenario", ["plain", "budgets", "thinking"])
def test_two_processes_move_lambda_like_one(ranks, tiny_model_path, tmp_path, scenario):
    alone = scripted_run.run(scenario, tiny_model_path, tmp_path, per_device_train_batch_size=12)
    both = ranks[0][scenario]
    assert alone["rank"] == (0, 1)
    for row, row_of_both in zip(alone["log"], both["log"], strict=True):
        for key in row.keys() | row_of_both.keys():
            # losses and gradients are of other micro-batches
            assert key in ("loss", "grad_norm") or row[key] == row_of_both[key]
    for key in ("state", "lengths", "loss_tokens", "table of lengths"):
        assert alone[key] == both[key]
    for key in ("advantages", "table of advantages"):
        assert alone[key] == pytest.approx(both[key], abs=1e-12)
    assert max(alone["advantages"]) > 0.5
    assert len({row["leash/lambda"] for row in alone["log"]}) == 4
    lambdas = [multiplier["lam"] for multiplier in alone["state"]["state"]["multipliers"].values()]
    assert len({*lambdas}) == len(lambdas) > (scenario == "budgets")


@pytest.mark.parametrize("scenario", ["dynamic sampling", "window of dynamic sampling"])
def test_refilling_keeps_two_processes_in_step(ranks, scenario):
    seen = ranks[0][scenario]
    assert any(row.get("leash/wasted_share", 0) > 0 for row in seen["log"])
    assert seen["state"]["prompts_drawn"] > 0
    assert len(seen["advantages"]) == 16
    assert seen["loss_tokens"] == sum(seen["lengths"])


def test_two_processes_resume_where_they_were(ranks):
    """In a second epoch, in its order, from weights whose gradients are the same to the last bit."""
    for rank in ranks:
        assert [row["step"] for row in rank["dynamic sampling"]["log"]] == [1, 2, 3, 4]
        assert rank["resumed dynamic sampling"] == rank["dynamic sampling"]


@pytest.mark.parametrize("case", gradient_run.CASES)
def test_two_processes_keep_the_gradients_of_the_stock_trainer(ranks, case):
    runs = [rank["gradients"][case] for rank in ranks]
    shares = runs[0][1]["shares"]
    for stock, ours in runs:
        for theirs, mine in zip(stock["gradients"], ours["gradients"], strict=True):
            assert theirs.norm() > 1e-4
            assert (mine - theirs).norm() < 1e-11 * theirs.norm()
        assert sum(ours["positions"]) < (1.0 if case == "bnpo" else 0.7) * sum(stock["positions"])
        assert ours["shares"] == shares
        assert ours["leaves_images"]
    assert shares["microbatch/skipped_share"] > 0 or case in ("bnpo", "importance ratios")


@pytest.mark.parametrize("case", sorted(gradient_run.CASES.keys() - {"bnpo"}))
def test_what_two_processes_compute_at_the_same_time_is_alike(ranks, case):
    """Two updates of four batches."""
    first, second = (rank["gradients"][case][1]["positions"] for rank in ranks)
    assert len(first) == len(second) == 8
    mean_total = (sum(first) + sum(second)) / 2
    assert sum(map(max, first, second)) < 1.25 * mean_total
