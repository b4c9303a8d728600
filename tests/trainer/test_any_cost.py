"""Lambda holds whatever a user wants held: tool calls, turns, checks, or what a function counts."""

from statistics import fmean
from unittest.mock import Mock

import pytest
from conftest import eos_bias, logged, parity_reward, quiet
from stock_run import stock_trainer
from tool_run import add, always_right, byte_tokenizer, conversations, tiny_model, with_script
from transformers import TrainerState
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer, LengthControlCallback, LengthControlledReward
from leash_trl.errors import TrainingError
from leash_trl.length_control.leash import Leash
from leash_trl.run_folder import STATE_ENTRY
from leash_trl.trainer.callbacks import DualStepCallback, LeashProgressCallback


LAMBDA_INIT = 0.1
LAMBDA_LR = 0.05
CALLS_BY_UPDATE = [[2, 2, 2, 2], [2, 1, 2, 0], [1, 1, 1, 1]]  # of the completions of a prompt


def num_digits(completions, **columns):
    return [sum(map(str.isdigit, messages[0]["content"])) for messages in completions]


def tenths_of_digits(completions, **columns):
    return [num_tenths / 10 for num_tenths in num_digits(completions)]


def logging_digits(completions, log_metric, trainer_state, **columns):
    log_metric("step_seen", trainer_state.global_step)
    return num_digits(completions)


def lambdas_by_hand(costs_by_update: list[list[float]], target: float) -> list[float]:
    """Algorithm 1, for costs that stay within lambda's bounds [0, 1]."""
    lam = LAMBDA_INIT
    lambdas = []
    for costs in costs_by_update:
        lam = min(max(lam + LAMBDA_LR * fmean(cost / target - 1 for cost in costs), 0.0), 1.0)
        lambdas.append(lam)
    return lambdas


def our_tool_run(folder, **settings) -> LeashGRPOTrainer:
    args = LeashGRPOConfig(
        **quiet(folder, lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR, max_completion_length=400, **settings)
    )
    trainer_class = with_script(LeashGRPOTrainer, CALLS_BY_UPDATE)
    trainer = trainer_class(
        tiny_model(),
        always_right,
        args,
        train_dataset=conversations(),
        processing_class=byte_tokenizer(),
        tools=[add],
    )
    return trainer


@pytest.mark.parametrize(("length_of", "target"), [("tool_calls", 1), ("turns", 1.5)])
def test_lambda_by_tool_calls_and_turns(length_of, target, tmp_path):
    trainer = our_tool_run(tmp_path, length_of=length_of, target_length=target)
    trainer.train()
    costs_by_update = CALLS_BY_UPDATE
    if length_of == "turns":  # who calls a tool has a second turn
        costs_by_update = [[2 if calls else 1 for calls in update] for update in CALLS_BY_UPDATE]
    logged = [entry for entry in trainer.state.log_history if "leash/lambda" in entry]
    used = [LAMBDA_INIT, *lambdas_by_hand(costs_by_update, target)[:-1]]
    assert [entry["leash/lambda"] for entry in logged] == pytest.approx(used, abs=1e-12)
    assert [entry["leash/mean_length"] for entry in logged] == [fmean(costs) for costs in costs_by_update]
    assert trainer.length_control.lam == pytest.approx(lambdas_by_hand(costs_by_update, target)[-1], abs=1e-12)


def test_tokens_stay_logged_where_tool_calls_are_controlled(tmp_path):
    trainer = our_tool_run(tmp_path, length_of="tool_calls", target_length=1)
    trainer.train()
    one_call = [len(byte_tokenizer().encode(text)) for text in trainer.scripts[0]]
    last = trainer.state.log_history[2]
    assert last["leash/mean_completion_length"] == sum(one_call)  # without the tool's output
    assert last["leash/mean_length"] == 1


