"""Advice on a run: what lasts is said once, with field, value and remedy, and nothing where all goes well."""

import pandas as pd
import pytest
from conftest import ROOT, log_rows, logged
from stock_run import stock_trainer

from leash_trl.length_control.laser import Laser
from leash_trl.length_control.leash import Leash, LeashC
from leash_trl.length_control.leash_predictive import LeashPredictive
from leash_trl.length_control.thinkprune import ThinkPrune
from leash_trl.trainer.advice import advice_by_name


def log(num_updates, every=1, lam=None, **values):
    """A log of these values under `leash/`, with a row for every so many updates."""
    keys = {f"leash/{name}": value for name, value in values.items()}
    if lam is not None:
        keys["leash/lambda"] = lam
    return [{"step": step, "leash/mean_length": 30.0, **keys} for step in range(every, num_updates + 1, every)]


def advice_of(rows, method=None, unit="tokens"):
    return advice_by_name(rows, method or Leash(), unit)


TURNED = log(20, length_accuracy_correlation=-0.3) + log(40, length_accuracy_correlation=0.3)[20:]
FELL = log(20, accuracy=0.8) + log(70, accuracy=0.7)[20:]

# the log at whose last update a rule speaks for the first time, and what it must name
LOGS = [
    (
        "correct_answers_clipped",
        Leash(),
        log(20, violation=20.0, lam=1.0, shaped_reward=-1.0, accuracy=0.75, zero_signal_share=0.95),
        ["shaped_reward is -1.00", "target_length"],
    ),
    ("lambda_at_max", Leash(lambda_max=0.5), log(40, violation=0.25, lam=0.5), ["lambda_max=0.5", "25%"]),
    ("lambda_at_min", Leash(), log(20, violation=-0.2, lam=0.0), ["lambda_min=0", "20%", "lambda_min -1"]),
    ("short_answers_wrong", Leash(), TURNED, ["length_accuracy_correlation is 0.30", "-0.30", "target_length"]),
    ("truncated", Leash(), log(20, truncated_share=0.25), ["0.25", "max_completion_length"]),
    ("without_signal", Leash(), log(20, zero_signal_share=0.5, accuracy=0.6), ["0.50", "dynamic_sampling_rounds"]),
    ("accuracy_fell", Leash(), FELL, ["0.700", "0.800", "target_length"]),
    ("floor_out_of_reach", Leash(min_accuracy=0.9), log(50, penalty_share=0.0, accuracy=0.7), ["0.700", "0.9"]),
]


@pytest.mark.parametrize(("rule", "method", "rows", "words"), LOGS, ids=[row[0] for row in LOGS])
def test_a_rule_speaks_when_it_has_lasted_and_not_one_update_before(rule, method, rows, words):
    advice = advice_of(rows, method)
    assert [*advice] == [rule]
    assert all(word in advice[rule] for word in words)
    assert "\n" not in advice[rule]
    assert advice_of(rows[:-1], method) == {}


def test_a_released_lambda_is_not_taken_for_one_at_its_bound():
    method = Leash(lambda_init=0.3, lambda_min=0.1, release_share=0.5)
    short = log(20, violation=-0.2, lam=0.075)
    method.begin_update(15, 20)
    assert advice_of(short, method) == {}
    method.begin_update(15, 40)  # the run is extended
    assert [*advice_of(short, method)] == ["lambda_at_min"]


def test_updates_count_and_not_rows():
    assert advice_of(log(32, every=8, violation=0.25, lam=1.0)) == {}
    assert [*advice_of(log(40, every=8, violation=0.25, lam=1.0))] == ["lambda_at_max"]


def test_one_update_off_the_bound_is_enough_to_wait():
    rows = log(40, violation=0.25, lam=1.0)
    rows[30]["leash/lambda"] = 0.99
    assert advice_of(rows) == {}


