"""Runs of TRL's own trainers with length control."""

import functools
from statistics import fmean
from types import SimpleNamespace

from conftest import eos_bias, gym_tokenizer, parity_reward, quiet
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.a2po import A2POConfig, A2POTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from leash_trl import LengthControlCallback, LengthControlledReward
from leash_trl.gym.dataset import gym_problems
from leash_trl.length_control.leash import Leash


TARGET = 6
LAMBDA_INIT = 0.1
LAMBDA_LR = 0.05
TAKEN = SimpleNamespace(step_was_skipped=False, scaler=None)  # an optimizer that has taken its step
TRAINERS = {
    "GRPO": (GRPOTrainer, GRPOConfig),
    "RLOO": (RLOOTrainer, RLOOConfig),
    "GMPO": (GMPOTrainer, GMPOConfig),
    "SDPO": (SDPOTrainer, SDPOConfig),
    "OnlineDPO": (OnlineDPOTrainer, OnlineDPOConfig),
    "A2PO": (A2POTrainer, A2POConfig),
}


def lambda_after(lam, lengths, target=TARGET, lambda_lr=LAMBDA_LR):
    """Lambda after a dual step by completions of these lengths: Algorithm 1 of the paper, in plain numbers."""
    violation = fmean(length / target - 1 for length in lengths)
    return min(1.0, max(0.0, lam + lambda_lr * violation))


def lambda_in(entry):
    """Lambda of a state that was saved."""
    (multiplier,) = entry["state"]["multipliers"].values()
    return multiplier["lam"]


def stock_trainer(
    kind,
    model_path,
    folder,
    method=None,
    callbacks=(),
    reward_func=parity_reward,
    beside=(),
    reward=None,
    **settings,
):
    """A small, quiet trainer of TRL's own with length control, LEASH by default; `beside` are other functions."""
    trainer_class, config_class = TRAINERS[kind]
    method = method or Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR)
    reward = reward or LengthControlledReward(reward_func, method, target_length=TARGET)
    fields = {"max_completion_length": 2 * TARGET, "max_steps": 5, **settings}
    fields = quiet(folder, **fields)
    fields["max_new_tokens"] = 2 * TARGET  # what OnlineDPO calls the limit
    fields["generation_kwargs"] = eos_bias(gym_tokenizer())
    known_fields = {name: value for name, value in fields.items() if name in config_class.__dataclass_fields__}
    return trainer_class(
        model_path,
        reward_funcs=[reward, *beside],
        args=config_class(**known_fields),
        callbacks=[LengthControlCallback(reward), *callbacks],
        processing_class=gym_tokenizer(),
        **data_sets(),
    )


@functools.cache
def data_sets():
    """Problems for training and for evaluation, which their column `split` tells apart."""
    problems = gym_problems("train", 64)
    return {
        "train_dataset": problems.map(lambda row: {"split": "train"}),
        "eval_dataset": problems.select(range(8)).map(lambda row: {"split": "eval"}),
    }


def any_trainer(kind, make_trainer, model_path, folder, reward, min_accuracy=None, **settings):
    """The same run of a stock trainer or, as `LeashGRPO`, of ours; and its method."""
    if kind != "LeashGRPO":
        settings.setdefault("method", Leash(LAMBDA_INIT, LAMBDA_LR, min_accuracy=min_accuracy))
        trainer = stock_trainer(kind, model_path, folder, reward_func=reward, **settings)
        return trainer, trainer.reward_funcs[0].method
    trainer = make_trainer(
        reward,
        eval_dataset=gym_problems("train", 8),
        target_length=TARGET,
        max_completion_length=2 * TARGET,
        lambda_lr=LAMBDA_LR,
        min_accuracy=min_accuracy,
        **settings,
    )
    return trainer, trainer.length_control
