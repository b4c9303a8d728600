"""Length control in TRL's own trainers: which methods go where, and a restart. When lambda moves: test_callbacks."""

import dataclasses
import re
from functools import partial
from pathlib import Path

import pytest
import trl
from conftest import ROOT, log_rows, parity_reward
from stock_run import TRAINERS, lambda_in, stock_trainer
from tool_run import always_right
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, RLOOConfig
from trl.experimental import async_grpo
from trl.experimental.async_grpo import AsyncGRPOConfig
from trl.experimental.online_dpo import OnlineDPOConfig
from trl.experimental.sdpo import SDPOConfig

from leash_trl import LeashGRPOConfig, LengthControlCallback, LengthControlledReward
from leash_trl.errors import TrainingError
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.methods import METHODS


PAGE = (ROOT / "recipes" / "any_trainer.md").read_text(encoding="utf-8")
NEED_THE_GROUP = {
    "laser_d",
    "laser_de",
    "kimi",
    "efficient",
    "alp",
    "mai",
    "grlc",
    "shorter_better",
    "smart_thinker",
    "toggle",
}
AS_ADVANTAGES = {"leash_predictive", "gfpo", "prime_rl", "gr3", "drpo", "dler"}
ONLY_THE_SUBCLASS = {"grpo_lead", "lead"}
NO_GROUPS = {"per_device_train_batch_size": 4, "steps_per_generation": 3, "num_generations": 8}
APART = {"scale_rewards": "none", "multi_objective_aggregation": "normalize_then_sum"}
# a configuration, its fields, the number of processes, and the methods that it does not take
REFUSED = {
    "GRPO": (GRPOConfig, {}, 1, AS_ADVANTAGES),
    "scale_rewards none": (GRPOConfig, {"scale_rewards": "none"}, 1, set()),
    "objectives apart": (GRPOConfig, APART, 1, AS_ADVANTAGES),
    "RLOO": (RLOOConfig, {}, 1, set()),
    "RLOO, two processes": (RLOOConfig, {}, 2, {"dler"}),  # which standardizes over the batch
    "RLOO, normalized": (RLOOConfig, {"normalize_advantages": True}, 1, AS_ADVANTAGES),
    "asynchronous GRPO": (AsyncGRPOConfig, {}, 1, AS_ADVANTAGES),
    "GRPO, parts of groups": (GRPOConfig, NO_GROUPS, 2, AS_ADVANTAGES | NEED_THE_GROUP),
    "SDPO, parts of groups": (SDPOConfig, NO_GROUPS, 2, AS_ADVANTAGES | NEED_THE_GROUP),
    "OnlineDPO": (OnlineDPOConfig, {}, 1, AS_ADVANTAGES | NEED_THE_GROUP),
    "RLOO, parts of groups": (RLOOConfig, NO_GROUPS, 2, AS_ADVANTAGES | NEED_THE_GROUP),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*which a reward function cannot:UserWarning")


@pytest.mark.parametrize("name", ["leash", "laser_d", "toggle", "hapo", "leash_predictive"])
def test_the_log_is_that_of_our_own_trainer(name, make_trainer, tiny_model_path, tmp_path):
    """Without learning, both sample the same completions."""
    settings = {"learning_rate": 0.0, "max_steps": 3, "scale_rewards": "none"}
    stock = stock_trainer("GRPO", tiny_model_path, tmp_path, METHODS[name](), reward_func=parity_reward, **settings)
    stock.train()
    ours = make_trainer(length_control=name, target_length=6, max_completion_length=12, lambda_lr=None, **settings)
    ours.train()
    only_ours = {"leash/zero_signal_share", "leash/generated_tokens"}
    for stock_row, row in zip(log_rows(stock), log_rows(ours), strict=True):
        keys = {key for key in row if key.startswith("leash/")} - only_ours
        assert len(keys) >= 5
        for key in keys:
            assert stock_row[key] == pytest.approx(row[key], rel=1e-6)


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
@pytest.mark.parametrize("name", sorted(AS_ADVANTAGES))
def test_advantages_of_a_methods_own_arrive_in_the_trainer(kind, name, tiny_model_path, tmp_path):
    method = METHODS[name]()
    observe = method.observe
    advantages_of_method = []

    def reward(completion_ids, **kwargs):
        return [None, *parity_reward(completion_ids)[1:]]

    def spy(rollouts):
        score = method.score(rollouts, AdvantageRule())
        advantages_of_method.extend(score.advantages.tolist())
        observe(rollouts)

    fields = {"max_steps": 2, "num_generations": 8, "beta": 0.0}
    if kind == "GRPO":
        fields["scale_rewards"] = "none"
    trainer = stock_trainer(kind, tiny_model_path, tmp_path, method, reward_func=reward, **fields)
    method.observe = spy
    trainer.train()
    advantages = list(trainer._logs["advantages"])  # of the last generation batch
    assert advantages == pytest.approx(advantages_of_method[-len(advantages) :], abs=1e-6)
    assert max(abs(advantage) for advantage in advantages) > 0.01


def test_a_trainer_that_tells_rewards_no_lengths_is_refused_as_training_starts(tiny_model_path, tmp_path):
    trainer = stock_trainer("A2PO", tiny_model_path, tmp_path)
    with pytest.raises(TypeError, match="completion_ids"):
        trainer.train()


def test_every_trainer_of_trl_that_takes_reward_functions_is_in_the_table():
    """`*_trainer.py` with `reward_funcs`; our own page says of each whether it works."""
    classes = set()
    for path in Path(trl.__file__).parent.rglob("*_trainer.py"):
        code = path.read_text()
        if "reward_funcs" in code:
            classes.update(re.findall(r"^class (\w+Trainer)\(", code, re.MULTILINE))
    in_table = set(re.findall(r"^\| `(\w+Trainer)`", PAGE, re.MULTILINE))
    assert classes == in_table
    tested = {trainer_class.__name__ for trainer_class, _ in TRAINERS.values()}
    assert tested == classes - {"AsyncGRPOTrainer"}  # for which there is test_async_grpo


def defaults_of(config_class):
    return {field.name: field.default for field in dataclasses.fields(config_class)}


TRL_DEFAULTS = defaults_of(GRPOConfig)
DEFAULTS = defaults_of(LeashGRPOConfig)
CHANGED = {name for name in TRL_DEFAULTS if DEFAULTS[name] != TRL_DEFAULTS[name]}
ADDED = DEFAULTS.keys() - TRL_DEFAULTS.keys()
ROWS = dict(re.findall(r"^\| `([a-z_]+)` \| (.*)$", PAGE, re.MULTILINE))  # of the page's table, by field


def test_the_page_names_each_default_that_differs_from_trls_and_those_of_new_fields_that_act():
    assert CHANGED <= ROWS.keys() <= CHANGED | ADDED
    for name, row in ROWS.items():
        of_trl, ours, _ = row.split(" | ", maxsplit=2)
        assert ours == f"`{DEFAULTS[name]}`"
        if name in CHANGED:
            assert of_trl == f"`{TRL_DEFAULTS[name]}`"


def test_the_page_lists_the_new_fields_that_do_not_act():
    (row,) = re.findall(r"^\| all others of its own: (.*?) \|", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == ADDED - ROWS.keys()


@pytest.mark.parametrize("case", REFUSED)
def test_a_trainer_refuses_the_methods_that_it_cannot_serve(case, tiny_model_path, tokenizer, tmp_path, monkeypatch):
    config_class, fields, num_processes, refused = REFUSED[case]
    monkeypatch.setattr(config_class, "world_size", num_processes)
    limit = "max_completion_length" if hasattr(config_class, "max_completion_length") else "max_new_tokens"
    fields = {**fields, limit: 32768}
    args = config_class(str(tmp_path), use_cpu=True, bf16=False, **fields)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    messages = {}  # by the name of the method that is refused
    for name, method_class in METHODS.items():
        hyperparameters = {"profile_band": {"a": 100, "b": 200, "f": 0.5}} if name == "nemo_rl" else {}
        method = method_class(**hyperparameters)
        callback = LengthControlCallback(LengthControlledReward(parity_reward, method, target_length=1000))
        try:
            callback.on_init_end(args, None, None, model=model, processing_class=tokenizer)
        except ValueError as error:
            messages[name] = str(error)
    assert messages.keys() == refused | ONLY_THE_SUBCLASS
    for name, message in messages.items():
        assert name in message
        assert "\n" not in message


def used_lambdas(trainer):
    """Number of dual steps and lambda of each batch of the last training."""
    return [(row["leash/version"], row["leash/lambda"]) for row in log_rows(trainer, "leash/lambda")]


def test_a_second_trainer_starts_from_the_methods_beginning(tiny_model_path, tmp_path):
    """As in a notebook in which a cell runs twice, and with a callback that is added after a trainer was made."""
    method = Leash(lambda_lr=0.05)
    method.multiplier("").lam = 0.25  # as the user built it
    callback = LengthControlCallback(LengthControlledReward(parity_reward, method, target_length=6))

    def train():
        trainer = stock_trainer("GRPO", tiny_model_path, tmp_path, reward=callback.reward, max_steps=2)
        trainer.remove_callback(LengthControlCallback)
        trainer.add_callback(callback)
        trainer.train()
        return trainer

    first = train()
    second = train()
    assert used_lambdas(second) == used_lambdas(first)
    (first_version, first_lambda), (second_version, second_lambda) = used_lambdas(first)
    assert (first_version, second_version) == (0, 1)
    assert first_lambda == 0.25 != second_lambda
    entry_of_first = first.state.stateful_callbacks["LengthControl"]
    assert second.state.stateful_callbacks["LengthControl"] == entry_of_first
    assert entry_of_first["version"] == 2


def test_two_length_controls_in_one_trainer_are_refused_in_one_line(tiny_model_path, tmp_path):
    other = LengthControlledReward(parity_reward, Leash(), target_length=9)  # whose reward has the same name
    trainer = stock_trainer(
        "GRPO", tiny_model_path, tmp_path, beside=[other], callbacks=[LengthControlCallback(other)], max_steps=1
    )
    with pytest.raises(TrainingError, match=r"^callbacks.*LengthControlCallback.*$"):
        trainer.train()


def test_a_second_call_of_train_goes_on(tiny_model_path, tmp_path):
    trainer = stock_trainer("GRPO", tiny_model_path, tmp_path, max_steps=1)
    trainer.train()
    lambda_at_the_end = lambda_in(trainer.state.stateful_callbacks["LengthControl"])
    assert lambda_at_the_end != 0.1
    trainer.train()
    # the trainer gathers in float32
    assert used_lambdas(trainer) == [pytest.approx((1, lambda_at_the_end), rel=1e-6)]


def test_an_evaluation_after_an_interrupted_update_is_no_training(tiny_model_path, tmp_path, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    trainer = stock_trainer("GRPO", tiny_model_path, tmp_path)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(trainer, "compute_loss", interrupt)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    (reward,) = trainer.reward_funcs
    assert len(reward.pop_scored_rollouts()) == 1
    trainer.evaluate()
    assert reward.pop_scored_rollouts() == []


def test_an_end_of_thinking_that_no_completion_of_the_first_update_has_ends_the_run(tiny_model_path, tmp_path):
    reward = LengthControlledReward(
        parity_reward, "leash", target_length=6, length_of="thinking", thinking_end="[/THINK]"
    )
    trainer = stock_trainer("GRPO", tiny_model_path, tmp_path, reward=reward)
    with pytest.raises(TrainingError, match=r"thinking_end.*'\[/THINK\]'"):
        trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize("kind", ["GRPO", "RLOO", "GMPO", "SDPO"])
def test_a_function_beside_the_reward_is_refused_at_the_first_log(kind, tiny_model_path, tmp_path):
    trainer = stock_trainer(kind, tiny_model_path, tmp_path, beside=[always_right])
    with pytest.raises(ValueError, match=r"\A.*reward_funcs.*always_right.*LengthControlledReward.*\Z"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_the_page_runs_as_printed(tmp_path, monkeypatch):
    """A stand-in takes the place of the asynchronous trainer, which would ask for a server."""
    async_arguments = {}
    names = {"problems": []}  # that the blocks define and use
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(async_grpo, "AsyncGRPOConfig", partial(AsyncGRPOConfig, use_cpu=True, bf16=False))
    monkeypatch.setattr(async_grpo, "AsyncGRPOTrainer", lambda *args, **kwargs: async_arguments.update(kwargs))
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "any_trainer.md", "exec"), names)
        if not async_arguments:
            assert [row["leash/version"] for row in log_rows(names["trainer"])] == [0, 1, 2]
            assert names["reward"].method.lam != names["reward"].method.lambda_init
    assert {path.name for path in (tmp_path / "runs" / "any_trainer").iterdir()} == {"grpo", "rloo"}
    assert async_arguments["reward_funcs"] is names["reward"]
