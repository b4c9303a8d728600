"""`leash train`: TRL's GRPO script with `LeashGRPOTrainer`, `math_reward` and the gym."""

import itertools
import math
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from datasets import Dataset
from transformers import AutoProcessor, ProgressCallback
from trl import get_dataset, get_peft_config, get_quantization_config

from leash_trl import process
from leash_trl.cli.arguments import DEFAULT_RECIPE
from leash_trl.cli.errors import UserError, check_writable, one_line, resumable, user_errors
from leash_trl.cli.training_arguments import arguments_of, given_fields
from leash_trl.comparison.curves import ends
from leash_trl.completions.costs import label_of
from leash_trl.data.efforts import check_efforts_differ, with_efforts
from leash_trl.data.problems import load_training_rows, named_files
from leash_trl.data.prompts import has_suffix
from leash_trl.data.readable_solutions import with_readable_solutions
from leash_trl.evaluation.tables import format_cost
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
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer
from leash_trl.trainer.progress_bar import LeashProgressCallback


UPSTREAM = ("trl", "transformers", "accelerate", "peft", "torch")


def recorded(recipe: dict[str, Any], suffix: str, prompt: Any) -> dict[str, Any]:
    """Returns a recipe with the suffix that prompts got, which evaluation takes from there and the card shows.

    Prompts that are messages got none: an option that had no effect is recorded as empty, and a default not at all.

    Args:
        recipe (`dict`): Fields of the recipe.
        suffix (`str`): Text that training appends to prompts, unless they are messages.
        prompt (`str` or `list`): A prompt as the trainer got it.
    """
    if has_suffix(prompt, suffix):
        return {**recipe, "prompt_suffix": suffix}
    if recipe.get("prompt_suffix") is None:
        return recipe
    return {**recipe, "prompt_suffix": ""}


def load_training_data(script_args, dataset_args, evaluates: bool = False, has_template: bool = True):
    """Returns the rows to train on and those to evaluate on, or `None`, of a mixture, a named source, a file, a folder
    or a Hub id."""
    suffix = script_args.prompt_suffix
    if suffix is None:  # depends on the columns, which are known only after loading
        suffix = partial(default_suffix, named_reward_funcs(script_args))
    source = script_args.dataset_name
    if dataset_args.datasets:
        for part in dataset_args.datasets:
            part.path = path_or_hub_id(part.path, "path in datasets")
        with named_files("a part of the mixture"):
            source = get_dataset(dataset_args)
    return load_training_rows(
        source,
        script_args.dataset_train_split,
        script_args.dataset_test_split if evaluates else None,
        config=script_args.dataset_config,
        streaming=script_args.dataset_streaming,
        suffix=suffix,
        has_chat_template=has_template,
        system_prompt=script_args.system_prompt,
    )


def _checkpoint_to_resume(training_args: LeashGRPOConfig) -> str | bool:
    """Returns `True` for the last checkpoint, `False` for none, or the path of a checkpoint, for the text of the
    option."""
    requested = str(training_args.resume_from_checkpoint)
    if requested.lower() == "true":
        return True
    if requested.startswith("hf://"):  # a checkpoint on the Hub
        return requested
    if requested.lower() not in ("none", "false"):
        return existing_path(requested, "resume_from_checkpoint")
    newest = next(whole_checkpoints(training_args.output_dir), None)
    if newest is not None:
        raise ValueError(
            f"output_dir {training_args.output_dir} holds {newest.name}; choose another, or "
            "--resume_from_checkpoint true"
        )
    return False


def load_tokenizer(script_args, training_args: LeashGRPOConfig, model_args) -> Any:
    """Returns the tokenizer or processor of the model, with the chat template of the arguments if they have one."""
    tokenizer = AutoProcessor.from_pretrained(
        complete_model_path(model_args.model_name_or_path),
        revision=model_args.model_revision,
        trust_remote_code=training_args.trust_remote_code,
        truncation_side="left",  # TRL: as in GRPOTrainer.__init__
        padding_side="left",
    )
    if script_args.chat_template:
        tokenizer.chat_template = script_args.chat_template
    return tokenizer


