"""Checks for mistakes that would otherwise go unnoticed, in a run's data, prompts and context length.

The rows of streaming data sets, and of data sets with an on-the-fly transform, are not checked.
"""

import math
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from leash_trl.completions.costs import check_right_answers
from leash_trl.completions.prompts import TEMPLATE_COLUMN, template_arguments
from leash_trl.data.prompts import check_prompts_not_blank
from leash_trl.engines.shrinking_batch import shrinking_rollout
from leash_trl.errors import TrainingError
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.targets import TARGET_COLUMN, row_target
from leash_trl.model_facts import context_length
from leash_trl.trainer.batch_checks import check_correctness, warn_if_any
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.prompt_rows import columns_of_rows, row_columns


def check_trainer(trainer: Any) -> None:
    """Raises `ValueError` if a new trainer or its training data has a mistake; the main process warns of likely
    mistakes."""
    check_correctness(trainer.correctness, trainer.length_control, trainer.args)
    if trainer.args.length_of == "checking" and trainer.tools:
        raise ValueError(
            "length_of is 'checking', but the trainer has tools, whose output may hold the correct answer; set "
            "'tool_calls' or a function"
        )
    warn_if_any(trainer.args, context_warning(trainer))
    dataset = trainer.train_dataset
    if isinstance(dataset, Dataset) and len(dataset) > 0:
        # After `Dataset.set_transform`, rows are made when they are read, perhaps differently each time.
        is_transformed = dataset.format["type"] == "custom"
        if not is_transformed:
            check_rows(trainer, dataset)


def context_warning(trainer: Any) -> str | None:
    """Returns a warning if completions may fill the context of the model or engine, so that no prompt fits beside the
    longest one."""
    limit = trainer.args.generation_limit
    # A context that the model or the configuration does not state is None.
    contexts = [context_length(trainer.model.config)]
    if trainer.args.use_vllm:
        contexts.append(trainer.args.vllm_max_model_length)
    context = min(filter(None, contexts), default=math.inf)
    if not context <= limit < math.inf:
        return None
    return f"max_completion_length={limit} and a prompt exceed the context of {context} tokens"


def check_rows(trainer: Any, dataset: Dataset) -> None:
    """Raises `ValueError` if a column that the method reads is missing, or if a row has a wrong value; the main
    process warns of likely mistakes in prompts."""
    args = trainer.args
    check_columns_of_method(dataset, trainer.length_control, args)
    if TARGET_COLUMN in dataset.column_names:
        check_row_targets(dataset, trainer.length_control, args)
    if TEMPLATE_COLUMN in dataset.column_names:
        check_template_arguments(trainer, dataset)
    if args.length_of == "checking":
        check_right_answers(dataset["solution"])
    # Environments, and rollout functions of the user, may write other prompts than those of the rows.
    renders_prompts = trainer.rollout_func in (None, shrinking_rollout) and trainer.environment_factories is None
    if renders_prompts and "prompt" in dataset.column_names:
        check_prompts_not_blank(dataset)
        warn_if_any(args, prompt_warning(trainer))


def check_columns_of_method(dataset: Dataset, method: LengthControl, args: LeashGRPOConfig) -> None:
    """Raises `ValueError` if a column that the method reads is missing or has a wrong value; the main process issues
    the warning that the method's `check_columns` returns."""
    names = list(method.columns_read())
    missing = sorted(set(names) - set(dataset.column_names))
    if missing:
        raise ValueError(
            f"length_control {method.name!r} reads {', '.join(missing)}, which is not among the columns of the data "
            f"set: {', '.join(dataset.column_names)}; add it"
        )
    if names:
        rows = [row_columns(row, names, args.target_length) for row in dataset.select_columns(names)]
        warn_if_any(args, method.check_columns(columns_of_rows(rows, names)))


def check_row_targets(dataset: Dataset, method: LengthControl, args: LeashGRPOConfig) -> None:
    """Raises `ValueError` if a row's own target is not a positive number, or is not allowed as `target_length`."""
    for row in dataset.select_columns(TARGET_COLUMN):
        target = row_target(row)
        if target is not None:
            args.check_target_and_milestones(target, method)


def check_template_arguments(trainer: Any, dataset: Dataset) -> None:
    """Raises `ValueError` if the rows have arguments of the chat template, but an `environment_factory` prevents their
    use; the main process warns of arguments that the template does not read."""
    if trainer.environment_factories is not None:
        raise ValueError(
            f"the data set has a column {TEMPLATE_COLUMN}, but with an environment_factory all prompts are rendered "
            f"with the same arguments; remove the column, or set {TEMPLATE_COLUMN} of the configuration"
        )
    ignored = ignored_arguments(dataset, str(trainer.chat_template or trainer.processing_class.chat_template))
    if ignored:
        warn_if_any(
            trainer.args,
            f"{TEMPLATE_COLUMN} has {', '.join(ignored)}, which the chat template of this model does not read; remove "
            "the argument, or use a name that the template reads",
        )


def ignored_arguments(dataset: Dataset, template: str) -> list[str]:
    """Returns the arguments of rows, such as `enable_thinking`, that a chat template does not read.

    Args:
        template (`str`): The template. If a tokenizer has several, the text of all of them, which shows whether any
            reads an argument.
    """
    names: set[str] = set()
    for row in dataset.select_columns(TEMPLATE_COLUMN):
        names.update(template_arguments(row))
    return [name for name in sorted(names) if name not in template]


def check_enough_rows(dataset: Any, args: LeashGRPOConfig) -> None:
    """Raises `TrainingError` if the data set is too small for one policy update, where TRL would silently not
    train."""
    # TRL drops an incomplete batch at the end of an epoch, which would be the only batch here.
    num_prompts = args.generation_batch_size // args.num_generations
    if isinstance(dataset, Dataset) and len(dataset) < num_prompts:
        raise TrainingError(f"the data set has {len(dataset)} rows, but a batch needs {num_prompts}; add rows")


def prompt_warning(trainer: Any) -> str | None:
    """Returns a warning if the prompts, judged by the first one, are strings that no chat template has written, or
    strings to which the method appends text."""
    prompt = trainer.train_dataset[0]["prompt"]
    tokenizer = trainer.processing_class
    if not isinstance(prompt, str) or not isinstance(tokenizer, PreTrainedTokenizerBase):
        return None
    args = trainer.args
    # If a template has written the prompt, text that the method appends would stand in the answer of the model.
    added_text = trainer.length_control.prompt_suffix(args.target_length, args.generation_limit)
    # A chat template writes tokens such as <|im_start|>, which were added to the vocabulary, into its text.
    is_written_by_template = any(token in prompt for token in tokenizer.get_added_vocab())
    lacks_template = tokenizer.chat_template is not None and not is_written_by_template
    if not (added_text or lacks_template):
        return None
    ending = f" and end with {added_text!r}" if added_text else ""
    return (
        f"prompts are strings, which get no chat_template{ending}; turn them into messages with "
        "train_dataset.map(leash_trl.data.as_conversation)"
    )
