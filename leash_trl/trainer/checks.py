"""Checks for mistakes that would otherwise go unnoticed, in a run's data, prompts, context length and first batch.

Streaming data sets and data sets with an on-the-fly transform are not checked.
"""

import inspect
import math
import warnings
from collections.abc import Sequence
from heapq import nlargest
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from leash_trl.data.prompts import check_not_blank
from leash_trl.engines.shrinking_batch import shrinking_rollout
from leash_trl.errors import TrainingError
from leash_trl.length_control.correctness import CorrectnessRule
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts
from leash_trl.length_control.targets import TARGET_COLUMN, check_thinking_ends, row_target
from leash_trl.model_facts import context_length
from leash_trl.trainer.effect_check import no_effect_warning
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.length_controlled_reward import LengthControlledReward
from leash_trl.trainer.prompt_rows import column_values, rows_with_targets


MOST_MEASURED = 100  # number of prompts that are tokenized, those with the longest text


def check_trainer(trainer: Any) -> None:
    """Raises `ValueError` if a new trainer or its training data has a mistake; the main process warns of likely
    mistakes."""
    args = trainer.args
    if any(isinstance(function, LengthControlledReward) for function in trainer.reward_funcs):
        raise ValueError("reward_funcs holds a LengthControlledReward; pass the functions inside it instead")
    if args.temperature == 0:  # vLLM accepts it
        raise ValueError("temperature is 0, which makes all completions of a prompt the same; set it to 1")
    check_correctness(trainer.correctness, trainer.length_control, args)

    dataset = trainer.train_dataset
    column_names = None if is_transformed(dataset) else getattr(dataset, "column_names", None)
    if column_names and "prompt" not in column_names and trainer.environment_factories is None:
        raise ValueError(
            "the data set has no column prompt, the text or messages that the model gets, but the columns "
            f"{', '.join(column_names)}; rename one"
        )
    check_reward_signatures(trainer, column_names)
    if isinstance(dataset, Dataset) and not is_transformed(dataset) and len(dataset) > 0:
        check_rows(trainer, dataset)


def check_rows(trainer: Any, dataset: Dataset) -> None:
    """Raises `ValueError` if a column that the method reads is missing, or if a row has a wrong value; the main
    process warns of likely mistakes in prompts."""
    args = trainer.args
    method = trainer.length_control
    columns_read = list(method.columns_read())
    missing = sorted(set(columns_read) - set(dataset.column_names))
    if missing:
        raise ValueError(
            f"length_control {method.name!r} reads {', '.join(missing)}, which is not among the columns of the data "
            f"set: {', '.join(dataset.column_names)}; add it"
        )
    if TARGET_COLUMN in dataset.column_names:
        check_row_targets(dataset, method, args)
    rows = list(dataset.select_columns(columns_read)) if columns_read else []
    _warn(args, method.check_columns(column_values(rows, columns_read, args.target_length)))

    has_prompts_of_rows = (
        "prompt" in dataset.column_names
        and trainer.rollout_func in (None, shrinking_rollout)  # others may write prompts of their own
        and trainer.environment_factories is None
    )
    if has_prompts_of_rows:
        check_not_blank(dataset)
        # a processor turns an image into more tokens than its placeholder has
        if isinstance(trainer.processing_class, PreTrainedTokenizerBase):
            for warning in prompt_warnings(trainer):
                _warn(args, warning)


def is_transformed(dataset: Any) -> bool:
    """Returns whether a transform of the user's makes the rows of a data set, whose columns are then not known."""
    return isinstance(dataset, Dataset) and dataset.format["type"] == "custom"


def check_reward_signatures(trainer: Any, column_names: Sequence[str] | None) -> None:
    """Raises `ValueError` if a reward function cannot take the arguments that TRL calls it with, before anything is
    generated. Arguments that may come from columns that are not known are not missed."""
    # TRL: GRPOTrainer._calculate_rewards passes these and all columns but those of TRL's own
    passed = ["prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"]
    not_passed_as_columns = ["prompt", "completion", *passed]
    passed += [name for name in column_names or [] if name not in not_passed_as_columns]
    if trainer.environment_factories is not None:
        passed.append("environments")
    # a rollout function may add columns
    knows_all_columns = column_names is not None and trainer.rollout_func in (None, shrinking_rollout)
    for function, name in zip(trainer.reward_funcs, trainer.reward_func_names, strict=True):
        if isinstance(function, torch.nn.Module):
            continue
        try:
            signature = inspect.signature(function)
        except ValueError:  # a function without a signature, such as one that is written in C
            continue
        bind = signature.bind if knows_all_columns else signature.bind_partial
        try:
            bind(**dict.fromkeys(passed))
        except TypeError as error:
            raise ValueError(
                f"reward_funcs holds {name!r}, which cannot take the arguments and columns that TRL passes ({error}): "
                f"{', '.join(passed)}; it must name those that it needs, and take **kwargs for the others"
            ) from error


def check_correctness(correctness: CorrectnessRule, method: LengthControl, args: LeashGRPOConfig) -> None:
    """Raises `TrainingError` if the method needs to know which answers are correct, and that is not known; the main
    process warns, once, if it is not known."""
    correctness.check(method)
    _warn(args, correctness.problem())


def before_training(trainer: Any) -> None:
    """Checks what matters only for training: enough rows for a policy update, and a method that can act."""
    args = trainer.args
    check_size(trainer.train_dataset, args)
    warning = no_effect_warning(
        trainer.length_control, args.target_length, args.generation_limit, num_generations=args.num_generations
    )
    _warn(args, warning)


