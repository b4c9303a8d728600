"""Lambda holds whatever a user wants held: tool calls, turns, checks, or what a function counts."""

from statistics import fmean

import pytest
from conftest import logged, parity_reward, quiet
from gradient_run import scripted_rollout
from stock_run import LAMBDA_INIT, LAMBDA_LR, lambda_after, stock_trainer
from tool_run import add, always_right, byte_tokenizer, conversations, tiny_model, with_script
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer, LengthControlCallback, LengthControlledReward
from leash_trl.completions.costs import Cost
from leash_trl.errors import TrainingError
from leash_trl.length_control.leash import Leash


CALLS_BY_UPDATE = [[2, 2, 2, 2], [2, 1, 2, 0], [1, 1, 1, 1]]  # of the completions of a prompt


def num_digits(completions, **columns):
    return [sum(map(str.isdigit, messages[0]["content"])) for messages in completions]


def tenths_of_digits(completions, **columns):
    return [num_tenths / 10 for num_tenths in num_digits(completions)]


def logging_digits(completions, log_metric, trainer_state, **columns):
    log_metric("step_seen", trainer_state.global_step)
    return num_digits(completions)


def lambdas_by_hand(costs_by_update: list[list[float]], target: float) -> list[float]:
    """Lambda after each update."""
    lam = LAMBDA_INIT
    lambdas = []
    for costs in costs_by_update:
        lam = lambda_after(lam, costs, target)
        lambdas.append(lam)
    return lambdas


def tool_run(kind, folder, length_of, target=1):
    """A run of ours or of TRL's whose completions call a tool, with a checkpoint after each update, and its method."""
    settings = {"max_completion_length": 400, "save_strategy": "steps", "save_steps": 1}
    fields = quiet(folder, lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR, **settings)
    common = {"train_dataset": conversations(), "processing_class": byte_tokenizer(), "tools": [add]}
    if kind == "LeashGRPO":
        args = LeashGRPOConfig(**{**fields, "length_of": length_of, "target_length": target})
        trainer = with_script(LeashGRPOTrainer, CALLS_BY_UPDATE)(tiny_model(), always_right, args, **common)
        return trainer, trainer.length_control
    method = Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR)
    reward = LengthControlledReward(always_right, method, target, length_of=length_of)
    args = GRPOConfig(**{name: value for name, value in fields.items() if name in GRPOConfig.__dataclass_fields__})
    callbacks = [LengthControlCallback(reward)]
    trainer = with_script(GRPOTrainer, CALLS_BY_UPDATE)(tiny_model(), reward, args, callbacks=callbacks, **common)
    return trainer, method


@pytest.mark.parametrize("kind", ["LeashGRPO", "GRPO"])
@pytest.mark.parametrize(
    ("length_of", "target"),
    [
        ("tool_calls", 1),
        ("turns", 1.5),
    ],
)
def test_lambda_by_tool_calls_and_turns(kind, length_of, target, tmp_path):
    trainer, method = tool_run(kind, tmp_path, length_of, target)
    trainer.train()
    costs_by_update = CALLS_BY_UPDATE
    if length_of == "turns":  # who calls a tool has a second turn
        costs_by_update = [[2 if calls else 1 for calls in update] for update in CALLS_BY_UPDATE]
    lambdas = lambdas_by_hand(costs_by_update, target)
    used = [LAMBDA_INIT, *lambdas[:-1]]
    assert logged(trainer, "leash/lambda") == pytest.approx(used, rel=1e-6)
    assert logged(trainer, "leash/mean_length") == [fmean(costs) for costs in costs_by_update]
    assert method.lam == pytest.approx(lambdas[-1], abs=1e-12)


def test_tokens_stay_logged_where_tool_calls_are_controlled(tmp_path):
    trainer, _ = tool_run("LeashGRPO", tmp_path, "tool_calls")
    trainer.train()
    one_call = [len(byte_tokenizer().encode(text)) for text in trainer.scripts[0]]
    last = trainer.state.log_history[2]
    assert last["leash/mean_completion_length"] == sum(one_call)  # without the tool's output
    assert last["leash/mean_length"] == 1


@pytest.mark.parametrize(
    ("length_of", "costs"),
    [
        ("checking", [1, 0]),  # the end token after the right answer; no right answer
        (num_digits, [1, 2]),
        (tenths_of_digits, [0.1, 0.2]),
    ],
)
def test_lambda_by_checks_and_by_a_function(length_of, costs, make_trainer, tokenizer, problems):
    texts = ["3", "12"]

    def ids_of(trainer, index, code):
        return [*tokenizer.encode(texts[index % 2]), tokenizer.eos_token_id]

    trainer = make_trainer(
        dataset=problems.map(lambda row: {"solution": "3"}),
        rollout_func=scripted_rollout(tokenizer, ids_of),
        length_of=length_of,
        target_length=0.4,
        lambda_lr=LAMBDA_LR,
    )
    trainer.train()
    assert logged(trainer, "leash/mean_length") == pytest.approx([fmean(costs)] * 3)
    lambdas = lambdas_by_hand([costs] * 3, target=0.4)
    assert trainer.length_control.lam == pytest.approx(lambdas[-1], abs=1e-12)


def test_golds_that_cannot_be_looked_for_and_tools_are_refused_before_training(make_trainer, problems, tmp_path):
    with pytest.raises(ValueError, match="length_of is 'checking'") as caught:
        make_trainer(dataset=problems.map(lambda row: {"solution": "x^2"}), length_of="checking")
    assert "'x^2'" in str(caught.value)
    with pytest.raises(ValueError, match="length_of is 'checking'"):
        tool_run("LeashGRPO", tmp_path, "checking")


def test_a_cost_may_log_as_reward_functions_do(make_trainer):
    trainer = make_trainer(length_of=logging_digits, target_length=2, max_steps=2)
    trainer.train()
    assert logged(trainer, "step_seen") == [0, 1]


def test_a_checkpoint_of_the_same_function_from_another_folder_is_no_other_cost():
    reward = LengthControlledReward(parity_reward, "leash", 6)
    reward.cost = Cost("my_costs.py:lines")
    callback = LengthControlCallback(reward)
    entry = {"method": "leash", "state": reward.method.state_dict(), "version": 3}
    callback.restore({**entry, "length_of": "recipes/my_costs.py:lines"})
    assert callback.version == 3
    with pytest.raises(TrainingError, match=r"length_of is .*words"):
        callback.restore({**entry, "length_of": "my_costs.py:words"})


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