@pytest.mark.parametrize("length_of", ["tool_calls", "turns"])
def test_lambda_by_tool_calls_in_a_stock_trainer(length_of, tmp_path):
    reward = LengthControlledReward(
        always_right, Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR), target_length=1, length_of=length_of
    )
    fields = quiet(tmp_path, max_completion_length=400)
    args = GRPOConfig(**{name: value for name, value in fields.items() if name in GRPOConfig.__dataclass_fields__})
    trainer = with_script(GRPOTrainer, CALLS_BY_UPDATE)(
        tiny_model(),
        reward,
        args,
        train_dataset=conversations(),
        processing_class=byte_tokenizer(),
        tools=[add],
        callbacks=[LengthControlCallback(reward)],
    )
    trainer.train()
    costs_by_update = CALLS_BY_UPDATE
    if length_of == "turns":
        costs_by_update = [[2 if calls else 1 for calls in update] for update in CALLS_BY_UPDATE]
    assert reward.method.lam == pytest.approx(lambdas_by_hand(costs_by_update, 1)[-1], abs=1e-12)


def threes(problems):
    """Problems whose right answer, 3, a random model often writes."""
    return problems.map(lambda row: {"solution": "3"})


class Recorder:
    """A reward function that keeps the completions of training."""

    __name__ = "recorder"

    def __init__(self):
        self.texts = []
        self.token_ids = []

    def __call__(self, completions, completion_ids, **columns):
        self.texts.append([messages[0]["content"] for messages in completions])
        self.token_ids.append([list(ids) for ids in completion_ids])
        return [1.0 if len(ids) % 2 else -1.0 for ids in completion_ids]


def tokens_after_three(token_ids, tokenizer) -> int:
    """Character by character: what follows the first token with which the text holds 3 as a number of its own."""
    texts = [tokenizer.decode([index]) for index in token_ids]
    whole = f"  {''.join(texts)}  "
    size = 2
    for position, text in enumerate(texts):
        for start in range(size, size + len(text)):
            before_it, before, character, after, after_it = whole[start - 2 : start + 3]
            is_negative = before == "-" and not before_it.isalnum() and before_it != ")"
            is_inside = before.isalnum() or before == "." or after.isalnum() or (after in ".," and after_it.isdigit())
            if character == "3" and not is_negative and not is_inside:
                return len(token_ids) - position - 1
        size += len(text)
    return 0


def run_of(trainer_name, length_of, folder, make_trainer, model_path, tokenizer, dataset, recorder, **settings):
    """A trained run of ours or of TRL's, and its method."""
    if trainer_name == "LeashGRPO":
        trainer = make_trainer(
            recorder, dataset=dataset, length_of=length_of, lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR, **settings
        )
        method = trainer.length_control
    else:
        method = Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR)
        reward = LengthControlledReward(recorder, method, settings["target_length"], length_of=length_of)
        fields = quiet(folder, generation_kwargs=eos_bias(tokenizer), **settings)
        known = {name: value for name, value in fields.items() if name in GRPOConfig.__dataclass_fields__}
        trainer = GRPOTrainer(
            model_path, reward, GRPOConfig(**known), train_dataset=dataset, callbacks=[LengthControlCallback(reward)]
        )
    return trainer, method


@pytest.mark.parametrize("trainer_name", ["LeashGRPO", "GRPO"])
@pytest.mark.parametrize(("length_of", "target"), [("checking", 2), (num_digits, 2), (tenths_of_digits, 0.2)])
def test_lambda_by_checks_and_by_a_function(
    trainer_name, length_of, target, tmp_path, make_trainer, tiny_model_path, tokenizer, problems
):
    recorder = Recorder()
    trainer, method = run_of(
        trainer_name,
        length_of,
        tmp_path,
        make_trainer,
        tiny_model_path,
        tokenizer,
        threes(problems),
        recorder,
        target_length=target,
        max_completion_length=24,
    )
    trainer.train()
    if length_of == "checking":
        costs_by_update = [[tokens_after_three(ids, tokenizer) for ids in batch] for batch in recorder.token_ids]
    else:
        digits_by_update = [[sum(map(str.isdigit, text)) for text in batch] for batch in recorder.texts]
        costs_by_update = [[number * target / 2 for number in digits] for digits in digits_by_update]
    assert sum(map(sum, costs_by_update)) > 0
    assert method.lam == pytest.approx(lambdas_by_hand(costs_by_update, target)[-1], abs=1e-12)