def test_a_lambda_at_its_maximum_may_work():
    """A length that falls by 1 % an update falls by 18 % in twenty."""
    rows = log(40, violation=0.25, lam=1.0)
    assert [*advice_of(rows)] == ["lambda_at_max"]
    falling = [{**row, "leash/mean_length": 60.0 * 0.99 ** row["step"]} for row in rows]
    assert advice_of(falling) == {}


def test_lengths_that_a_floor_keeps_above_the_target_are_not_those_of_lambda():
    rows = log(40, violation=0.25, penalty_share=0.5, lam=1.0)
    assert advice_of(rows, Leash(min_accuracy=0.9)) == {}


@pytest.mark.parametrize("method", [Leash(lambda_init=1.0, lambda_lr=0.0), LeashC(lambda_init=0.0)])
def test_a_constant_lambda_is_not_told_of_its_bounds(method):
    violation = 0.25 if method.lam == 1.0 else -0.25
    rows = log(40, violation=violation, lam=method.lam)
    assert advice_of(rows, method) == {}
    assert advice_of(rows, LeashPredictive()) != {}  # whose lambda moves, though its lambda_lr is 0, too


def test_the_remedy_of_a_method_that_already_lengthens_answers_is_another_target():
    rows = log(20, violation=-0.2, lam=-1.0)
    text = advice_of(rows, LeashPredictive(lambda_min=-1.0))["lambda_at_min"]
    assert "target_length" in text
    assert "leash_predictive" not in text


def test_a_method_that_cuts_answers_on_purpose_is_not_told_that_they_are_cut():
    assert advice_of(log(20, truncated_share=0.5), ThinkPrune()) == {}


@pytest.mark.parametrize(("rule", "rows"), [("short_answers_wrong", TURNED), ("accuracy_fell", FELL)])
def test_the_remedy_names_the_floor_that_the_method_has(rule, rows):
    assert "set min_accuracy" in advice_of(rows, Leash())[rule]
    assert "raise min_accuracy=0.6" in advice_of(rows, Leash(min_accuracy=0.6))[rule]
    assert "length_control leash" in advice_of(rows, Laser())[rule]  # Laser has none


def test_where_a_floor_is_out_of_reach_only_its_own_advice_names_it():
    rows = [{**row, "leash/penalty_share": 0.0, "leash/length_accuracy_correlation": 0.3} for row in FELL]
    for row in rows[:20]:
        row["leash/length_accuracy_correlation"] = -0.3
    advice = advice_of(rows, Leash(min_accuracy=0.9))
    assert [rule for rule, text in advice.items() if "min_accuracy" in text] == ["floor_out_of_reach"]


def test_groups_of_solved_problems_need_no_signal():
    assert advice_of(log(20, zero_signal_share=0.75, accuracy=0.95)) == {}


def test_groups_without_signal_are_known_by_trls_key_in_its_own_trainers():
    rows = [{**row, "frac_reward_zero_std": 0.75} for row in log(20, accuracy=0.5)]
    assert "0.75" in advice_of(rows)["without_signal"]


def test_each_budget_has_its_own_advice():
    low = {"lambda/low": 1.0, "violation/low": 0.5, "mean_length/low": 24.0}
    high = {"lambda/high": 0.2, "violation/high": 0.5, "mean_length/high": 60.0}
    rows = log(40, **low, **high, lam=0.6)
    advice = advice_of(rows, Leash(multiplier_per="effort"))
    assert [*advice] == ["lambda_at_max/low"]
    assert "low: lambda" in advice["lambda_at_max/low"]
    assert "24 tokens" in advice["lambda_at_max/low"]


def test_lengths_have_the_unit_of_what_is_limited():
    rows = log(40, violation=0.25, lam=1.0)
    assert "30 tool calls" in advice_of(rows, unit="tool calls")["lambda_at_max"]


