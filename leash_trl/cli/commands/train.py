"""`leash train`: TRL's GRPO script with `LeashGRPOTrainer`, `math_reward` and the gym."""

import inspect
import math
import os
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from datasets import Dataset
from transformers import AutoProcessor, ProgressCallback
from trl import GRPOTrainer, get_dataset, get_peft_config, get_quantization_config

from leash_trl.cli.arguments import DEFAULT_RECIPE
from leash_trl.cli.errors import UserError, check_writable, one_line, resumable, user_errors
from leash_trl.cli.training_arguments import arguments_of, given_fields
from leash_trl.data.efforts import check_efforts_differ, with_efforts
from leash_trl.data.problems import load_training_rows, named_files
from leash_trl.data.prompts import has_suffix
from leash_trl.data.readable_solutions import with_readable_solutions
from leash_trl.figures.training import write_curves
from leash_trl.importing import imported
from leash_trl.paths import existing_path, path_or_hub_id
from leash_trl.reward_functions import (
    OWN_REWARDS,
    deciding_function,
    default_reward,
    default_suffix,
    named_reward_funcs,
    reward_functions,
)
from leash_trl.run_folder import complete_model_path, whole_checkpoints
from leash_trl.saved_recipe import mapping_field
from leash_trl.trainer.callbacks import LeashProgressCallback
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer


LONGEST_END = 10  # entries of the log over which the closing line averages at the start and at the end
UPSTREAM = ("trl", "transformers", "accelerate", "peft", "torch")


def recorded(recipe: dict[str, Any], appended: str, prompt: Any) -> dict[str, Any]:
    """Returns a recipe with the suffix that prompts got, which evaluation takes from there and the card shows.

    Prompts that are messages got none: an option that had no effect is recorded as empty, and a default not at all.
    """
    if has_suffix(prompt, appended):
        return {**recipe, "prompt_suffix": appended}
    return recipe if recipe.get("prompt_suffix") is None else {**recipe, "prompt_suffix": ""}


def load_training_data(script_args, dataset_args, evaluates: bool = False, has_template: bool = True):
    """Returns the rows to train on and those to evaluate on, or `None`, of a mixture, a named source, a file, a folder
    or a Hub id."""
    suffix = script_args.prompt_suffix
    for part in dataset_args.datasets:
        part.path = path_or_hub_id(part.path, "path in datasets")
    with named_files("a part of the mixture"):
        mixture = get_dataset(dataset_args) if dataset_args.datasets else None
    return load_training_rows(
        script_args.dataset_name if mixture is None else mixture,
        script_args.dataset_train_split,
        script_args.dataset_test_split if evaluates else None,
        config=script_args.dataset_config,
        streaming=script_args.dataset_streaming,
        suffix=partial(default_suffix, named_reward_funcs(script_args)) if suffix is None else suffix,
        has_chat_template=has_template,
        system_prompt=script_args.system_prompt,
    )


def _checkpoint_to_resume(training_args: LeashGRPOConfig) -> str | bool:
    """Returns `True` for the last checkpoint, `False` for none, or the path of a checkpoint, for the text of the
    option."""
    requested, folder = str(training_args.resume_from_checkpoint), training_args.output_dir
    if requested.lower() == "true" or requested.startswith("hf://"):
        return requested.lower() == "true" or requested
    if requested.lower() not in ("none", "false"):
        return existing_path(requested, "resume_from_checkpoint")
    if (used := next(whole_checkpoints(folder), None)) is not None:
        raise ValueError(f"output_dir {folder} holds {used.name}; choose another, or --resume_from_checkpoint true")
    return False


