"""What we lean on inside TRL and transformers."""

import inspect
import re
from pathlib import Path

from trl import GRPOTrainer

import leash_trl
from leash_trl import LeashGRPOTrainer
from leash_trl.microbatching import batch_fields, length_grouped_grpo_trainer, loss_weights


LOSS_SOURCE = inspect.getsource(GRPOTrainer._compute_loss)


def used_members(path):
    """What a file's trainers define or take of themselves, and what it takes of a `trainer`."""
    text = path.read_text()
    names = re.findall(r"trainer\.(\w+)", text)
    if re.search(r"^class \w*GRPOTrainer\(", text, re.MULTILINE):
        names += re.findall(r"(?:self|super\(\))\.(\w+)", text)
        names += re.findall(r"^    (?:def )?(\w+)", text, re.MULTILINE)
    return {*names}


SEAMS = {
    "_buffered_inputs",
    "_calculate_rewards",
    "_generate",
    "_generate_and_score_completions",
    "_get_per_token_logps_and_entropies",
    "_log_completion_extra",
    "_log_metric",
    "_logs",
    "_metrics",
    "_prepare_inputs",
    "_push_from_checkpoint",
    "_step",
    "_tag_names",
    "_tokenize_prompts",
    "_tokenizer",
}


def test_the_private_members_we_lean_on_are_few_and_exist():
    theirs = [cls for cls in GRPOTrainer.__mro__ if cls.__module__.startswith(("trl.", "transformers."))]
    names = {*dir(GRPOTrainer), *re.findall(r"self\.(_\w+)", "".join(map(inspect.getsource, theirs)))}
    private = {name for name in names if re.match("_[a-z]", name)}
    used = set().union(*map(used_members, Path(leash_trl.__file__).parent.rglob("*.py")))
    assert private & used == SEAMS


def test_what_our_trainers_override_is_a_seam_or_what_users_call():
    overridden = set()
    for trainer_class in LeashGRPOTrainer.__mro__:
        if trainer_class.__module__.startswith("leash_trl."):
            overridden |= {
                name for name in vars(trainer_class) if inspect.isfunction(getattr(GRPOTrainer, name, None))
            }
    users_call = {"__init__", "train", "save_model", "push_to_hub", "create_model_card", "init_hf_repo"}
    assert overridden - SEAMS == users_call | {"compute_loss", "set_initial_training_values"}


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
