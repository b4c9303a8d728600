"""The configuration: the paper's recipe by default, and early errors that name field, value and remedy."""

import dataclasses
import math
import re
import warnings

import numpy as np
import pytest

from leash_trl import LeashGRPOConfig, LengthControl


@pytest.fixture
def config(tmp_path):
    def make(**fields):
        return LeashGRPOConfig(
            **{"output_dir": str(tmp_path), "target_length": 4096, "use_cpu": True, "bf16": False, **fields}
        )

    return make


def test_defaults_are_the_papers_recipe(config):
    paper = {
        "length_control": "leash",
        "advantage_epsilon": 1e-8,
        "dynamic_sampling_rounds": 0,
        "dynamic_sampling_oversample": 0.0,
        "loss_type": "dapo",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "beta": 0.0,
        "entropy_coef": 0.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.1,
        "max_grad_norm": 1.0,
        "scale_rewards": "group",
        "num_generations": 8,
        "max_completion_length": 32768,
        "mask_truncated_completions": False,
        "vllm_importance_sampling_correction": False,
    }
    made = config()
    assert {name: getattr(made, name) for name in paper} == paper
    method = made.make_length_control()
    assert (method.lambda_init, method.lambda_lr, method.lambda_min, method.lambda_max) == (0.1, 0.005, 0.0, 1.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_length": None}, "target_length is required"),
        ({"target_length": 0}, "target_length is 0"),
        ({"target_length": -5}, "target_length is -5"),
        ({"target_length": 20.5}, "target_length is 20.5"),  # YAML values are not type-checked by TrlParser
        ({"target_length": True}, "target_length is True"),
        ({"target_length": 512, "max_completion_length": 512}, "below max_completion_length=512"),
        ({"lambda_init": 1.5}, "lambda_init=1.5"),
        ({"lambda_min": 0.5}, "lambda_min=0.5"),
        ({"lambda_min": -0.1}, "lambda_min=-0.1"),
        ({"lambda_lr": -0.01}, "lambda_lr is -0.01"),
        ({"lambda_lr": float("nan")}, "lambda_lr is nan"),
        ({"lambda_lr": "fast"}, "lambda_lr is the text 'fast'"),
        ({"lambda_max": float("inf")}, "lambda_max is inf"),
        ({"advantage_epsilon": 0.0}, "advantage_epsilon is 0.0"),
        ({"multi_objective_aggregation": "whiten"}, "must be 'sum_then_normalize' or 'normalize_then_sum'"),
        (
            {"multi_objective_aggregation": "normalize_then_sum", "length_control": "drpo"},
            "length_control='drpo' computes advantages by a rule of its own",
        ),
        (
            {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "batch"},
            "needs reward_baseline='mean' and scale_rewards='group', but they are 'mean' and 'batch'",
        ),
        (
            {"multi_objective_aggregation": "normalize_then_sum", "reward_baseline": "length_weighted"},
            "they are 'length_weighted' and 'group'",
        ),
        (
            {"reward_baseline": "length_weighted", "length_control": "dot", "length_control_kwargs": {"robust": True}},
            "reward_baseline is 'length_weighted', but length_control='dot' cuts completions",
        ),
        ({"length_objective_weight": 0.5}, "has no length objective apart"),
        ({"length_objective_weight": -1}, "length_objective_weight is -1"),
        ({"length_objective_weight": float("nan")}, "length_objective_weight is nan"),
        ({"reward_baseline": "median"}, "reward_baseline is 'median', but must be 'mean' or 'length_weighted'"),
        (
            {"reward_baseline": "length_weighted", "length_control": "prime_rl"},
            "length_control='prime_rl' computes advantages by a rule of its own",
        ),
        ({"length_control": "lasso"}, "length_control is 'lasso', but must be one of leash, leash_c"),
        (
            {"length_control_kwargs": {"alpha": 1}},
            "alpha means nothing to length_control='leash', whose parameters are lambda_init",
        ),
        ({"length_control": "kimi", "lambda_init": 0.1}, "lambda_init means nothing to length_control='kimi'"),
        ({"length_control": "kimi", "length_control_kwargs": {"weight": -1}}, "weight is -1"),
        ({"length_control": "kimi", "length_control_kwargs": {"weight": "4e-1"}}, "weight is the text '4e-1'"),
        ({"length_control": "kimi", "length_control_kwargs": "weight=1"}, "must be a mapping or the text of one"),
        ({"length_control": "leash_c", "lambda_lr": 0.1}, "leash_c freezes lambda"),
        ({"target_schedule": "cosine"}, "target_schedule is 'cosine'"),
        ({"target_schedule": "linear"}, "go together"),
        ({"target_milestones": {0: 8192}}, "go together"),
        ({"target_schedule": "linear", "target_milestones": {"a": 1}}, "must map whole steps to tokens"),
        ({"target_schedule": "linear", "target_milestones": {-1: 1}}, "target_milestones holds -1"),
        ({"target_schedule": "linear", "target_milestones": {0: 99999}}, "within max_completion_length=32768"),
        ({"target_schedule": "linear", "target_milestones": {0.5: 9000}}, "must map whole steps"),
        ({"target_schedule": "linear", "target_milestones": {0: 9000, 9: 5000}}, "ends with 5000, but target_length"),
        ({"lambda_init": 0.2, "length_control_kwargs": {"lambda_init": 0.7}}, "lambda_init is given twice"),
        ({"length_control": "alp", "length_control_kwargs": {"beta": float("nan")}}, "beta is nan"),
        ({"length_control": "dler", "max_completion_length": 4000}, "must not be above max_completion_length=4000"),
        (
            {
                "length_control": "dapo_overlong",
                "max_completion_length": 4097,
                "target_length": None,
                "length_control_kwargs": {"cache_length": 5000},
            },
            "cache_length is 5000",
        ),
        ({"length_control": "gfpo", "length_control_kwargs": {"num_kept": 50}}, "must not exceed num_generations=8"),
        ({"length_control": "laser_d", "target_length": 20000}, "upper_bound is 16384"),
        (
            {
                "length_control": "laser_d",
                "target_schedule": "linear",
                "target_milestones": {0: 20000, 100: 4096},
            },
            "target_milestones holds 0: 20000, and upper_bound is 16384",
        ),
        (
            {"length_control": "l1_max", "target_length": None, "length_control_kwargs": {"budget_range": None}},
            "no length to request",
        ),
        (
            {
                "length_control": "l1_max",
                "max_completion_length": 4096,
                "target_length": 100,
                "length_control_kwargs": {"budget_range": [1, 5000]},
            },
            "must not go beyond",
        ),
        (
            {
                "length_control": "none",
                "target_length": None,
                "target_schedule": "linear",
                "target_milestones": {0: 9},
            },
            "needs target_length",
        ),
        ({"dynamic_sampling_rounds": -1}, "dynamic_sampling_rounds is -1"),
        ({"dynamic_sampling_oversample": -0.5}, "dynamic_sampling_oversample is -0.5"),
        ({"dynamic_sampling_oversample": "0.5"}, "dynamic_sampling_oversample is '0.5'"),
        ({"dynamic_sampling_oversample": math.inf}, "dynamic_sampling_oversample is inf"),
        ({"generation_kwargs": {"max_new_tokens": 4096}}, "below generation_kwargs.max_new_tokens=4096"),
        ({"generation_kwargs": {"max_new_tokens": 0}}, "generation_kwargs.max_new_tokens is 0"),
        ({"generation_kwargs": '{"max_new_tokens": 9.5}'}, "generation_kwargs.max_new_tokens is 9.5"),
        ({"generation_kwargs": {"max_length": 9000}, "use_vllm": True}, "generation_kwargs holds max_length"),
        ({"generation_kwargs": {"max_tokens": 9000}}, "generation_kwargs holds max_tokens"),
        ({"generation_kwargs": {"max_new_tokens": 9000}, "use_vllm": True}, "generation_kwargs holds max_new_tokens"),
        (
            {"max_completion_length": None, "loss_type": "dr_grpo", "generation_kwargs": {"max_new_tokens": 9000}},
            "max_completion_length is None, but loss_type='dr_grpo' divides by it",
        ),
        *(
            (
                {"length_control": name, "max_completion_length": None, "use_vllm": True, "length_control_kwargs": of},
                f"length_control={name!r} measures by the generation limit",
            )
            for name, of in (("cosine", None), ("dapo_overlong", None), ("prime_rl", {"variant": "june"}))
        ),
        (
            {
                "length_control": "gfpo",
                "max_completion_length": None,
                "use_vllm": True,
                "length_control_kwargs": {"num_kept": 50},
            },
            "must not exceed num_generations=8",
        ),
    ],
)
def test_what_would_break_the_method_is_an_error(config, fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"top_k": 50}, "top_k=50"),
        ({"mask_truncated_completions": True}, "a multiplier rises"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "leash with .* cancels the multiplier"),
        (
            {"multi_objective_aggregation": "normalize_then_sum", "length_control": "laconic"},
            "cancels the multiplier",
        ),
        ({"mask_truncated_completions": True, "length_control": "dler"}, "the cut is what teaches"),
    ],
)
def test_what_defeats_the_purpose_is_a_warning(config, fields, message):
    with pytest.warns(UserWarning, match=message):
        config(**fields)


