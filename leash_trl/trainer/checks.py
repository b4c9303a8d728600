"""Checks for mistakes that would otherwise go unnoticed, in a run's data, prompts, context length and first batch.

Streaming data sets and data sets with an on-the-fly transform are not checked.
"""

import inspect
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import chain
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
from leash_trl.length_control.targets import TARGET_COLUMN, check_thinking_ends, own_target
from leash_trl.model_facts import context_length
from leash_trl.trainer.effect_check import no_effect_problem
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.length_controlled_reward import LengthControlledReward
from leash_trl.trainer.prompt_rows import column_values, rows_with_targets


MOST_MEASURED = 100  # number of prompts that are tokenized, those with the longest text


def check_trainer(trainer: Any) -> None:
    """Raises `ValueError` if a new trainer or its training data has a mistake; the main process warns of likely
    mistakes."""
    args, method = trainer.args, trainer.length_control
    if any(isinstance(func, LengthControlledReward) for func in trainer.reward_funcs):
        raise ValueError("reward_funcs holds a LengthControlledReward; pass the functions inside it instead")
    if args.temperature == 0:  # vLLM accepts it
        raise ValueError("temperature is 0, which makes all completions of a prompt the same; set it to 1")
    check_correctness(trainer.correctness, method, args)
    dataset = trainer.train_dataset
    column_names = None if is_transformed(dataset) else getattr(dataset, "column_names", None)
    if column_names and "prompt" not in column_names and trainer.environment_factories is None:
        raise ValueError(f"columns {column_names} lack 'prompt', the text or messages that the model gets; rename it")
    check_reward_signatures(trainer, column_names)
    if not isinstance(dataset, Dataset) or is_transformed(dataset) or len(dataset) == 0:
        return
    columns = method.columns_read()
    if missing := sorted({*columns} - {*dataset.column_names}):
        raise ValueError(f"columns {dataset.column_names} lack {missing}, which {method.name} reads; add them")
    if TARGET_COLUMN in dataset.column_names:
        check_own_targets(dataset, method, args)
    values = column_values(list(dataset.select_columns([*columns])) if columns else [], columns, args.target_length)
    _warn(args, [method.check_columns(values)])
    is_rollout_ours = trainer.rollout_func in (None, shrinking_rollout)
    if "prompt" in dataset.column_names and is_rollout_ours and trainer.environment_factories is None:
        check_not_blank(dataset)
        # a processor turns an image into more tokens than its placeholder has
        if isinstance(trainer.processing_class, PreTrainedTokenizerBase):
            _warn(args, prompt_problems(trainer))


def is_transformed(dataset: Any) -> bool:
    """Returns whether a transform of the user's makes the rows of a data set, whose columns are then not known."""
    return isinstance(dataset, Dataset) and dataset.format["type"] == "custom"


def check_reward_signatures(trainer: Any, column_names: Sequence[str] | None) -> None:
    """Raises `ValueError` if a reward function cannot take the arguments that TRL calls it with, before anything is
    generated. Arguments that may come from columns that are not known are not missed."""
    # TRL: GRPOTrainer._calculate_rewards passes these and all columns but those of TRL's own
    passed = ["prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"]
    passed += [name for name in column_names or [] if name not in ("prompt", "completion", "completion_ids", *passed)]
    if trainer.environment_factories is not None:
        passed.append("environments")
    is_all = column_names is not None and trainer.rollout_func in (None, shrinking_rollout)
    for function, name in zip(trainer.reward_funcs, trainer.reward_func_names, strict=True):
        if isinstance(function, torch.nn.Module):
            continue
        try:
            signature = inspect.signature(function)
        except ValueError:  # a function without a signature, such as one that is written in C
            continue
        bind = signature.bind if is_all else signature.bind_partial
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
    _warn(args, [correctness.problem()])


def before_training(trainer: Any) -> None:
    """Checks what matters only for training: enough rows for a policy update, and a method that can act."""
    args, method = trainer.args, trainer.length_control
    check_size(trainer.train_dataset, args)
    _warn(args, [no_effect_problem(method, args.target_length, args.generation_limit, args.num_generations)])


