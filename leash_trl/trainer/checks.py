"""Finds mistakes before training starts: in data, rewards, tokenizer, context length and disk space.

[`before`] runs before the model is loaded, [`after`] on the new trainer. Errors and warnings name field, value and
remedy; a function `..._problem` returns the text of a warning, or `None`. Streams are not read.
"""

import difflib
import heapq
import inspect
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset, Value
from peft import PeftModel
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from trl import is_conversational
from trl.import_utils import is_vllm_available

from leash_trl.data.blank_prompts import check_not_blank
from leash_trl.engines.chat_template import TEMPLATE_FAULTS, turn_end
from leash_trl.engines.checkpoint_path import complete_model_path
from leash_trl.engines.context import context_length
from leash_trl.engines.eos import eos_token_ids
from leash_trl.engines.shrinking_batch import check_samples_plainly, shrinking_rollout
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.targets import TARGET_COLUMN, column_values, own_target, rows_with_targets
from leash_trl.trainer.advice import MIB, free_bytes
from leash_trl.trainer.batch_watch import BatchWatch
from leash_trl.trainer.cut_completions import check_cuts
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


# TRL: GRPOTrainer._calculate_rewards hands these to reward functions, and every other column of the data set
GIVEN_TO_REWARDS = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)
MOST_MEASURED = 100  # prompts that are tokenized: those with the most bytes
CLOSED_THINKING = re.compile(r"<think>\s*</think>\s*$")
FULL_ADAMW = ("adamw_torch", "adamw_torch_fused")  # others keep smaller state, or none


def before(model, reward_funcs, args, train_dataset=None, rollout_func=None, environment_factory=None):
    """Checks what a trainer gets, and returns the model that it should load.

    Args:
        model, reward_funcs, args, train_dataset, rollout_func, environment_factory:
            As the trainer takes them.

    Returns:
        `str` or [`~transformers.PreTrainedModel`]: The model, or its path or id.

    Raises:
        `ValueError`: If a column is missing, a prompt asks nothing, a row's target does not fit, or the model is a
            folder without a complete one.
        `ImportError`: If vLLM is to generate and is not installed.
    """
    check_vllm(args)
    columns = known_columns(train_dataset)
    check_columns(columns, reward_funcs, rollout_func, environment_factory)
    method = args.make_length_control()
    check_own_targets(train_dataset, method, args)
    if (problem := columns_read_problem(train_dataset, method, args)) is not None and args.process_index == 0:
        warnings.warn(problem, UserWarning, stacklevel=3)
    has_own_prompts = environment_factory is not None or rollout_func not in (None, shrinking_rollout)
    if isinstance(train_dataset, Dataset) and "prompt" in columns and not has_own_prompts:
        check_not_blank(train_dataset)
    return complete_model_path(str(model)) if isinstance(model, str | Path) else model


def after(trainer: Any) -> BatchWatch:
    """Checks a new trainer; the main process warns of what may be a mistake.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            A trainer with a [`LeashGRPOConfig`].

    Returns:
        [`BatchWatch`]: Checks the trainer's first training batches.

    Raises:
        `ValueError`: If the tokenizer has no end token that the model knows, or lacks the chat template that prompts
            need, no reward function says what is correct, the method cuts completions that cannot be cut, or a prompt
            leaves colocated vLLM no token to generate.
    """
    processor = trainer.processing_class
    is_text_only = isinstance(processor, PreTrainedTokenizerBase)
    tokenizer = processor if is_text_only else processor.tokenizer
    check_end_token(tokenizer, trainer.model)
    if trainer.rollout_func is shrinking_rollout:
        check_samples_plainly(trainer)
    check_correctness_func(trainer.args.correctness_func, trainer.reward_func_names, trainer.length_control)
    check_cuts(trainer)
    problems = [misspelt_target_problem(known_columns(trainer.train_dataset))]
    if trainer.environment_factories is None and trainer.rollout_func in (None, shrinking_rollout):
        problems.append(strings_problem(trainer.train_dataset, tokenizer))
        if is_text_only:  # an image becomes more tokens than its placeholder
            problems += prompt_problems(trainer)
    if trainer.accelerator.is_main_process:
        for problem in filter(None, problems):
            warnings.warn(problem, UserWarning, stacklevel=3)
    end_tokens = {tokenizer.convert_ids_to_tokens(token): token for token in eos_token_ids(trainer.model, tokenizer)}
    template_options = {"chat_template": trainer.chat_template, **trainer.chat_template_kwargs}
    return BatchWatch(end_tokens, turn_end(tokenizer, **template_options))