def test_a_good_configuration_does_not_warn(config):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        config()


def test_rules_of_advantages_that_make_sense_do_not_warn(config):
    decoupled = {"multi_objective_aggregation": "normalize_then_sum"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        config(length_control="kimi", length_objective_weight=0.5, **decoupled)
        config(advantage_epsilon=0.1, **decoupled)
        config(reward_baseline="length_weighted", scale_rewards="none")


def test_a_method_learns_how_to_compare_completions(config):
    method = config(
        length_control="kimi", multi_objective_aggregation="normalize_then_sum", length_objective_weight=0.5
    ).make_length_control()
    assert method.multi_objective_aggregation == "normalize_then_sum"
    assert method.length_objective_weight == 0.5
    assert config(reward_baseline="length_weighted").make_length_control().reward_baseline == "length_weighted"


def test_a_method_without_a_target_needs_none(config):
    assert config(length_control="kimi", target_length=None).make_length_control().name == "kimi"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"length_control": "dler"},
        {"length_control": "thinkprune"},
        {"length_control": "cosine", "length_control_kwargs": {"max_length": 9000}},
        {"length_control": "dapo_overlong", "length_control_kwargs": {"max_length": 9000}},
        {"length_control": "prime_rl"},
        {"length_control": "l1_max"},
    ],
    ids=str,
)
def test_with_vllm_its_context_may_be_the_only_limit(config, fields):
    assert config(max_completion_length=None, use_vllm=True, **fields).generation_limit == math.inf


