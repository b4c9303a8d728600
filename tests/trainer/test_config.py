"""The configuration: the paper's recipe by default, one method and one rule of advantages, help from its docstring."""

import pytest
from process_warnings import warnings_of

from leash_trl import LeashGRPOConfig
from leash_trl.length_control.advantages import AdvantageRule


@pytest.fixture
def config(tmp_path):
    def make(**fields):
        defaults = {"output_dir": str(tmp_path), "target_length": 4096, "use_cpu": True, "bf16": False}
        return LeashGRPOConfig(**defaults | fields)

    return make


def test_defaults_are_the_papers_recipe(config):
    paper = {
        "length_control": "leash",
        "num_generations": 8,
        "max_completion_length": 32768,
        "temperature": 1.0,
        "top_p": 1.0,
        "uses_dynamic_sampling": False,
        "loss_type": "dapo",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "beta": 0.0,
        "entropy_coef": 0.0,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.1,
        "max_grad_norm": 1.0,
        "vllm_importance_sampling_correction": False,
        "advantage_rule": AdvantageRule(scale_rewards="group", epsilon=1e-8),
    }
    args = config()
    assert {name: getattr(args, name) for name in paper} == paper
    method = args.make_length_control()
    assert method.lambda_init == 0.1
    assert method.lambda_lr == 0.005
    assert method.lambda_min == 0.0
    assert method.lambda_max == 1.0


def test_the_rule_of_advantages_is_that_of_the_fields(config):
    assert config(scale_rewards=False, advantage_epsilon=0.5).advantage_rule == AdvantageRule("none", 0.5)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"top_p": 0.9}, ["top_p", "0.9"]),
        ({"top_p": 95.0}, ["top_p", "95.0"]),  # all tokens, where 0.95 was meant
        ({"top_k": 50}, ["top_k", "50"]),
        ({"min_p": 0.1}, ["min_p", "0.1"]),
        ({"mask_truncated_completions": True}, ["mask_truncated_completions", "True"]),
        ({"mask_truncated_completions": True, "length_control": "dler"}, ["mask_truncated_completions", "dler"]),
        ({"length_control": "laser_d", "lambda_init": 0.2, "lambda_lr": 0.1}, ["lambda_init=0.2", "lambda_lr=0.1"]),
        ({"length_control": "none", "multi_objective_aggregation": "normalize_then_sum"}, None),
        ({}, None),
        ({"generation_kwargs": {"stop": ["END"], "best_of_our_own": 1}, "use_vllm": True}, None),
        ({"length_control": "dler", "target_length": 4000, "max_completion_length": 4000}, None),  # which cuts there
        ({"length_control": "alp", "target_length": 600, "max_completion_length": 512}, None),
    ],
    ids=str,
)
def test_what_defeats_the_purpose_is_one_warning_of_the_main_process(fields, named, config):
    lines = warnings_of(lambda: config(**fields))
    assert len(lines) == (0 if named is None else 1)
    for line in lines:
        assert all(part in line for part in named)


def test_a_method_with_a_momentum_gets_adams_unless_it_is_given(config):
    fields = {"length_control": "leash_predictive", "adam_beta1": 0.75}
    assert config(**fields).make_length_control().adam_beta1 == 0.75
    assert config(**fields, length_control_kwargs={"adam_beta1": 0.25}).make_length_control().adam_beta1 == 0.25


@pytest.mark.parametrize("text", ['{"0": 8192, "100": 4096}', "{0: 8192, 100: 4096}"])
def test_milestones_of_a_command_line_are_those_of_a_recipe(text, config):
    args = config(target_schedule="linear", target_milestones=text)
    assert [args.target_at(step) for step in (0, 50, 100)] == [8192, 6144, 4096]
    assert config(target_length=None, length_control="kimi").target_at(0) is None


def test_a_prompts_own_target_is_checked_where_the_milestones_move_it(config):
    fields = {"target_length": 4096, "target_schedule": "linear", "target_milestones": {0: 8192, 100: 4096}}
    args = config(length_control="laser_d", length_control_kwargs={"upper_bound": 10000}, **fields)
    method = args.make_length_control()
    args.check_target_and_milestones(5000, method)  # 10,000 at first
    with pytest.raises(ValueError, match="upper_bound"):
        args.check_target_and_milestones(5001, method)
