"""Rewards with partial credit, and a function beside the rewards that decides what is correct: in ours and TRL's."""

import asyncio
from functools import partial

import pytest
from accelerate import PartialState
from conftest import log_rows, logged, parity_reward
from processes import in_two_processes
from stock_run import any_trainer, stock_trainer

from leash_trl import LengthControlledReward
from leash_trl.errors import TrainingError
from leash_trl.length_control.leash import Leash


KINDS = ["LeashGRPO", "GRPO"]
PARTIAL = 2  # update whose batch is the first with partial credit
pytestmark = pytest.mark.filterwarnings("ignore:wrong answers have:UserWarning")


def graded(completion_ids, **kwargs):
    """Wrong, half right or right, all of them in every batch."""
    return [(index % 3) / 2 for index in range(len(completion_ids))]


def graded_later(completion_ids, trainer_state, **kwargs):
    """Right or wrong at first, and also half right from one update on."""
    if trainer_state.global_step < PARTIAL:
        return [float(sum(ids) % 2) for ids in completion_ids]
    return graded(completion_ids)


def steps_with_accuracy(trainer):
    return [row["step"] for row in log_rows(trainer) if "leash/accuracy" in row]


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_first_partial_credit_on_accuracy_is_unknown_and_stays_so_when_resumed(
    kind, make_trainer, tiny_model_path, tmp_path
):
    def build(reward, max_steps):
        fields = {"max_steps": max_steps, "save_strategy": "steps", "save_steps": 1}
        return any_trainer(kind, make_trainer, tiny_model_path, tmp_path, reward, **fields)[0]

    trainer = build(graded_later, PARTIAL + 2)
    with pytest.warns(UserWarning, match="graded_later.*0.5 and 1.*correctness_func") as caught:
        trainer.train()
    messages = [str(warning.message) for warning in caught]
    assert len([message for message in messages if "correctness_func" in message]) == 1
    assert steps_with_accuracy(trainer) == [1, 2]
    assert len(logged(trainer, "leash/lambda")) == PARTIAL + 2

    def graded_later_again(completion_ids, trainer_state, **kwargs):  # nothing here shows partial credit again
        return [float(sum(ids) % 2) for ids in completion_ids]

    resumed = build(graded_later_again, PARTIAL + 3)
    with pytest.warns(UserWarning, match="graded_later_again.*0.5 and 1.*correctness_func"):
        resumed.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-{PARTIAL + 2}")
    assert resumed.state.global_step == PARTIAL + 3
    assert steps_with_accuracy(resumed) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_what_needs_to_know_ends_before_it_uses_partial_credit(kind, make_trainer, tiny_model_path, tmp_path):
    fields = {"max_steps": PARTIAL + 2, "min_accuracy": 0.5}
    trainer, _ = any_trainer(kind, make_trainer, tiny_model_path, tmp_path, graded_later, **fields)
    with pytest.raises(TrainingError) as refused:
        trainer.train()
    message = str(refused.value)
    assert "\n" not in message
    for part in ("graded_later", "0.5", "min_accuracy", "correctness_func"):
        assert part in message
    assert trainer.state.global_step == PARTIAL


def test_partial_credit_of_one_run_is_forgotten_in_the_next(tiny_model_path, tmp_path):
    gives_partial_credit = True

    def reward_func(completion_ids, **kwargs):
        return graded(completion_ids) if gives_partial_credit else parity_reward(completion_ids)

    reward = LengthControlledReward(reward_func, "leash", 6)
    first = stock_trainer("GRPO", tiny_model_path, tmp_path, reward=reward, max_steps=1)
    second = stock_trainer("GRPO", tiny_model_path, tmp_path, reward=reward, max_steps=1)
    with pytest.warns(UserWarning, match="reward_func"):
        first.train()
    gives_partial_credit = False
    second.train()
    assert steps_with_accuracy(first) == []
    assert steps_with_accuracy(second) == [1]


def half_by_rank(completion_ids, **kwargs):
    """Right answers are worth 1 in one process and 0.5 in the other, so that neither shows partial credit."""
    right = 0.5 if PartialState().process_index else 1.0
    return [right * (index % 2) for index in range(len(completion_ids))]


def apart(model_path, folder):
    """How a run of TRL's GRPO with a floor ends in this process, and the positive rewards that it knows of."""
    reward = LengthControlledReward(half_by_rank, Leash(min_accuracy=0.5), 6)
    trainer = stock_trainer("GRPO", model_path, folder, reward=reward, max_steps=2)
    with pytest.raises(TrainingError) as refused:
        trainer.train()
    return str(refused.value), reward.correctness.state_dict()