def check_first_batch(rollouts: Rollouts, method: LengthControl, args: LeashGRPOConfig) -> None:
    """Warns if every completion of all processes is truncated, or if the scale of the rewards does not suit the
    method; raises `TrainingError` if none of them has `thinking_end`."""
    check_thinking_ends(rollouts, args.thinking_end)
    _warn(args, method.reward_warning(rollouts))
    # truncation is intended where the method itself lowers the generation limit
    is_limit_of_run = rollouts.max_completion_length >= args.generation_limit
    if is_limit_of_run and rollouts.is_truncated.all():
        _warn(
            args,
            f"max_completion_length={rollouts.max_completion_length} cut all {len(rollouts.lengths)} completions of "
            "the first batch: raise it, or correct eos_token_id in generation_config.json",
        )


def _warn(args: LeashGRPOConfig, warning: str | None) -> None:
    """Warns on the main process, unless there is nothing to warn of."""
    if warning is not None and args.process_index == 0:
        warnings.warn(warning, UserWarning, stacklevel=4)


def check_row_targets(dataset: Dataset, method: LengthControl, args: LeashGRPOConfig) -> None:
    """Raises `ValueError` if a row's own target is not a length, or is not allowed as `target_length`."""
    for row, value in enumerate(dataset[TARGET_COLUMN]):
        try:
            target = row_target({TARGET_COLUMN: value})
            if target is not None:
                args.check_target(target, method)
        except ValueError as error:
            raise ValueError(f"row {row} of the data set, column {TARGET_COLUMN}: {error}") from error


def check_size(dataset: Any, args: LeashGRPOConfig) -> None:
    """Raises `TrainingError` if the data set is too small for one policy update, where TRL would silently not
    train."""
    num_prompts = args.generation_batch_size // args.num_generations
    if isinstance(dataset, Dataset) and len(dataset) < num_prompts:
        raise TrainingError(f"the data set has {len(dataset)} rows, but a batch needs {num_prompts}; add rows")


def prompt_warnings(trainer: Any) -> list[str]:
    """Returns warnings of prompts, in the form the model gets them, that lack the chat template, close the thinking,
    or leave too little context for the completion."""
    args = trainer.args
    dataset = trainer.train_dataset
    rows = [dataset[index] for index in _longest_prompts(dataset)]
    rows_of_model, _, _ = rows_with_targets(
        rows,
        trainer.length_control,
        current_target=args.target_at(0),
        target_length=args.target_length,
        generation_limit=args.generation_limit,
    )
    prompts = [row["prompt"] for row in rows_of_model]
    if isinstance(prompts[0], str):
        added_text = prompts[0].removeprefix(rows[0]["prompt"])  # by the method
        template_warning = _string_warning(trainer, prompts[0], added_text)
        context_warning = _context_warning(trainer, prompts, add_special_tokens=True)
    else:
        texts = _with_chat_template(trainer, prompts)  # which hold special tokens
        template_warning = _closed_thinking_warning(trainer, texts[0])
        context_warning = _context_warning(trainer, texts, add_special_tokens=False)
    return [warning for warning in (template_warning, context_warning) if warning is not None]


def _longest_prompts(dataset: Dataset) -> list[int]:
    """Returns the rows whose prompts have the longest text, the longest first; at most `MOST_MEASURED`."""
    sizes = []
    for batch in dataset.select_columns("prompt").iter(1000):  # prompts are not kept in memory
        sizes += [len(str(prompt)) for prompt in batch["prompt"]]
    return nlargest(MOST_MEASURED, range(len(sizes)), key=lambda index: sizes[index])


def _with_chat_template(trainer: Any, prompts: Sequence[Any]) -> list[str]:
    """Returns the texts that the chat template makes of messages, as TRL does."""
    texts: list[str] = trainer.processing_class.apply_chat_template(
        list(prompts),
        tools=trainer.tools or None,
        chat_template=trainer.chat_template,
        tokenize=False,
        add_generation_prompt=True,
        **trainer.chat_template_kwargs,
    )
    return texts


def _string_warning(trainer: Any, prompt: str, added_text: str) -> str | None:
    """Returns a warning of string prompts if no chat template wrote them, or if the method adds text after what it
    wrote."""
    tokenizer = trainer.processing_class
    # a chat template writes special tokens into its text
    is_written_by_template = any(token in prompt for token in tokenizer.get_added_vocab())
    lacks_template = tokenizer.chat_template is not None and not is_written_by_template
    if not (added_text or lacks_template):
        return None
    return (
        f"prompts are strings, which get no chat_template, and end with {added_text!r}: turn them into messages with "
        "train_dataset.map(leash_trl.data.as_conversation)"
    )


def _closed_thinking_warning(trainer: Any, prompt: str) -> str | None:
    if not trainer.thinking_markers.is_closed_by(prompt):
        return None
    return (
        f"chat_template_kwargs is {trainer.chat_template_kwargs}, which turns thinking off; Qwen3 needs "
        "enable_thinking: true"
    )


def _context_warning(trainer: Any, prompts: list[str], add_special_tokens: bool) -> str | None:
    """Returns a warning if a prompt and the longest completion do not fit into the context together."""
    args = trainer.args
    token_ids = trainer.processing_class(prompts, add_special_tokens=add_special_tokens)["input_ids"]
    longest = max(len(ids) for ids in token_ids)
    contexts = [context_length(trainer.model.config)]
    if args.use_vllm:
        contexts.append(args.vllm_max_model_length)
    context = min([length for length in contexts if length], default=math.inf)  # those that are known
    limit = args.generation_limit
    shortest_needed = limit if limit < math.inf else 1  # without a limit, the context ends the completion
    if longest + shortest_needed <= context:
        return None
    return f"max_completion_length={limit} and a prompt of {longest} tokens exceed the context of {context}"