def build_trainer(script_args, training_args: LeashGRPOConfig, model_args, dataset_args) -> LeashGRPOTrainer:
    """Returns the trainer that the arguments describe, with its model and data loaded."""
    evaluates = training_args.eval_strategy != "no"
    path = script_args.rollout_func
    model, revision = complete_model_path(model_args.model_name_or_path), model_args.model_revision
    sides = {"truncation_side": "left", "padding_side": "left"}  # TRL: as in GRPOTrainer.__init__
    tokenizer = AutoProcessor.from_pretrained(
        model, revision=revision, trust_remote_code=training_args.trust_remote_code, **sides
    )
    tokenizer.chat_template = script_args.chat_template or tokenizer.chat_template
    has_template = tokenizer.chat_template is not None
    rollout_func = path and imported("rollout_func", path)
    reward_funcs = named_reward_funcs(script_args)
    mixed = ", ".join(str(part.data_files or part.path) for part in dataset_args.datasets) or None
    with user_errors(only_loads=True, datasets=mixed, dataset_name=None if mixed else script_args.dataset_name):
        train_dataset, eval_dataset = load_training_data(script_args, dataset_args, evaluates, has_template)
    reward_funcs = reward_funcs or reward_functions([default_reward(train_dataset.column_names or [])])
    deciding = deciding_function(training_args.correctness_func, reward_funcs)
    if callable(deciding):
        training_args.correctness_func = None  # the name of a function, which the trainer gets itself
    # streams are read only while training, and a rollout function or a transform may add golds later
    has_golds = isinstance(train_dataset, Dataset) and "solution" in train_dataset.column_names
    if has_golds and any(reward in OWN_REWARDS for reward in [*reward_funcs, deciding]):
        with_readable_solutions(train_dataset, "the data set")
    if (efforts := mapping_field("efforts", script_args.efforts)) is not None:
        train_dataset = with_efforts(train_dataset, efforts, script_args.effort_suffix)
        eval_dataset = eval_dataset and with_efforts(eval_dataset, efforts, script_args.effort_suffix)
    training_args.model_init_kwargs = {
        "revision": revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    trainer = LeashGRPOTrainer(
        model=model,
        reward_funcs=reward_funcs,
        correctness_func=deciding if callable(deciding) else None,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
        rollout_func=rollout_func,
    )
    check_efforts_differ(tokenizer, efforts or {}, script_args.effort_suffix)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(LeashProgressCallback())
    return trainer


def run_training(recipe: dict[str, Any], script_args, training_args, model_args, dataset_args) -> LeashGRPOTrainer:
    """Trains; saves the model with state, card and recipe, which every checkpoint has too; and pushes to the Hub if
    requested."""
    folder, model = training_args.output_dir, model_args.model_name_or_path
    with user_errors(model_name_or_path=model, reward_model_name_or_path=script_args.reward_model_name_or_path):
        check_writable(recipe.get("output_dir", folder))
        checkpoint = _checkpoint_to_resume(training_args)
        trainer = build_trainer(script_args, training_args, model_args, dataset_args)
    row = next(iter(trainer.train_dataset))
    appended = script_args.prompt_suffix
    if appended is None:
        appended = default_suffix(named_reward_funcs(script_args), columns=row)
    trainer.publisher.recipe = recorded(recipe, appended, row["prompt"])
    trainer.publisher.draw = write_curves
    with resumable(folder, f"resume from the last checkpoint in {folder} with --resume_from_checkpoint true"):
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except Exception as error:
            bar = getattr(trainer.pop_callback(LeashProgressCallback), "training_bar", None)
            if bar is not None:
                bar.close()  # ends the line of the progress bar
            _raise_user_error(error, trainer, checkpoint)
            raise
        if training_args.push_to_hub:
            with user_errors(hub_model_id=trainer.hub_model_id):
                trainer.push_to_hub(dataset_name=script_args.dataset_name)  # saves the model first
        else:
            trainer.save_model(folder)
            trainer.create_model_card(dataset_name=script_args.dataset_name)
    return trainer


def _raise_user_error(error: Exception, trainer: LeashGRPOTrainer, checkpoint: str | bool) -> None:
    """Raises `UserError` for an error that is the user's mistake: for weights that are not finite; for errors that
    reward functions raise, after the part of the traceback in them, or that their return values cause; and for errors
    of TRL and other libraries before the first policy update."""
    if isinstance(error, FloatingPointError):
        raise UserError(str(error)) from error
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames]
    # TRL: GRPOTrainer._calculate_rewards calls the reward functions and makes tensors of rewards; accelerate gathers
    caller, codes = inspect.unwrap(GRPOTrainer._calculate_rewards).__code__, [frame.f_code for frame in frames]
    if caller in codes and packages[codes.index(caller) + 1 :][:1] != ["accelerate"]:
        remedy = "; each must take all columns of the data set and return a number or None for each completion"
        if own := packages[::-1].index("trl"):
            traceback.print_exception(error, limit=-own, chain=False)
            remedy = ""
        names = ", ".join(trainer.reward_func_names)
        raise UserError(f"calling reward_funcs {names}: {one_line(error)}{remedy}") from error
    is_new = trainer.state.global_step <= trainer._num_done
    if is_new and isinstance(error, ValueError | ImportError) and packages[-1] in UPSTREAM:
        resumed = f"resume_from_checkpoint is {checkpoint!r}: " if checkpoint else ""
        raise UserError(resumed + one_line(error)) from error