def check_first_batch(rollouts: Rollouts, method: LengthControl, args: LeashGRPOConfig) -> None:
    """Warns if every completion of all processes is truncated, or if the scale of the rewards does not suit the
    method; raises `TrainingError` if none of them has `thinking_end`."""
    check_thinking_ends(rollouts, args.thinking_end)
    problems = [method.reward_scale_problem(rollouts)]
    # truncation is intended where the method itself lowers the generation limit
    if rollouts.is_truncated.all() and rollouts.max_completion_length >= args.generation_limit:
        cut = f"max_completion_length={rollouts.max_completion_length} cut all {len(rollouts.lengths)} completions"
        problems.append(f"{cut} of the first batch: raise it, or correct eos_token_id in generation_config.json")
    _warn(args, problems)


def _warn(args: LeashGRPOConfig, problems: Iterable[str | None]) -> None:
    for problem in filter(None, problems):
        if args.process_index == 0:
            warnings.warn(problem, UserWarning, stacklevel=4)


def check_own_targets(dataset: Dataset, method: LengthControl, args: LeashGRPOConfig) -> None:
    """Raises `ValueError` if a row's own target is not a length, or is not allowed as `target_length`."""
    for row, value in enumerate(dataset[TARGET_COLUMN]):
        try:
            if (target := own_target({TARGET_COLUMN: value})) is not None:
                args.check_target(target, method)
        except ValueError as error:
            raise ValueError(f"row {row} of the data set, column {TARGET_COLUMN}: {error}") from error


def check_size(dataset: Any, args: LeashGRPOConfig) -> None:
    """Raises `TrainingError` if the data set is too small for one policy update, where TRL would silently not
    train."""
    needed = args.generation_batch_size // args.num_generations
    if isinstance(dataset, Dataset) and len(dataset) < needed:
        raise TrainingError(f"the data set has {len(dataset)} rows, but a batch needs {needed}; add rows")


def prompt_problems(trainer: Any) -> Iterator[str]:
    """Yields warnings of prompts, in the form the model gets them, that lack the chat template, close the thinking, or
    leave too little context for the completion."""
    args, dataset, tokenizer = trainer.args, trainer.train_dataset, trainer.processing_class
    asked = chain.from_iterable(batch["prompt"] for batch in dataset.select_columns("prompt").iter(1000))
    by_size = nlargest(MOST_MEASURED, enumerate(asked), key=lambda numbered: len(str(numbered[1])))
    rows = [dataset[row] for row, _ in by_size]
    seen, *_ = rows_with_targets(
        rows, trainer.length_control, args.target_at(0), args.target_length, args.generation_limit
    )
    prompts = [row["prompt"] for row in seen]
    if is_text := isinstance(prompts[0], str):
        suffix = prompts[0].removeprefix(rows[0]["prompt"])
        is_written = any(token in prompts[0] for token in tokenizer.get_added_vocab())  # by a chat template
        if suffix or (tokenizer.chat_template is not None and not is_written):
            problem = f"prompts are strings, which get no chat_template, and end with {suffix!r}"
            yield f"{problem}: turn them into messages with train_dataset.map(leash_trl.data.as_conversation)"
    else:
        options = {"tools": trainer.tools or None, "tokenize": False, "add_generation_prompt": True}
        options |= {"chat_template": trainer.chat_template, **trainer.chat_template_kwargs}
        prompts = [tokenizer.apply_chat_template(prompt, **options) for prompt in prompts]
        if trainer.thinking_markers.is_closed_by(prompts[0]):
            given = trainer.chat_template_kwargs
            yield f"chat_template_kwargs is {given}, which turns thinking off; Qwen3 needs enable_thinking: true"
    # a chat template writes the special tokens itself
    longest = max(map(len, tokenizer(prompts, add_special_tokens=is_text)["input_ids"]))
    contexts = [context_length(trainer.model.config), args.vllm_max_model_length if args.use_vllm else None]
    context, limit = min(filter(None, contexts), default=math.inf), args.generation_limit
    if longest + (limit if limit < math.inf else 1) > context:
        yield f"max_completion_length={limit} and a prompt of {longest} tokens exceed the context of {context}"