def before_training(trainer: Any) -> None:
    """Looks at what matters only once it trains: rows for a step, and room on the disk for a checkpoint.

    Raises:
        `ValueError`: If rows are too few for a step.
    """
    check_size(trainer.train_dataset, trainer.args)
    if (problem := space_problem(trainer)) is not None and trainer.accelerator.is_main_process:
        warnings.warn(problem, UserWarning, stacklevel=3)


def check_vllm(args: LeashGRPOConfig) -> None:
    """Raises `ImportError` if vLLM should generate and is not installed."""
    if args.use_vllm and not is_vllm_available():
        raise ImportError(
            "use_vllm is True, but vLLM is not installed: pip install 'leash-trl[vllm]', or set use_vllm to False, "
            "and transformers generates"
        )


def required_columns(reward_func: Any) -> set[str]:
    """Columns that a reward function requires: its parameters that have no default and that TRL does not pass.

    Example:
        >>> def reward(completions, solution, weight=1.0, **kwargs): ...
        >>> required_columns(reward), required_columns("a/reward-model")
        ({'solution'}, set())
    """
    try:
        # a wrapper may pass on more arguments than it takes
        parameters = inspect.signature(reward_func, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # a reward model's name, or a function written in C
        return set()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.default is p.empty and p.kind in named} - GIVEN_TO_REWARDS


def known_columns(dataset: Any) -> list[str]:
    """Columns of a data set; empty if they are not known: a stream may not say, a transform on reading may make
    others, and with environments there may be no data set."""
    is_transformed = isinstance(dataset, Dataset) and dataset.format["type"] == "custom"
    if is_transformed or not isinstance(dataset, Dataset | IterableDataset):
        return []
    return dataset.column_names or []


def check_columns(
    columns: Sequence[str], reward_funcs: Any, rollout_func: Any = None, environment_factory: Any = None
) -> None:
    """Raises `ValueError` if the data set lacks `prompt` or a column that the reward functions need.

    A rollout function of the user's may pass its own fields to the reward functions, and environments may bring the
    prompts.
    """
    funcs = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    brings_fields = rollout_func not in (None, shrinking_rollout)
    rewarded = set() if brings_fields else {name for func in funcs for name in required_columns(func)}
    needed = [*(["prompt"] if environment_factory is None else []), *sorted(rewarded - {"prompt"})]
    if columns and (missing := [name for name in needed if name not in columns]):
        raise ValueError(
            f"the data set has columns {', '.join(columns)}, but {' and '.join(missing)} is missing; rename the "
            "column that holds it, in the files or with datasets' rename_column, or add one"
        )


def check_size(dataset: Any, args: LeashGRPOConfig) -> None:
    """Raises `ValueError` if the data set has too few rows for one step: TRL would train nothing and say nothing.
    Streams are not counted."""
    if not isinstance(dataset, Dataset):
        return
    needed = args.generation_batch_size // args.num_generations
    if len(dataset) == 0:
        raise ValueError("the data set is empty; see what it was made from, or what filtered it")
    if len(dataset) < needed:
        raise ValueError(
            f"the data set has {len(dataset)} rows, but one generation batch takes {needed} prompts "
            f"(generation_batch_size {args.generation_batch_size} / num_generations {args.num_generations}); lower "
            "per_device_train_batch_size or gradient_accumulation_steps, or add rows"
        )


def check_own_targets(dataset: Any, method: LengthControl, args: LeashGRPOConfig) -> None:
    """Checks the targets of single prompts by the rule for `target_length`.

    Raises:
        `ValueError`: If one is not a length, or the method cannot use it within the generation limit or at a
            milestone.
    """
    if not isinstance(dataset, Dataset) or TARGET_COLUMN not in known_columns(dataset):
        return
    checked: set[float] = set()
    for row, value in enumerate(dataset[TARGET_COLUMN]):
        try:
            target = own_target({TARGET_COLUMN: value})
            if target is not None and target not in checked:
                checked.add(target)
                # rounded up: a fraction of a token above the limit is above the limit
                args.check_target(math.ceil(target), method)
        except ValueError as error:
            raise ValueError(f"row {row} of the data set, column {TARGET_COLUMN}: {error}") from error


