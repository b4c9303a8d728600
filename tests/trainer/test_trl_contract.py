"""What we lean on inside TRL and transformers."""

import inspect
import re

from trl import GRPOTrainer

from leash_trl import LeashGRPOTrainer
from leash_trl.microbatching import batch_fields, length_grouped_grpo_trainer, loss_weights


LOSS_SOURCE = inspect.getsource(GRPOTrainer._compute_loss)


OVERRIDDEN = {
    "__init__",
    "_calculate_rewards",
    "_generate",
    "_generate_and_score_completions",
    "_get_per_token_logps_and_entropies",
    "_prepare_inputs",
    "_push_from_checkpoint",
    "_tokenize_prompts",
    "compute_loss",
    "create_model_card",
    "init_hf_repo",
    "push_to_hub",
    "save_model",
    "set_initial_training_values",
    "train",
}


def test_our_trainers_override_these_methods_and_no_others():
    """A method that TRL renames would not be called any more; one of ours whose name TRL takes would replace TRL's."""
    overridden = set()
    for trainer_class in LeashGRPOTrainer.__mro__:
        if trainer_class.__module__.startswith("leash_trl."):
            names = [name for name in vars(trainer_class) if inspect.isfunction(getattr(GRPOTrainer, name, None))]
            overridden.update(names)
    assert overridden == OVERRIDDEN


def test_a_training_batch_has_the_fields_and_the_loss_logs_the_means_we_know(make_trainer):
    trainer = make_trainer(num_iterations=2, length_grouped_microbatches=False, skip_zero_signal=False, max_steps=1)
    trainer.train()
    elsewhere = {"tool_mask", "ref_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio"}
    assert trainer._buffered_inputs[0].keys() == batch_fields.SUPPORTED_FIELDS - elsewhere
    logged = re.findall(r'_metrics\[mode\]\["([^"]+)"\]\.append\(global_masked_mean', LOSS_SOURCE)
    means = length_grouped_grpo_trainer
    assert set(logged) == {*means.TOKEN_MEAN_KEYS, *means.CLIP_MEAN_KEYS, *means.ROW_MEAN_KEYS}


def test_every_loss_is_known():
    types = re.findall(r'"(\w+)"', " ".join(re.findall(r"self\.loss_type (?:==|in) (.*?):", LOSS_SOURCE)))
    assert {*types} == loss_weights.LOSS_TYPES