def test_a_run_by_a_function_resumes_where_it_was_stopped(tmp_path, make_trainer, problems):
    settings = {
        "length_of": num_digits,
        "target_length": 2,
        "save_strategy": "steps",
        "save_steps": 1,
        "lambda_lr": LAMBDA_LR,
    }
    whole = make_trainer(output_dir=tmp_path / "whole", **settings)
    whole.train()
    stopped = make_trainer(output_dir=tmp_path / "stopped", max_steps=1, **settings)
    stopped.train()
    resumed = make_trainer(output_dir=tmp_path / "stopped", **settings)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.length_control.lam == whole.length_control.lam
    assert whole.length_control.lam != 0.1


def test_a_tool_run_in_evaluation_moves_no_lambda(tmp_path):
    trainer = our_tool_run(tmp_path, length_of="tool_calls", target_length=1)
    lam = trainer.length_control.lam
    metrics = trainer.evaluate(conversations().select(range(4)))
    assert metrics["eval_leash/mean_length"] == 2
    assert trainer.length_control.lam == lam


@pytest.mark.parametrize(
    ("length_control", "length_of"),
    [("thinkprune", "checking"), ("thinkprune", "tool_calls"), ("l1_exact", "tool_calls")],
)
def test_methods_that_write_or_cut_tokens_do_not_control_other_costs(length_control, length_of, make_args):
    with pytest.raises(ValueError, match="length_of is") as caught:
        make_args(length_control=length_control, length_of=length_of, lambda_lr=None)
    assert "\n" not in str(caught.value)
    assert repr(length_of) in str(caught.value)


def test_checks_cannot_be_told_from_the_output_of_tools(tmp_path):
    with pytest.raises(ValueError, match="length_of is 'checking'"):
        our_tool_run(tmp_path, length_of="checking", target_length=10)


def test_golds_that_cannot_be_looked_for_are_refused_before_training(make_trainer, problems):
    with pytest.raises(ValueError, match="length_of is 'checking'") as caught:
        make_trainer(dataset=problems.map(lambda row: {"solution": "x^2"}), length_of="checking")
    assert "'x^2'" in str(caught.value)


def test_a_cost_may_log_as_reward_functions_do(make_trainer):
    trainer = make_trainer(length_of=logging_digits, target_length=2, max_steps=2)
    trainer.train()
    assert logged(trainer, "step_seen") == [0, 1]


def test_the_bar_shows_tool_calls_under_their_name():
    bar = LeashProgressCallback()
    bar.training_bar = Mock()
    entry = {"length_of": "tool_calls"}
    state = TrainerState(stateful_callbacks={STATE_ENTRY: entry}, is_world_process_zero=True)
    bar.on_log(None, state, None, logs={"leash/mean_length": 1.5})
    bar.training_bar.set_postfix.assert_called_once_with({"tool_calls": "1.5"})


def test_a_checkpoint_of_the_same_function_from_another_folder_is_no_other_cost():
    method = Leash()
    entry = {"method": "leash", "length_of": "recipes/my_costs.py:lines", "state": method.state_dict(), "version": 3}
    callback = DualStepCallback(method, "my_costs.py:lines")
    callback.restore(entry)
    assert callback.version == 3
    with pytest.raises(TrainingError, match=r"length_of is .*lines"):
        DualStepCallback(method, "my_costs.py:words").restore(entry)


@pytest.mark.parametrize("kind", ["RLOO", "GMPO", "SDPO", "OnlineDPO"])
@pytest.mark.parametrize("length_of", ["checking", num_digits])
def test_stock_trainers_have_costs_that_need_no_tools(kind, length_of, tiny_model_path, tmp_path):
    method = Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR)
    reward = LengthControlledReward(parity_reward, method, target_length=2, length_of=length_of)
    trainer = stock_trainer(kind, tiny_model_path, tmp_path, reward=reward, max_steps=2)
    trainer.train()
    violations = logged(trainer, "leash/violation")
    lam = LAMBDA_INIT + LAMBDA_LR * sum(violations)
    assert method.lam == pytest.approx(min(max(lam, 0), 1), abs=1e-6)
    assert logged(trainer, "leash/mean_completion_length") != logged(trainer, "leash/mean_length")