def test_the_limit_is_what_the_engine_is_told(config):
    assert config().generation_limit == 32768
    assert config(generation_kwargs={"max_new_tokens": 9000}).generation_limit == 9000
    assert config(generation_kwargs={"max_tokens": 50000}, use_vllm=True).generation_limit == 50000
    assert config(generation_kwargs={"max_new_tokens": 9000}, max_completion_length=None).generation_limit == 9000
    assert config(generation_kwargs={"max_length": 9000}, max_completion_length=None).generation_limit == math.inf
    assert config(num_generations_eval=0).num_generations_eval == 0  # TRL takes num_generations then


def test_milestones_of_a_command_line_become_numbers(config):
    for text in ('{"0": 8192, "100": 4096}', "{0: 8192, 100: 4096}"):
        made = config(target_schedule="staged", target_milestones=text)
        assert made.target_milestones == {0: 8192.0, 100: 4096.0}
    made = config(length_control="kimi", length_control_kwargs="{weight: 0.5}")
    assert made.make_length_control().weight == 0.5


def test_the_target_of_dler_may_be_the_generation_limit(config):
    assert config(length_control="dler", target_length=4000, max_completion_length=4000).target_length == 4000


def test_a_target_that_a_method_has_no_use_for_may_be_any(config):
    for name in ("none", "alp", "gfpo", "thinkprune"):
        config(length_control=name, target_length=512, max_completion_length=512)
        config(
            length_control=name,
            target_length=512,
            max_completion_length=512,
            target_schedule="staged",
            target_milestones={0: 9000, 100: 512},
        )