def build_trainer(script_args, training_args: LeashGRPOConfig, model_args, dataset_args) -> LeashGRPOTrainer:
    """Returns the trainer that the arguments describe, with its model and data loaded."""
    tokenizer = load_tokenizer(script_args, training_args, model_args)
    rollout_func = None
    if script_args.rollout_func:
        rollout_func = imported("rollout_func", script_args.rollout_func)
    reward_funcs = named_reward_funcs(script_args)
    mixture = ", ".join(str(part.data_files or part.path) for part in dataset_args.datasets)
    # for messages: what is loaded, under the name of its option
    loaded = {"datasets": mixture} if mixture else {"dataset_name": script_args.dataset_name}
    with user_errors(only_loads=True, **loaded):
        train_dataset, eval_dataset = load_training_data(
            script_args,
            dataset_args,
            evaluates=training_args.eval_strategy != "no",
            has_template=tokenizer.chat_template is not None,
        )
    if not reward_funcs:
        reward_funcs = reward_functions([default_reward(train_dataset.column_names or [])])
    deciding = deciding_function(training_args.correctness_func, reward_funcs)
    if callable(deciding):
        training_args.correctness_func = None  # the name of a function, which the trainer gets itself
    # streams are read only while training, and a rollout function or a transform may add golds later
    has_golds = isinstance(train_dataset, Dataset) and "solution" in train_dataset.column_names
    reads_golds = any(reward in OWN_REWARDS for reward in [*reward_funcs, deciding])
    if has_golds and reads_golds:
        with_readable_solutions(train_dataset, "the data set")  # raises if there is a gold that cannot be read
    efforts = mapping_field("efforts", script_args.efforts)
    template_kwargs = mapping_field("effort_template_kwargs", script_args.effort_template_kwargs)
    if efforts is not None:
        train_dataset = with_efforts(train_dataset, efforts, script_args.effort_suffix, template_kwargs)
        if eval_dataset is not None:
            eval_dataset = with_efforts(eval_dataset, efforts, script_args.effort_suffix, template_kwargs)
    elif template_kwargs is not None:
        raise ValueError("effort_template_kwargs is set, but efforts is not; set the target of each effort")
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    trainer = LeashGRPOTrainer(
        model=complete_model_path(model_args.model_name_or_path),
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
    if efforts is not None:
        question_at_each_effort = itertools.islice(trainer.train_dataset, len(efforts))
        check_efforts_differ(tokenizer, question_at_each_effort, **trainer.chat_template_kwargs)
    has_progress_bar = trainer.pop_callback(ProgressCallback) is not None
    if has_progress_bar:
        trainer.add_callback(LeashProgressCallback())
    return trainer


def run_training(recipe: dict[str, Any], script_args, training_args, model_args, dataset_args) -> LeashGRPOTrainer:
    """Trains; saves the model with state, card and recipe, which every checkpoint has too; and pushes to the Hub if
    requested."""
    folder = training_args.output_dir
    with user_errors(
        model_name_or_path=model_args.model_name_or_path,
        reward_model_name_or_path=script_args.reward_model_name_or_path,
    ):
        check_writable(recipe.get("output_dir", folder))
        checkpoint = _checkpoint_to_resume(training_args)
        trainer = build_trainer(script_args, training_args, model_args, dataset_args)
    first_row = next(iter(trainer.train_dataset))
    suffix = script_args.prompt_suffix
    if suffix is None:
        suffix = default_suffix(named_reward_funcs(script_args), columns=first_row)
    trainer.publisher.recipe = recorded(recipe, suffix, first_row["prompt"])
    trainer.publisher.draw = write_curves
    with resumable(folder, f"resume from the last checkpoint in {folder} with --resume_from_checkpoint true"):
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except Exception as error:
            close_progress_bar(trainer)
            mistake = mistake_of_user(error, trainer, checkpoint)
            if mistake is None:
                raise
            raise mistake from error
        if training_args.push_to_hub:
            with user_errors(hub_model_id=trainer.hub_model_id):
                trainer.push_to_hub(dataset_name=script_args.dataset_name)  # saves the model first
        else:
            trainer.save_model(folder)
            trainer.create_model_card(dataset_name=script_args.dataset_name)
    return trainer


def close_progress_bar(trainer: LeashGRPOTrainer) -> None:
    """Ends the line of the progress bar, so that an error begins in a line of its own."""
    bar = getattr(trainer.pop_callback(LeashProgressCallback), "training_bar", None)
    if bar is not None:
        bar.close()


def mistake_of_user(error: Exception, trainer: LeashGRPOTrainer, checkpoint: str | bool) -> UserError | None:
    """Returns what to say of an error that is the user's mistake, and `None` for any other error, a bug.

    The user's mistakes are weights that are not finite, errors of reward functions, and errors of TRL and other
    libraries before the first policy update.
    """
    if isinstance(error, FloatingPointError):
        return UserError(str(error))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]  # the innermost is the last
    packages = [frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames]
    functions = [frame.f_code.co_qualname for frame in frames]
    # TRL: GRPOTrainer._calculate_rewards calls the reward functions and makes tensors of rewards; accelerate gathers
    caller = "GRPOTrainer._calculate_rewards"
    if caller in functions and packages[functions.index(caller) + 1 :][:1] != ["accelerate"]:
        return mistake_of_rewards(error, trainer, packages)
    is_before_first_update = trainer.state.global_step <= trainer._num_done
    is_from_library = isinstance(error, ValueError | ImportError) and packages[-1] in UPSTREAM
    if not (is_before_first_update and is_from_library):
        return None
    if checkpoint:
        return UserError(f"resume_from_checkpoint is {checkpoint!r}: {one_line(error)}")
    return UserError(one_line(error))


