"""`leash train`: TRL's GRPO script with `LeashGRPOTrainer`, `math_reward` and the gym."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from datasets import Dataset
from transformers import AutoProcessor, ProgressCallback
from trl import get_dataset, get_peft_config, get_quantization_config

from leash_trl import process
from leash_trl.cli.arguments import DEFAULT_RECIPE
from leash_trl.cli.errors import UserError, add_resume_hint, create_writable_folder, errors_to_user_errors
from leash_trl.cli.training_arguments import arguments_of, fields_of_command_line
from leash_trl.data.efforts import check_efforts_differ, with_efforts
from leash_trl.data.problems import load_training_rows
from leash_trl.data.prompts import contains_suffix
from leash_trl.data.readable_solutions import with_readable_solutions
from leash_trl.figures.training import write_curves_figure
from leash_trl.importing import import_by_path
from leash_trl.model_paths import complete_model_path
from leash_trl.paths import existing_path
from leash_trl.reward_functions import (
    LEASH_MATH_REWARDS,
    default_reward_name,
    find_correctness_func,
    find_reward_functions,
    named_reward_funcs,
    suffix_or_default,
)
from leash_trl.run_folder import complete_checkpoints
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer
from leash_trl.trainer.progress_bar import LeashProgressCallback


def with_used_suffix(recipe: dict[str, Any], suffix: str, prompt: Any) -> dict[str, Any]:
    """Returns a recipe with the suffix that prompts got. Evaluations take the suffix from the recipe, and the card
    shows it.

    Prompts that are messages get no suffix. If the user set one, it is recorded as empty; a default is not recorded.

    Args:
        recipe (`dict`): Fields of the recipe.
        suffix (`str`): Text that training appends to prompts, unless they are messages.
        prompt (`str` or `list`): A prompt as the trainer got it.
    """
    if contains_suffix(prompt, suffix):  # the prompt was text, and got the suffix
        return {**recipe, "prompt_suffix": suffix}
    if recipe.get("prompt_suffix") is None:
        return recipe
    return {**recipe, "prompt_suffix": ""}


def load_training_data(script_args, dataset_args, evaluates: bool = False, has_template: bool = True):
    """Returns the rows to train on and those to evaluate on, from a mixture, a named source, a file, a folder or a Hub
    id. Without `evaluates`, the latter are `None`."""
    parts = [str(part.data_files or part.path) for part in dataset_args.datasets]  # of a mixture
    mixture = ", ".join(parts) or None
    with errors_to_user_errors(always_names_option=True, dataset_name=script_args.dataset_name, datasets=mixture):
        return load_training_rows(
            get_dataset(dataset_args) if mixture else script_args.dataset_name,
            script_args.dataset_train_split,
            script_args.dataset_test_split if evaluates else None,
            config=script_args.dataset_config,
            streaming=script_args.dataset_streaming,
            # A function of the columns, which decide on the default, and are known only after loading.
            suffix=partial(suffix_or_default, script_args.prompt_suffix, named_reward_funcs(script_args)),
            has_chat_template=has_template,
            system_prompt=script_args.system_prompt,
        )


def checkpoint_to_resume(training_args: LeashGRPOConfig) -> str | bool:
    """Returns the checkpoint to resume from: `True` for the newest one, `False` for none, or the path of one.

    Raises:
        `ValueError`: If the path does not exist, or if a new run would overwrite the checkpoints of an earlier one.
    """
    # The option may be a text such as "true" or a path, a truth value, or `None`.
    requested = str(training_args.resume_from_checkpoint)
    if requested.lower() == "true":
        return True
    if requested.lower() not in ("none", "false"):
        is_on_hub = requested.startswith("hf://")
        return requested if is_on_hub else existing_path(requested, "resume_from_checkpoint")
    newest = next(complete_checkpoints(training_args.output_dir), None)
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
        # as GRPOTrainer loads it, if no processing class is passed
        truncation_side="left",
        padding_side="left",
    )
    if script_args.chat_template:
        tokenizer.chat_template = script_args.chat_template
    return tokenizer


def check_golds(rows: Any, functions: Sequence[Any]) -> None:
    """Raises `ValueError` if one of these functions is math_reward or lenient_math_reward and cannot read a gold:
    answers to this problem would have no reward.

    Not checked are streams, which are read only during training, and data without a column `solution`, to which a
    rollout function or a transform may add the golds later.
    """
    has_golds = isinstance(rows, Dataset) and "solution" in rows.column_names
    if has_golds and any(function in LEASH_MATH_REWARDS for function in functions):
        with_readable_solutions(rows, "the data set")


def rows_at_efforts(rows: Any, script_args) -> Any:
    """Returns every row once per effort, or unchanged if there are no efforts."""
    if rows is None or not script_args.efforts:
        return rows
    return with_efforts(rows, script_args.efforts, script_args.effort_suffix, script_args.effort_template_kwargs)


def model_init_kwargs(training_args: LeashGRPOConfig, model_args) -> dict[str, Any]:
    """Returns the arguments of `from_pretrained`: fields of TRL's `ModelConfig`, as in TRL's own scripts, replaced by
    the `model_init_kwargs` of the configuration."""
    return {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }


def build_trainer(script_args, training_args: LeashGRPOConfig, model_args, dataset_args) -> LeashGRPOTrainer:
    """Returns the trainer that the arguments describe, with its model and data loaded."""
    tokenizer = load_tokenizer(script_args, training_args, model_args)
    train_dataset, eval_dataset = load_training_data(
        script_args,
        dataset_args,
        evaluates=training_args.eval_strategy != "no",
        has_template=tokenizer.chat_template is not None,
    )
    reward_funcs = named_reward_funcs(script_args)
    if not reward_funcs:
        reward_funcs = find_reward_functions([default_reward_name(train_dataset.column_names or [])])
    correctness_func = find_correctness_func(training_args.correctness_func, reward_funcs)
    check_golds(train_dataset, [*reward_funcs, correctness_func])
    rollout_func = None
    if script_args.rollout_func:
        rollout_func = import_by_path("rollout_func", script_args.rollout_func)
    training_args.model_init_kwargs = model_init_kwargs(training_args, model_args)
    trainer = LeashGRPOTrainer(
        model=complete_model_path(model_args.model_name_or_path),
        reward_funcs=reward_funcs,
        correctness_func=correctness_func,
        args=training_args,
        train_dataset=rows_at_efforts(train_dataset, script_args),
        eval_dataset=rows_at_efforts(eval_dataset, script_args),
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
        rollout_func=rollout_func,
    )
    if script_args.efforts:
        # The rows take turns, so the first rows are the first question at each effort.
        question_at_each_effort = itertools.islice(trainer.train_dataset, len(script_args.efforts))
        check_efforts_differ(tokenizer, question_at_each_effort, **trainer.chat_template_kwargs)
    # Our progress bar replaces that of transformers, which is missing if the user disabled it.
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(LeashProgressCallback())
    return trainer


def run_training(recipe: dict[str, Any], script_args, training_args, model_args, dataset_args) -> LeashGRPOTrainer:
    """Trains, saves the model with state, card and recipe, and pushes it to the Hub if requested. Every checkpoint has
    state, card and recipe, too."""
    folder = training_args.output_dir
    create_writable_folder(folder)
    with errors_to_user_errors(
        model_name_or_path=model_args.model_name_or_path,
        reward_model_name_or_path=script_args.reward_model_name_or_path,
    ):
        checkpoint = checkpoint_to_resume(training_args)
        trainer = build_trainer(script_args, training_args, model_args, dataset_args)
    # The first row shows the columns of the data, and whether the prompts are messages, which get no suffix.
    first_row = next(iter(trainer.train_dataset))
    suffix = suffix_or_default(script_args.prompt_suffix, named_reward_funcs(script_args), columns=first_row)
    # The publisher saves the recipe and the card with every model and checkpoint.
    trainer.publisher.recipe = with_used_suffix(recipe, suffix, first_row["prompt"])
    trainer.publisher.draw = write_curves_figure
    with add_resume_hint(folder, f"resume from the last checkpoint in {folder} with --resume_from_checkpoint true"):
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        finally:
            close_progress_bar(trainer)
        publish(trainer, script_args.dataset_name)
    return trainer


def publish(trainer: LeashGRPOTrainer, dataset_name: str | None) -> None:
    """Saves the trained model and its card, and pushes them to the Hub if requested."""
    if trainer.args.push_to_hub:
        with errors_to_user_errors():
            trainer.push_to_hub(dataset_name=dataset_name)  # saves the model first
    else:
        trainer.save_model(trainer.args.output_dir)
        trainer.create_model_card(dataset_name=dataset_name)


def close_progress_bar(trainer: LeashGRPOTrainer) -> None:
    """Ends the line of the progress bar, so that an error begins in a line of its own."""
    # The callback is `None` if the user disabled the bar, and its bar is `None` if the training did not begin.
    bar = getattr(trainer.pop_callback(LeashProgressCallback), "training_bar", None)
    if bar is not None:
        bar.close()


def main(argv: list[str]) -> int:
    """Trains the model of a recipe and prints where it is."""
    process.ignore_future_warnings("transformers|trl|leash_trl")  # those of other packages may concern the user's code
    process.warn_in_one_line("leash train")
    process.silence_experimental_notices()
    recipe = fields_of_command_line(argv)
    if not recipe.get("model_name_or_path") or not (recipe.get("dataset_name") or recipe.get("datasets")):
        raise UserError(f"give --model_name_or_path and --dataset_name, or --config, such as {DEFAULT_RECIPE}")
    trainer = run_training(recipe, *arguments_of(recipe))
    folder = trainer.args.output_dir
    trainer.accelerator.print(f"The model is in {folder}; leash report {folder} shows how accuracy and length moved.")
    return 0
