"""Two processes: the same lambda on both, the same as one process gets from the same lengths, TRL's gradients."""

from collections import Counter
from functools import partial
from pathlib import Path

import cut_run
import gradient_run
import pytest
import scripted_run
from processes import in_two_processes


REFILLING = ["dynamic sampling", "oversampling", "oversampled window"]


def train_all(model_path: str, folder: Path) -> dict:
    """One launch for all, for starting takes longest; the gradients leave float64 behind, and so come last."""
    return {
        **{name: scripted_run.run(name, model_path, folder) for name in scripted_run.SCENARIOS},
        "cuts": cut_run.run(model_path, folder),
        "gradients": gradient_run.run_all(model_path, str(folder)),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, tiny_model_path) -> list[dict]:
    """What each of two processes saw, by scenario."""
    folder = tmp_path_factory.mktemp("two-processes")
    return in_two_processes(partial(train_all, tiny_model_path, folder), folder)


@pytest.mark.parametrize("scenario", scripted_run.SCENARIOS)
def test_both_processes_come_to_the_same(ranks, scenario):
    first, second = (dict(rank[scenario]) for rank in ranks)
    assert (first.pop("rank"), second.pop("rank")) == ((0, 2), (1, 2))
    trained = [rank.pop("trained") for rank in (first, second)]
    assert first == second
    # together they train on what has a signal, and on one completion more a micro-batch where both need as many
    signal = Counter(n for n, a in zip(first["lengths"], first["advantages"], strict=True) if a != 0)
    assert not signal - Counter([*trained[0], *trained[1]])
    assert len(trained[0]) == len(trained[1])
    assert sum(map(len, trained)) - signal.total() <= 2


@pytest.mark.parametrize("scenario", ["plain", "budgets"])
def test_two_processes_move_lambda_like_one(ranks, tiny_model_path, tmp_path, scenario):
    alone, both = scripted_run.run(scenario, tiny_model_path, tmp_path, per_device_train_batch_size=12), ranks[0]
    assert alone["rank"] == (0, 1)
    assert alone["state"] == both[scenario]["state"]
    for one, two in zip(alone["log"], both[scenario]["log"], strict=True):
        del one["loss"], two["loss"]  # of other micro-batches
        assert one == two
    assert alone["advantages"] == pytest.approx(both[scenario]["advantages"], abs=1e-12)
    assert alone["table"][0] == pytest.approx(both[scenario]["table"][0], abs=1e-12)
    assert alone["table"][1] == both[scenario]["table"][1]
    assert len({row["leash/lambda"] for row in alone["log"]}) == 4
    assert max(alone["advantages"]) > 0.5
    lambdas = [*alone["state"]["state"]["lambdas"].values()]
    assert len({*lambdas}) == len(lambdas) > (scenario == "budgets")


@pytest.mark.parametrize("scenario", REFILLING)
def test_refilling_keeps_two_processes_in_step(ranks, scenario):
    seen = ranks[0][scenario]
    extra = [row["leash/extra_groups"] for row in seen["log"] if "leash/extra_groups" in row]
    assert extra[0] == 0  # nothing is known before the first batch
    assert (max(extra) > 0) == (scenario != "dynamic sampling")
    assert all(groups in (0, 2, 4) for groups in extra)  # as many on both, at most half of eight
    assert any(row.get("leash/wasted_share", 0) > 0 for row in seen["log"])
    assert seen["state"]["prompts_drawn"]["batches"] == (2 if scenario == "oversampled window" else 4)
    assert len(seen["advantages"]) == 16
    assert seen["loss_tokens"] == sum(seen["lengths"])


def test_two_processes_resume_where_they_were(ranks):
    """In a second epoch, in its order."""
    for rank in ranks:
        assert rank["resumed oversampling"] == rank["oversampling"]


def test_both_processes_grade_again_when_one_of_them_cuts(ranks):
    """In the first round the first process cuts, in the second round the second one; T = 40, see cut_run."""
    first, second = (rank["cuts"] for rank in ranks)
    outlier, cut, quiet = [10, 10, 10, 50], [10, 10, 10, 40], [10, 12, 14, 16]
    assert first["graded"] == [[*outlier, *outlier], [*cut, *outlier], [*quiet, *quiet], [*quiet, *quiet]]
    assert second["graded"] == [[*quiet, *quiet], [*quiet, *quiet], [*outlier, *quiet], [*cut, *quiet]]
    # the fresh group that was cut replaces the first dead group of the second process
    assert first["tokens"] == [*cut, *outlier]
    assert second["tokens"] == [*cut, *quiet]
    advantages = [*(0.5, 0.5, 0.5, -1.5), *(0.5, -1.5, 0.5, 0.5), *(0.5, 0.5, 0.5, -1.5), *(0.0, 0.0, 0.0, 0.0)]
    assert first["own_advantages"] + second["own_advantages"] == pytest.approx(advantages, abs=1e-6)
    assert first["log"] == second["log"]
    for rank in (first, second):
        assert rank["advantages"] == pytest.approx(advantages, abs=1e-6)
        assert rank["loss_tokens"] == sum([*cut, *outlier, *cut, *quiet])
        assert rank["log"]["leash/cut_share"] == pytest.approx(2 / 32)


@pytest.mark.parametrize("case", gradient_run.CASES)
def test_two_processes_keep_the_gradients_of_the_stock_trainer(ranks, case):
    runs = [rank["gradients"][case] for rank in ranks]
    for stock, ours in runs:
        for theirs, mine in zip(stock["gradients"], ours["gradients"], strict=True):
            assert theirs.norm() > 1e-4
            assert (mine - theirs).norm() < 1e-11 * theirs.norm()
        assert sum(ours["positions"]) < (1.0 if case in ("bnpo", "rows stay") else 0.7) * sum(stock["positions"])
        assert ours["shares"] == runs[0][1]["shares"]
        assert ours["leaves_images"]
    assert runs[0][1]["shares"]["microbatch/skipped_share"] > 0 or case in ("bnpo", "importance ratios")
    if case not in ("bnpo", "rows stay"):  # what both compute at the same time is alike: two updates of four batches
        passes = [ours["positions"] for _, ours in runs]
        assert [len(each) for each in passes] == [8, 8]
        assert sum(map(max, zip(*passes, strict=True))) < 1.25 * sum(map(sum, passes)) / 2