def test_thinkprune_never_promises_more_than_the_generation_limit(config):
    fields = {"length_control": "thinkprune", "length_control_kwargs": {"stages": {0: 4000, 1: 1000}}}
    method = config(
        max_completion_length=4096, generation_kwargs={"max_new_tokens": 2048}, **fields
    ).make_length_control()
    for limit in (2048, 1000):
        assert method.prompt_suffix(None) == f" The output should be within {limit} tokens."
        assert method.generation_cap(None) == method.statistics()["generation_cap"] == limit
        method.step()


def test_every_call_makes_a_new_controller(config):
    made = config()
    used = made.make_length_control()
    used.load_state_dict({"lambda": 0.7})
    assert (used.lam, made.make_length_control().lam) == (0.7, 0.1)


def test_help_is_the_first_sentence_of_the_docstring():
    entries = dict(
        re.findall(r"^        (\w+) \(.*?\):\n            (.+?\.)(?=\s)", LeashGRPOConfig.__doc__, re.M | re.S)
    )
    own = [f for f in dataclasses.fields(LeashGRPOConfig) if f.name in LeashGRPOConfig.__annotations__]
    assert {f.name for f in own} == set(entries)
    for field in own:
        assert field.metadata["help"] == re.sub(r"\s+", " ", entries[field.name])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"top_pp": 0.5}, "generation_kwargs holds top_pp, which transformers does not know; did you mean top_p?"),
        ({"foo": 1}, "generation_kwargs holds foo, which transformers does not know"),
        ({"temperature": 0.0}, "generation_kwargs.temperature is 0.0"),
        ({"temperature": "5e-1"}, "generation_kwargs.temperature is '5e-1'"),
        ({"num_return_sequences": 2}, "generation_kwargs.num_return_sequences is 2"),
        ({"return_dict_in_generate": True}, "generation_kwargs.return_dict_in_generate is True"),
        ({"stop_strings": ["END"]}, "generation_kwargs.stop_strings is ['END']"),
    ],
)
def test_generation_that_cannot_train_is_refused(config, kwargs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config(generation_kwargs=kwargs)


@pytest.mark.parametrize("kwargs", [{"do_sample": False}, {"num_beams": 2}])
def test_generation_that_is_no_sampling_is_warned_about(config, kwargs):
    with pytest.warns(UserWarning, match=f"generation_kwargs.{next(iter(kwargs))} is"):
        config(generation_kwargs=kwargs)


def test_generation_kwargs_that_change_nothing_of_this_pass(config):
    kwargs = {"do_sample": True, "num_return_sequences": 1, "return_dict_in_generate": False, "stop_strings": None}
    kwargs |= {"num_beams": 1, "temperature": 0.7, "min_new_tokens": 4, "suppress_tokens": [3], "max_time": 60.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        config(generation_kwargs=kwargs)
        config(generation_kwargs={"stop": ["END"], "best_of_our_own": 1}, use_vllm=True)


def test_numbers_of_numpy_are_numbers(make_args):
    args = make_args(lambda_init=np.float64(0.25), lambda_lr=np.float64(0.0))
    assert args.make_length_control().lam == 0.25


def test_a_method_knows_adams_momentum_and_a_field_of_that_name_stays_its_own(config):
    made = config(length_control="leash_predictive", adam_beta1=0.75).make_length_control()
    assert [multiplier.momentum for multiplier in made.multipliers.values()] == [0.75]
    kept = config(length_control=f"{__name__}.WithMomentum", adam_beta1=0.75).make_length_control()
    assert kept.momentum == 0.5


@dataclasses.dataclass
class WithMomentum(LengthControl):
    name = "with_momentum"

    momentum: float = 0.5

    def shape(self, rollouts):
        return self.base_rewards(rollouts)