def advice_at_any_time(table, method):
    """What a run was told in all: its first updates by rule. `table` has the columns of its log."""
    columns = {name: f"leash/{name}" for name in table if name != "step"}
    rows = table.dropna(axis="columns", how="all").rename(columns=columns).to_dict("records")
    first_updates = {}
    for end in range(1, len(rows) + 1):
        for rule in advice_of(rows[:end], method):
            first_updates.setdefault(rule, rows[end - 1]["step"])
    return first_updates


GYM_RUNS = [  # of 64 and, with the floor, 32 completions an update; else as in recipes/gym/settled.yaml
    ("leash 16", Leash()),
    ("leash_predictive 24", LeashPredictive()),
    ("leash_predictive 36 both sides", LeashPredictive(lambda_min=-1.0)),
    ("leash_predictive 14 floor 0.9", LeashPredictive(min_accuracy=0.9)),
]


@pytest.mark.parametrize(("run", "method"), GYM_RUNS, ids=[run for run, _ in GYM_RUNS])
def test_runs_of_the_gym_that_go_well_are_told_nothing(run, method):
    logs = pd.read_csv(ROOT / "tests" / "fixtures" / "gym_logs.csv")
    assert advice_at_any_time(logs[logs["run"] == run].drop(columns="run"), method) == {}


def test_of_the_runs_of_smollm2_the_one_that_stayed_short_is_told_the_remedy_that_helped_it():
    """predictive-40-320 fell below its target of 40; with lambda_min -1 its length and accuracy came back."""
    curves = pd.read_csv(ROOT / "recipes" / "smollm2_135m" / "curves.csv")
    told = {}
    for run, table in curves.groupby("run"):
        # Of checks the table lacks the tokens, of floors the floor, and of a release lambda; SmartThinker has none.
        if run.startswith(("checking-", "floor-", "release-", "smart_thinker-")):
            continue
        table = table[["step", "mean_length", "accuracy", "lambda"]]
        target = next((length for length in (55, 60) if f"-{length}-" in run), 40)
        method = LeashPredictive(lambda_min=-1.0) if "both_sides" in run else LeashPredictive()
        told[run] = advice_at_any_time(table.assign(violation=table["mean_length"] / target - 1), method)
    assert {run: advice for run, advice in told.items() if advice} == {"predictive-40-320": {"lambda_at_min": 66}}


def texts(warned):
    return [str(warning.message) for warning in warned]


@pytest.mark.parametrize("kind", ["LeashGRPO", "GRPO"])
def test_a_run_is_told_once_and_again_at_its_end(kind, make_trainer, tiny_model_path, tmp_path):
    """A resumed run neither repeats nor forgets; trackers get the update as a number."""
    fields = {"max_steps": 42, "save_strategy": "steps", "save_steps": 41, "learning_rate": 0.0}

    def run():
        if kind == "GRPO":
            return stock_trainer(kind, tiny_model_path, tmp_path, Leash(lambda_init=1.0), **fields)
        return make_trainer(output_dir=tmp_path, target_length=6, lambda_init=1.0, **fields)

    whole = run()
    with pytest.warns(UserWarning, match="lambda_max") as warned:
        whole.train()
    lines = [line for line in texts(warned) if "lambda_max" in line]
    assert [line.startswith("update 40: ") for line in lines] == [True, False]
    advice = whole.state.stateful_callbacks["Advice"]
    (of_lambda,) = [piece for piece in advice if piece["name"] == "lambda_at_max"]
    assert of_lambda["step"] == 40
    assert all(line.endswith(of_lambda["text"]) for line in lines)
    assert [row["step"] for row in log_rows(whole, "leash/advice/lambda_at_max")] == [41, 42]
    assert logged(whole, "leash/advice/lambda_at_max") == [40.0, 40.0]

    resumed = run()
    with pytest.warns(UserWarning, match="lambda_max") as warned:
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-41"))
    assert len([line for line in texts(warned) if "lambda_max" in line]) == 1
    assert resumed.state.stateful_callbacks["Advice"] == advice
    assert logged(resumed, "leash/advice/lambda_at_max") == [40.0, 40.0]