def mistake_of_rewards(error: Exception, trainer: LeashGRPOTrainer, packages: Sequence[str]) -> UserError:
    """Returns what to say of an error of the reward functions, after it printed the part of the traceback in them.

    Args:
        error (`Exception`), trainer (`LeashGRPOTrainer`): The error, and the trainer that called the functions.
        packages (`Sequence[str]`): Package of each frame of the traceback, the innermost last.
    """
    message = f"calling reward_funcs {', '.join(trainer.reward_func_names)}: {one_line(error)}"
    num_frames_inside = packages[::-1].index("trl")  # frames after the last one of TRL
    if num_frames_inside == 0:  # TRL itself could not call the functions or read what they returned
        return UserError(
            f"{message}; each must take all columns of the data set and return a number or None for each completion"
        )
    traceback.print_exception(error, limit=-num_frames_inside, chain=False)
    return UserError(message)


def closing_line(
    statistics: Mapping[str, float], log_history: Sequence[Mapping[str, Any]], length_of: str = "completion"
) -> str:
    """Returns what a training came to: the state of the method, accuracy and length, or another cost (`length_of`), in
    the first and in the last batches, as in reports, and whether the last batches had no signal.

    Where it is not known which answers are correct, the task reward replaces accuracy.
    """
    state = " ".join(f"{name}={value:.4g}" for name, value in statistics.items())
    parts = [f"Trained to {state}" if state else "Trained"]
    columns = ["step", "leash/mean_length", "leash/accuracy", "leash/task_reward", "leash/zero_signal_share"]
    log = pd.DataFrame(log_history, columns=columns).dropna(subset="leash/mean_length")
    if log.empty:
        return parts[0]
    log["first_step"] = log["step"].shift(fill_value=0) + 1  # an entry covers all updates since the one before it
    first, last = ends(log)
    for rows in (first, last):
        means = rows.mean()
        if math.isnan(means["leash/accuracy"]):
            score = f"reward {means['leash/task_reward']:.3f}"
        else:
            score = f"accuracy {means['leash/accuracy']:.3f}"
        length = format_cost(means["leash/mean_length"], length_of)
        updates = f"updates {rows['first_step'].iloc[0]} to {rows['step'].iloc[-1]}"
        parts.append(f"{score} and {length} {label_of(length_of)} in {updates}")
    if (last["leash/accuracy"] == 0).all():
        parts.append("no answer in the last updates was correct")
    if (last["leash/zero_signal_share"] == 1).all():
        parts.append("no group of answers in the last updates had a signal to learn from")
    return "; ".join(parts)


def main(argv: list[str]) -> int:
    """Trains the model of a recipe and prints what the training came to."""
    process.ignore_future_warnings("transformers|trl|leash_trl")
    process.warn_in_one_line("leash train")
    process.silence_experimental_notices()
    recipe = given_fields(argv)
    if not recipe.get("model_name_or_path") or not (recipe.get("dataset_name") or recipe.get("datasets")):
        raise UserError(f"give --model_name_or_path and --dataset_name, or --config, such as {DEFAULT_RECIPE}")
    trainer = run_training(recipe, *arguments_of(recipe))
    line = closing_line(trainer.length_control.statistics(), trainer.state.log_history, trainer.args.length_of)
    trainer.accelerator.print(f"{line}; model is in {trainer.args.output_dir}")
    return 0
