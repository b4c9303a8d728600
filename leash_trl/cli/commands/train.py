"""`leash train`: TRL's GRPO script with `LeashGRPOTrainer`, `math_reward` and the gym."""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from datasets import Dataset
from transformers import AutoProcessor, ProgressCallback
from trl import get_dataset, get_peft_config, get_quantization_config

from leash_trl import process
from leash_trl.cli.arguments import DEFAULT_RECIPE
from leash_trl.cli.errors import UserError, add_resume_hint, create_writable_folder, errors_to_user_errors
from leash_trl.cli.training_arguments import arguments_of, fields_of_command_line
from leash_trl.comparison.curves import first_and_last_batches
from leash_trl.completions.costs import cost_label
from leash_trl.data.efforts import check_efforts_differ, with_efforts
from leash_trl.data.problems import errors_with_file_name, load_training_rows
from leash_trl.data.prompts import contains_suffix
from leash_trl.data.readable_solutions import with_readable_solutions
from leash_trl.evaluation.tables import format_cost
from leash_trl.figures.training import write_curves_figure
from leash_trl.importing import import_by_path
from leash_trl.length_control.method import LengthControl
from leash_trl.model_paths import complete_model_path
from leash_trl.paths import existing_path, path_or_hub_id
from leash_trl.reward_functions import (
    LEASH_MATH_REWARDS,
    default_reward_name,
    find_correctness_func,
    find_reward_functions,
    named_reward_funcs,
    suffix_or_default,
)
from leash_trl.run_folder import complete_checkpoints
from leash_trl.saved_recipe import field_as_mapping
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer
from leash_trl.trainer.progress_bar import LeashProgressCallback


