"""What we lean on inside TRL and transformers, checked on the oldest and the newest release we claim."""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest
import trl
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

import leash_trl
from leash_trl import LeashGRPOTrainer
from leash_trl.microbatching import batch_fields, length_grouped_grpo_trainer, loss_weights
from leash_trl.microbatching.length_grouped_grpo_trainer import LengthGroupedGRPOTrainer


LOSS_SOURCE = inspect.getsource(GRPOTrainer._compute_loss)
PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def parameters(method) -> list[str]:
    return list(inspect.signature(method).parameters)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_generate", ["self", "prompts"]),
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_get_train_sampler", ["self", "dataset"]),
        ("save_model", ["self", "output_dir", "_internal_call"]),
        ("_load_optimizer_and_scheduler", ["self", "checkpoint"]),
        ("_push_from_checkpoint", ["self", "checkpoint_folder"]),
        ("_save_rng_state", ["self", "output_dir"]),
        ("set_initial_training_values", ["self", "args", "dataloader"]),
        ("_load_best_model", ["self"]),
        ("_log_completion_extra", ["self", "column", "values"]),
        ("_prepare_inputs", ["self", "generation_batch"]),
        ("compute_loss", ["self", "model", "inputs", "return_outputs", "num_items_in_batch"]),
    ],
)
def test_hook_has_the_arguments_we_use(name, expected):
    assert parameters(getattr(GRPOTrainer, name)) == expected


def test_log_probabilities_have_the_arguments_we_use():
    names = parameters(GRPOTrainer._get_per_token_logps_and_entropies)
    assert names[:6] == ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"]
    assert {"compute_entropy", "compute_aux_loss"} <= {*names}


def test_a_training_batch_has_the_fields_and_the_loss_logs_the_means_we_know(make_trainer):
    trainer = make_trainer(num_iterations=2, length_grouped_microbatches=False, skip_zero_signal=False, max_steps=1)
    trainer.train()
    assert trainer._buffered_inputs[0].keys() == batch_fields.FIELDS - {
        "tool_mask",
        "ref_per_token_logps",
        "sampling_per_token_logps",
        "importance_sampling_ratio",
    }
    names = {*length_grouped_grpo_trainer.TOKEN_MEANS, *length_grouped_grpo_trainer.CLIP_MEANS}
    logged = {*re.findall(r'_metrics\[mode\]\["([^"]+)"\]\.append\(global_masked_mean', LOSS_SOURCE)}
    assert logged == names | {*length_grouped_grpo_trainer.ROW_MEANS}


def test_every_loss_is_known():
    types = re.findall(r'"(\w+)"', " ".join(re.findall(r"self\.loss_type (?:==|in) (.*?):", LOSS_SOURCE)))
    assert {*types} == loss_weights.LOSS_TYPES


@pytest.mark.parametrize("name", ["_generate_single_turn", "prediction_step"])
def test_hook_we_only_pass_through_exists(name):
    assert callable(getattr(GRPOTrainer, name))


def test_what_we_read_in_the_sampler_exists():
    sampler = RepeatSampler(["a", "b"], mini_repeat_count=1, seed=0)
    assert (sampler.shuffle, sampler.seed, sampler.num_samples) == (True, 0, 2)
    assert sampler.generator is not None


@pytest.mark.parametrize("trainer_class", [LeashGRPOTrainer, LengthGroupedGRPOTrainer])
def test_every_override_calls_super(trainer_class):
    tree = ast.parse(textwrap.dedent(inspect.getsource(trainer_class)))
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    methods = {name for name, method in vars(trainer_class).items() if inspect.isfunction(method)}
    overridden = {name for name in methods if hasattr(GRPOTrainer, name)}
    assert {f"super().{name}" for name in overridden} <= calls
    assert len(overridden) > 3


def test_lengths_agree_with_trls_own_metric(make_trainer):
    trainer = make_trainer(max_steps=2)
    trainer.train()
    for row in trainer.state.log_history[:2]:
        assert row["leash/mean_length"] == pytest.approx(row["completions/mean_length"], rel=1e-6)
        assert row["leash/max_length"] == row["completions/max_length"]
        assert row["leash/task_reward"] == pytest.approx(row["reward"], abs=1e-6)


def test_the_installed_trl_is_one_we_claim():
    from packaging.requirements import Requirement

    (requirement,) = re.findall(r'"(trl[^"\[]+)"', PYPROJECT.read_text())[:1]
    assert Requirement(requirement).specifier.contains(trl.__version__, prereleases=True)
    assert leash_trl.__version__ == "0.1.0"