def columns_read_problem(dataset: Any, method: LengthControl, args: LeashGRPOConfig) -> str | None:
    """Warns of values that the method reads from the data set and that may be a mistake.

    Raises:
        `ValueError`: If such a column is missing, or the method cannot use a value.
    """
    columns, names = known_columns(dataset), method.columns_read()
    for name in names:
        if columns and name not in columns:
            similar = difflib.get_close_matches(name, columns, n=1)
            raise ValueError(
                f"length_control_kwargs names the column {name!r}, but the data set has {', '.join(columns)}; "
                + (f"did you mean {similar[0]}?" if similar else "add the column, or mend its name")
                + " (leash train keeps all columns of data that has prompt and solution, but of question and answer "
                "only known ones)"
            )
    if not names or not columns or not isinstance(dataset, Dataset):
        return None
    return method.check_columns(column_values(list(dataset.select_columns([*names])), names, args.target_length))


def misspelt_target_problem(columns: Sequence[str]) -> str | None:
    """Warns of a column whose name is nearly `target_length`, which would be ignored."""
    similar = [] if TARGET_COLUMN in columns else difflib.get_close_matches(TARGET_COLUMN, columns, n=1, cutoff=0.8)
    if not similar:
        return None
    return (
        f"the data set has a column {similar[0]!r}, which means nothing here; targets per prompt are read from "
        f"{TARGET_COLUMN!r}: rename it if it holds them"
    )


def check_correctness_func(chosen: str | None, names: Sequence[str], method: LengthControl) -> None:
    """Raises `ValueError` if the method needs to know what is correct and no reward function says so."""
    if chosen is not None and chosen not in names:
        raise ValueError(f"correctness_func is {chosen!r}, but must be one of {', '.join(names)}")
    if chosen is None and len(names) > 1 and method.uses_correctness:
        raise ValueError(
            f"length_control={method.name!r} needs to know what is correct, and with the reward functions "
            f"{', '.join(names)} a positive sum does not say; set correctness_func to one of them"
        )


def check_end_token(tokenizer: PreTrainedTokenizerBase, model: Any) -> None:
    """Raises `ValueError` if a tokenizer has no end token, which TRL also uses as padding if there is no pad token, or
    if the model knows neither it nor those of its generation configuration: a tokenizer adds a token that its
    vocabulary lacks."""
    if tokenizer.eos_token is None:
        raise ValueError(
            f"the tokenizer has no eos_token (its pad_token is {tokenizer.pad_token!r}), so completions cannot end; "
            "set tokenizer.eos_token to the token that ends the model's answers, and save the tokenizer with the "
            "model or pass it as processing_class"
        )
    vocab_size = getattr(model.config.get_text_config(decoder=True), "vocab_size", None)
    if vocab_size is not None and min(eos_token_ids(model, tokenizer)) >= vocab_size:
        raise ValueError(
            f"the tokenizer's eos_token {tokenizer.eos_token!r} has the id {tokenizer.eos_token_id}, but the model "
            f"knows the ids 0 to {vocab_size - 1}, so completions cannot end; set eos_token in tokenizer_config.json "
            "to the token that ends the model's answers"
        )