def with_used_suffix(recipe: dict[str, Any], suffix: str, prompt: Any) -> dict[str, Any]:
    """Returns a recipe with the suffix that prompts got, which evaluation takes from there and the card shows.

    Prompts that are messages got none: an option that had no effect is recorded as empty, and a default not at all.

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
    """Returns the rows to train on and those to evaluate on, or `None`, of a mixture, a named source, a file, a folder
    or a Hub id."""
    source = script_args.dataset_name
    if dataset_args.datasets:
        # A mixture replaces `dataset_name`. `path_or_hub_id` refuses a path that does not exist, which TRL would look
        # for on the Hub.
        for part in dataset_args.datasets:
            part.path = path_or_hub_id(part.path, "path in datasets")
        with errors_with_file_name("a part of the mixture"):
            source = get_dataset(dataset_args)
    return load_training_rows(
        source,
        script_args.dataset_train_split,
        script_args.dataset_test_split if evaluates else None,
        config=script_args.dataset_config,
        streaming=script_args.dataset_streaming,
        # A function of the columns, which decide on the default, and are known only after loading.
        suffix=partial(suffix_or_default, script_args.prompt_suffix, named_reward_funcs(script_args)),
        has_chat_template=has_template,
        system_prompt=script_args.system_prompt,
    )


def _checkpoint_to_resume(training_args: LeashGRPOConfig) -> str | bool:
    """Returns `True` for the last checkpoint, `False` for none, or the path of a checkpoint, for the text of the
    option."""
    # The option is a text such as "true" or a path, also where a recipe has a truth value or null.
    requested = str(training_args.resume_from_checkpoint)
    if requested.lower() == "true":
        return True
    if requested.startswith("hf://"):  # a checkpoint on the Hub
        return requested
    if requested.lower() not in ("none", "false"):
        return existing_path(requested, "resume_from_checkpoint")
    # Without the option, a new run starts, which would overwrite the checkpoints of an earlier one.
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


def build_trainer(script_args, training_args: LeashGRPOConfig, model_args, dataset_args) -> LeashGRPOTrainer:
    """Returns the trainer that the arguments describe, with its model and data loaded."""
    tokenizer = load_tokenizer(script_args, training_args, model_args)
    rollout_func = None
    if script_args.rollout_func:
        rollout_func = import_by_path("rollout_func", script_args.rollout_func)
    mixture = ", ".join(str(part.data_files or part.path) for part in dataset_args.datasets)
    # The data by the name of its option, for messages, such as {"dataset_name": "gym"}.
    loaded = {"datasets": mixture} if mixture else {"dataset_name": script_args.dataset_name}
    with errors_to_user_errors(always_names_option=True, **loaded):
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
    # Golds that cannot be read are refused before the training. Streams are read only during it, and data without a
    # column of golds may get them later, by a rollout function or a transform.
    has_golds = isinstance(train_dataset, Dataset) and "solution" in train_dataset.column_names
    if has_golds and any(reward in LEASH_MATH_REWARDS for reward in [*reward_funcs, correctness_func]):
        with_readable_solutions(train_dataset, "the data set")  # raises if there is a gold that cannot be read
    # The trainer takes a function itself as its argument, and the name of a reward model from its configuration.
    if callable(correctness_func):
        training_args.correctness_func = None
    else:
        correctness_func = None
    efforts = field_as_mapping("efforts", script_args.efforts)
    template_kwargs = field_as_mapping("effort_template_kwargs", script_args.effort_template_kwargs)
    if template_kwargs is not None and efforts is None:
        raise ValueError("effort_template_kwargs is set, but efforts is not; set the target of each effort")
    if efforts is not None:
        train_dataset = with_efforts(train_dataset, efforts, script_args.effort_suffix, template_kwargs)
        if eval_dataset is not None:
            eval_dataset = with_efforts(eval_dataset, efforts, script_args.effort_suffix, template_kwargs)
    # Fields of TRL's `ModelConfig` with which TRL's own scripts load the model; those of the configuration win.
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    trainer = LeashGRPOTrainer(
        model=complete_model_path(model_args.model_name_or_path),
        reward_funcs=reward_funcs,
        correctness_func=correctness_func,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
        rollout_func=rollout_func,
    )
    if efforts is not None:
        # The rows take turns, so the first rows are the first question at each effort.
        question_at_each_effort = itertools.islice(trainer.train_dataset, len(efforts))
        check_efforts_differ(tokenizer, question_at_each_effort, **trainer.chat_template_kwargs)
    # Our progress bar replaces that of transformers, which is missing if the user disabled it.
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(LeashProgressCallback())
    return trainer


def run_training(recipe: dict[str, Any], script_args, training_args, model_args, dataset_args) -> LeashGRPOTrainer:
    """Trains; saves the model with state, card and recipe, which every checkpoint has too; and pushes to the Hub if
    requested."""
    folder = training_args.output_dir
    with errors_to_user_errors(
        model_name_or_path=model_args.model_name_or_path,
        reward_model_name_or_path=script_args.reward_model_name_or_path,
    ):
        # For null, transformers would use the folder `trainer_output`; the recipe's own value is checked instead.
        create_writable_folder(recipe.get("output_dir", folder))
        checkpoint = _checkpoint_to_resume(training_args)
        trainer = build_trainer(script_args, training_args, model_args, dataset_args)
    # A row shows the columns of the data, and whether its prompts are text, which gets the suffix, or messages.
    first_row = next(iter(trainer.train_dataset))
    suffix = suffix_or_default(script_args.prompt_suffix, named_reward_funcs(script_args), columns=first_row)
    # With every model and checkpoint, the publisher saves the recipe and a card with curves.
    trainer.publisher.recipe = with_used_suffix(recipe, suffix, first_row["prompt"])
    trainer.publisher.draw = write_curves_figure
    with add_resume_hint(folder, f"resume from the last checkpoint in {folder} with --resume_from_checkpoint true"):
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        finally:
            close_progress_bar(trainer)
        if training_args.push_to_hub:
            with errors_to_user_errors():
                trainer.push_to_hub(dataset_name=script_args.dataset_name)  # saves the model first
        else:
            trainer.save_model(folder)
            trainer.create_model_card(dataset_name=script_args.dataset_name)
    return trainer


def close_progress_bar(trainer: LeashGRPOTrainer) -> None:
    """Ends the line of the progress bar, so that an error begins in a line of its own."""
    # The callback is `None` if the user disabled the bar, and its bar is `None` if the training did not begin.
    bar = getattr(trainer.pop_callback(LeashProgressCallback), "training_bar", None)
    if bar is not None:
        bar.close()


def method_state_text(method: LengthControl, log_history: Sequence[Mapping[str, Any]]) -> str:
    """Returns the state of a method, such as `"lambda=0.25"`, of each budget that was logged if there are several;
    empty if the method has no state."""
    prefix = "leash/mean_length/"  # such as `leash/mean_length/low`
    keys = {key for entry in log_history for key in entry}
    budgets = sorted(key.removeprefix(prefix) for key in keys if key.startswith(prefix))
    states = []
    for budget in budgets:
        for name, value in method.budget_statistics(budget).items():
            states.append(f"{name}={value:.4g} for {budget}")
    if states:
        return ", ".join(states)
    # There is one budget, or the state is that of all budgets.
    return " ".join(f"{name}={value:.4g}" for name, value in method.statistics().items())


def closing_line(
    method: LengthControl, log_history: Sequence[Mapping[str, Any]], length_of: str = "completion"
) -> str:
    """Returns what a training came to: the state of the method, accuracy and length, or another cost (`length_of`), in
    the first and in the last batches, as in reports, and whether the last batches had no signal.

    Where it is not known which answers are correct, the task reward replaces accuracy.
    """
    state = method_state_text(method, log_history)  # such as "lambda=0.25"; empty if the method has no state
    parts = [f"Trained to {state}" if state else "Trained"]
    # The history also has entries of evaluations, without these columns; they are dropped.
    columns = ["step", "leash/mean_length", "leash/accuracy", "leash/task_reward", "leash/zero_signal_share"]
    log = pd.DataFrame(log_history, columns=columns).dropna(subset="leash/mean_length")
    if log.empty:
        return parts[0]
    # An entry covers all updates since the entry before it.
    log["first_step"] = log["step"].shift(fill_value=0) + 1
    first, last = first_and_last_batches(log)  # rows of `log`, ten each if there are so many
    for rows in (first, last):
        means = rows.mean()
        # Accuracy is not logged if it is not known which answers are correct.
        if math.isnan(means["leash/accuracy"]):
            score = f"reward {means['leash/task_reward']:.3f}"
        else:
            score = f"accuracy {means['leash/accuracy']:.3f}"
        length = format_cost(means["leash/mean_length"], length_of)
        updates = f"updates {rows['first_step'].iloc[0]} to {rows['step'].iloc[-1]}"
        parts.append(f"{score} and {length} {cost_label(length_of)} in {updates}")
    if (last["leash/accuracy"] == 0).all():
        parts.append("no answer in the last updates was correct")
    # the share of groups whose advantages are all 0
    if (last["leash/zero_signal_share"] == 1).all():
        parts.append("no group of answers in the last updates had a signal to learn from")
    return "; ".join(parts)


def main(argv: list[str]) -> int:
    """Trains the model of a recipe and prints what the training came to."""
    process.ignore_future_warnings("transformers|trl|leash_trl")  # those of other packages may concern the user's code
    process.warn_in_one_line("leash train")
    process.silence_experimental_notices()
    recipe = fields_of_command_line(argv)
    if not recipe.get("model_name_or_path") or not (recipe.get("dataset_name") or recipe.get("datasets")):
        raise UserError(f"give --model_name_or_path and --dataset_name, or --config, such as {DEFAULT_RECIPE}")
    trainer = run_training(recipe, *arguments_of(recipe))
    line = closing_line(trainer.length_control, trainer.state.log_history, trainer.args.length_of)
    trainer.accelerator.print(f"{line}; model is in {trainer.args.output_dir}")
    return 0