def test_processes_that_see_half_of_it_each_come_to_the_same(tiny_model_path, tmp_path):
    first, second = in_two_processes(partial(apart, tiny_model_path, tmp_path), tmp_path)
    assert first == second
    message, state = first
    assert "min_accuracy" in message
    assert state == {"positive_rewards": [0.5, 1.0]}


async def decides(completion_ids, **kwargs):
    """Half the reward by parity, and none for the first completion of eight."""
    await asyncio.sleep(0)
    _, *others = parity_reward(completion_ids)
    return [None, *(0.5 * reward for reward in others)]


@pytest.mark.filterwarnings("ignore:reward_funcs is graded:UserWarning")
def test_a_function_beside_the_rewards_decides_and_is_logged_and_has_no_weight(make_trainer, monkeypatch):
    fields = {"max_steps": 2, "reward_weights": [0.5], "lambda_init": 0.5, "log_completions": True}
    plain = make_trainer(graded, **fields)
    plain.train()
    trainer = make_trainer(graded, correctness_func=decides, **fields)
    batches = []
    observe = trainer.length_control.observe

    def spy(rollouts):
        batches.append(rollouts)
        observe(rollouts)

    monkeypatch.setattr(trainer.length_control, "observe", spy)
    trainer.train()
    assert list(trainer._logs["advantages"]) == list(plain._logs["advantages"])
    for key in ("reward", "reward_std", "frac_reward_zero_std", "leash/lambda", "rewards/graded/mean"):
        assert logged(trainer, key) == logged(plain, key)
    means = logged(trainer, "rewards/decides/mean")
    assert means == pytest.approx([batch.correctness_rewards.nanmean().item() for batch in batches])
    accuracies = [batch.correctness.nanmean().item() for batch in batches]
    assert logged(trainer, "leash/accuracy") == pytest.approx(accuracies)
    assert [batch.is_scorable.sum().item() for batch in batches] == [7, 7]  # it passes one of eight
    assert len(trainer._logs["rewards"]["decides"]) == len(trainer._logs["rewards"]["graded"]) == 8


def test_what_only_the_deciding_function_scores_is_not_trained_on(make_trainer):
    def passes(completion_ids, **kwargs):
        return [None, None, None, None, *graded(completion_ids)[4:]]

    trainer = make_trainer(passes, correctness_func=parity_reward, max_steps=1)
    trainer.train()
    assert list(trainer._logs["advantages"])[:4] == [0.0] * 4
    assert logged(trainer, "leash/task_reward") == pytest.approx(logged(trainer, "reward"))


@pytest.mark.parametrize("kind", KINDS)
def test_partial_credit_of_an_evaluation_alone_ends_nothing_and_is_not_remembered(
    kind, make_trainer, tiny_model_path, tmp_path
):
    def reward_func(completion_ids, **kwargs):
        rewards = parity_reward(completion_ids)
        if trainer.model.training:
            return rewards
        return [0.3 if reward > 0 else reward for reward in rewards]

    fields = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "min_accuracy": 0.1}
    trainer, _ = any_trainer(kind, make_trainer, tiny_model_path, tmp_path, reward_func, **fields)
    trainer.train()
    assert steps_with_accuracy(trainer) == [1, 2]
    assert trainer.state.stateful_callbacks["LengthControl"]["positive_rewards"] == [1.0, 1.0]


def without_reward(completions, **kwargs):
    return [None] * len(completions)


@pytest.mark.parametrize(
    ("named", "fields"),
    [("min_accuracy", {"min_accuracy": 0.5}), ("'drpo'", {"length_control": "drpo", "target_length": None})],
)
def test_a_batch_without_any_correctness_is_said_once_where_the_method_needs_it(named, fields, make_trainer, caplog):
    trainer = make_trainer(correctness_func=without_reward, max_steps=2, **fields)
    trainer.train()
    (line,) = [record.getMessage() for record in caplog.records if "correctness_func" in record.getMessage()]
    assert named in line
    assert "\n" not in line


def test_a_batch_without_any_reward_is_not_put_down_to_correctness_func(make_trainer, caplog):
    make_trainer(without_reward, length_control="drpo", target_length=None, max_steps=1).train()
    assert not [record for record in caplog.records if "correctness_func" in record.getMessage()]