def _updates(first: int, last: int) -> str:
    return f"update {first}" if first == last else f"updates {first} to {last}"


def _at_an_end(rows: Sequence[Mapping[str, Any]], first_update: int) -> str:
    """Returns means of accuracy, or of the task reward where it is not known which answers are correct, and of length
    over some entries of the log."""
    lengths = f"{fmean(row['leash/mean_length'] for row in rows):.1f} tokens"
    accuracies = [row["leash/accuracy"] for row in rows if "leash/accuracy" in row]
    rewards = [row["leash/task_reward"] for row in rows if "leash/task_reward" in row]
    updates = _updates(first_update, rows[-1]["step"])
    if accuracies:
        return f"accuracy {fmean(accuracies):.3f} and {lengths} in {updates}"
    if rewards:
        return f"reward {fmean(rewards):.3f} and {lengths} in {updates}"
    return f"{lengths} in {updates}"


def closing_line(statistics: Mapping[str, float], log_history: Sequence[Mapping[str, Any]]) -> str:
    """Returns what a training came to: the state of the method, accuracy and length at the start and at the end, and
    whether its last tenth had no signal.

    The start and the end are a tenth of the updates, but at most `LONGEST_END` entries of the log.
    """
    state = "".join(f" {name}={value:.4g}" for name, value in statistics.items())
    parts = [f"Trained{' to' + state if state else ''}"]
    rows = [row for row in log_history if "leash/mean_length" in row]
    if not rows:
        return parts[0]
    last_step = rows[-1]["step"]
    # an entry of the log covers all updates since the one before it
    ends_before = [0, *(row["step"] for row in rows)]
    tenth = math.ceil(len(rows) / 10)
    size = min(tenth, LONGEST_END)
    parts.append(_at_an_end(rows[:size], first_update=1))
    parts.append(_at_an_end(rows[-size:], first_update=ends_before[-size - 1] + 1))
    last_tenth = rows[-tenth:]
    missing = []
    if all(row.get("leash/accuracy") == 0 for row in last_tenth):
        missing.append("no answer was correct")
    if all(row.get("leash/zero_signal_share") == 1 for row in last_tenth):
        missing.append("no group of answers had a signal to learn from")
    if missing:
        parts.append(f"in {_updates(ends_before[-tenth - 1] + 1, last_step)} {' and '.join(missing)}")
    return "; ".join(parts)


def main(argv: list[str]) -> int:
    """Runs `leash train`."""
    # about future renames in libraries, and that rollout functions are experimental
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|trl|leash_trl")
    # without the line in our code; the line break in front ends the line of a progress bar
    warnings.formatwarning = lambda message, *_, **__: f"\nleash train: warning: {message}\n"
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    recipe = given_fields(argv)
    if not recipe.get("model_name_or_path") or not (recipe.get("dataset_name") or recipe.get("datasets")):
        raise UserError(f"give --model_name_or_path and --dataset_name, or --config, such as {DEFAULT_RECIPE}")
    trainer = run_training(recipe, *arguments_of(recipe))
    line = closing_line(trainer.length_control.statistics(), trainer.state.log_history)
    trainer.accelerator.print(f"{line}; model is in {trainer.args.output_dir}")
    return 0