def strings_problem(dataset: Any, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Warns of prompts that are plain text although the tokenizer has a chat template, which is not applied then.

    A template already wrote text that contains an added token of the tokenizer, such as `<|im_start|>`.
    """
    if tokenizer.chat_template is None or "prompt" not in known_columns(dataset):
        return None
    first = dataset[0]["prompt"] if isinstance(dataset, Dataset) and len(dataset) > 0 else ""
    is_text = isinstance(dataset.features["prompt"], Value)
    if not is_text or any(token in first for token in tokenizer.get_added_vocab()):
        return None
    return (
        "the data set's prompts are strings, which go to the model without the tokenizer's chat_template and without "
        "an instruction; leash_trl.data.as_conversation makes messages of them: train_dataset.map(as_conversation)"
    )


def prompt_problems(trainer: Any) -> list[str | None]:
    """Warns of prompts, as the model gets them, that close the thinking or leave too little context.

    If the template fails on them there is no warning; generation raises the error when it reaches such a prompt.

    Raises:
        `ValueError`: If there is no chat template for messages, or a prompt leaves colocated vLLM no token.
    """
    dataset, tokenizer = trainer.train_dataset, trainer.processing_class
    if not isinstance(dataset, Dataset) or "prompt" not in known_columns(dataset) or len(dataset) == 0:
        return []
    rows, prompts = longest_prompts(dataset, trainer.args)
    are_messages = is_conversational({"prompt": prompts[0]})
    if are_messages:
        options = {"chat_template": trainer.chat_template, "tools": trainer.tools or None, "tokenize": False}
        options |= {"add_generation_prompt": True, **trainer.chat_template_kwargs}
        try:
            prompts = [tokenizer.apply_chat_template(prompt, **options) for prompt in prompts]
        except TEMPLATE_FAULTS:
            return []
    ids = tokenizer(prompts, add_special_tokens=not are_messages)["input_ids"]  # a template writes them itself
    longest = max(range(len(ids)), key=lambda index: len(ids[index]))
    config = trainer.model.config.get_text_config()
    return [
        closed_thinking_problem(prompts[0], trainer.chat_template_kwargs) if are_messages else None,
        context_problem(rows[longest], len(ids[longest]), config, trainer.args),
    ]


def longest_prompts(dataset: Dataset, args: LeashGRPOConfig) -> tuple[list[int], list[Any]]:
    """The `MOST_MEASURED` prompts with the most bytes, with the method's suffixes, and their rows."""
    columns = [name for name in ("prompt", TARGET_COLUMN) if name in dataset.column_names]
    sizes = [len(json.dumps(prompt, default=repr)) for prompt in dataset["prompt"]]
    rows = heapq.nlargest(MOST_MEASURED, range(len(sizes)), key=sizes.__getitem__)
    own = [*dataset.select_columns(columns).select(rows)]
    seen, _, _ = rows_with_targets(own, args.make_length_control(), args.target_at(0), args.target_length)
    return rows, [row["prompt"] for row in seen]


def closed_thinking_problem(text: str, chat_template_kwargs: Mapping[str, Any]) -> str | None:
    """Warns of a prompt in which the chat template already closes the thinking."""
    if not CLOSED_THINKING.search(text):
        return None
    return (
        "the chat template closes the thinking before the model begins (<think></think> ends the prompt), so it will "
        f"answer without thinking; chat_template_kwargs is {dict(chat_template_kwargs)}, and models such as Qwen3 "
        "think with {enable_thinking: true}"
    )


def context_problem(row: int, length: int, config: PreTrainedConfig, args: LeashGRPOConfig) -> str | None:
    """Warns if the longest prompt and a completion at the generation limit do not fit into the context.

    Args:
        row (`int`):
            Row of the longest prompt.
        length (`int`):
            Its tokens.
        config ([`~transformers.PreTrainedConfig`]):
            Text configuration of the model.
        args (`LeashGRPOConfig`):
            Generation limit, and vLLM's context where that is shorter than the model's.

    Raises:
        `ValueError`: If it leaves no token to vLLM in this process, which would refuse it. A server has its own
            context, and transformers generates past the end of it.
    """
    context, name = context_length(config), "max_position_embeddings of the model"
    if args.use_vllm and args.vllm_max_model_length is not None and args.vllm_max_model_length < (context or math.inf):
        context, name = args.vllm_max_model_length, "vllm_max_model_length"
    limit = args.generation_limit
    if context is None or length + (limit if math.isfinite(limit) else 1) <= context:
        return None
    room = max(0, context - length)
    problem = (
        f"completions may have {limit} tokens (max_completion_length), but beside the prompt of row {row} of the data "
        f"set, {length} tokens, the context of {context} tokens ({name}) holds {room}: longer completions run past it "
        "or are cut; lower max_completion_length, drop the longest prompts with datasets' filter, or use a model with "
        "a longer context"
    )
    if room == 0 and args.use_vllm and args.vllm_mode == "colocate":
        raise ValueError(problem)
    return problem


def space_problem(trainer: Any) -> str | None:
    """Warns if the disk has no room for one checkpoint: the saved weights and AdamW's two moments."""
    args = trainer.args
    sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in trainer.model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    weights = trained if isinstance(trainer.model, PeftModel) else sum(size for size, _ in sizes)
    needed = weights
    if not args.save_only_model:
        needed += (2 * trained if args.optim in FULL_ADAMW else 0) + (weights if args.sync_ref_model else 0)
    free = free_bytes(Path(args.output_dir))
    if args.save_strategy == "no" or not args.should_save or free is None or free >= needed:
        return None
    return (
        f"output_dir is {args.output_dir}, where {free / MIB:.1f} MiB are free, but one checkpoint takes at least "
        f"{needed / MIB:.1f} MiB: make room or choose another output_dir, or set save_only_model: true or "
        "save_strategy: 'no'"
    )
