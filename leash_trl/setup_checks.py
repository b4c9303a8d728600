"""What can be seen to be wrong with data, rewards, tokenizer and engine before anything is trained.

Errors name field, value and remedy; what may be meant is a warning. Only data with rows by index is read.
"""

import difflib
import inspect
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from trl import is_conversational
from trl.import_utils import is_vllm_available

from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.targets import TARGET_COLUMN, own_target, rows_with_targets


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from leash_trl.leash_grpo_config import LeashGRPOConfig


# TRL: GRPOTrainer._calculate_rewards hands these to reward functions, and every other column of the data set
GIVEN_TO_REWARDS = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)
SIMILAR = 0.8
CHUNK = 1000  # rows read at a time
CLOSED_THINKING = re.compile(r"<think>\s*</think>\s*$")


def check_vllm(args: "LeashGRPOConfig") -> None:
    """Raises `ImportError` if vLLM is to generate and is not there."""
    if args.use_vllm and not is_vllm_available():
        raise ImportError(
            "use_vllm is True, but vLLM is not installed: pip install 'leash-trl[vllm]', or set use_vllm to False, "
            "and transformers generates"
        )


def required_columns(reward_func: Any) -> set[str]:
    """Columns that a reward function cannot do without: parameters that have no default and that TRL does not give.

    Example:
        >>> def reward(completions, solution, weight=1.0, **kwargs): ...
        >>> required_columns(reward), required_columns("a/reward-model")
        ({'solution'}, set())
    """
    try:
        parameters = inspect.signature(reward_func).parameters.values()
    except (TypeError, ValueError):  # a reward model's name, or a function written in C
        return set()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.default is p.empty and p.kind in named} - GIVEN_TO_REWARDS


def check_columns(columns: Sequence[str] | None, reward_funcs: Any) -> None:
    """Sees to it that prompts, and what the reward functions need, are there.

    Args:
        columns (`Sequence[str]`, *optional*):
            Columns of the data set; `None` if a stream does not say.
        reward_funcs (`RewardFunc` or `list[RewardFunc]`, *optional*):
            As the trainer takes them.

    Raises:
        `ValueError`: If one is missing.
    """
    if not columns:
        return
    funcs = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    needed = dict.fromkeys(["prompt", *sorted({name for func in funcs for name in required_columns(func)})])
    if missing := [name for name in needed if name not in columns]:
        raise ValueError(
            f"the data set has columns {', '.join(columns)}, but {' and '.join(missing)} is missing; rename or add it "
            "with datasets' rename_column or map"
        )


def warn_about_misspelt_target(columns: Sequence[str] | None) -> None:
    """Warns of a column that is nearly called `target_length`, which would be ignored."""
    if not columns or TARGET_COLUMN in columns:
        return
    if similar := difflib.get_close_matches(TARGET_COLUMN, columns, n=1, cutoff=SIMILAR):
        warnings.warn(
            f"the data set has a column {similar[0]!r}, which means nothing here; targets per prompt are read from "
            f"{TARGET_COLUMN!r}: rename it if it holds them",
            UserWarning,
            stacklevel=2,
        )


def check_own_targets(dataset: Any, method: LengthControl, args: "LeashGRPOConfig") -> None:
    """Holds targets of single prompts to the rule that `target_length` is held to.

    Raises:
        `ValueError`: If one is no length, or one that the method cannot use within the generation limit.
    """
    if not isinstance(dataset, Dataset) or TARGET_COLUMN not in dataset.column_names:
        return
    first_rows: dict[Any, int] = {}
    for row, value in enumerate(dataset[TARGET_COLUMN]):
        first_rows.setdefault(value, row)
    for value, row in first_rows.items():
        try:
            if (target := own_target({TARGET_COLUMN: value})) is not None and args.max_completion_length is not None:
                # a fraction of a token more than the limit is more than the limit
                method.check(math.ceil(target), args.max_completion_length, args.num_generations)
        except ValueError as error:
            raise ValueError(f"row {row} of the data set, column {TARGET_COLUMN}: {error}") from error


def check_end_token(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raises `ValueError` if a tokenizer does not say what ends a completion, which TRL takes for padding too where
    there is no pad token."""
    if tokenizer.eos_token is None:
        raise ValueError(
            f"the tokenizer has no eos_token (its pad_token is {tokenizer.pad_token!r}), so completions cannot end; "
            "set tokenizer.eos_token to the token that ends the model's answers, and save the tokenizer with the "
            "model or pass it as processing_class"
        )


def check_chat_template(
    prompt: Any, render: Callable[[Any], str] | None, chat_template_kwargs: Mapping[str, Any]
) -> None:
    """Sees to it that messages can become text, and warns where that text keeps the model from thinking.

    Args:
        prompt (`str` or `list[dict]`):
            A prompt of the data set.
        render (`callable`, *optional*):
            Text of a conversation as the model gets it; `None` without a chat template.
        chat_template_kwargs (`Mapping`):
            Arguments of the template, for the warning.

    Raises:
        `ValueError`: If prompts are messages and there is no chat template.
    """
    if not is_conversational({"prompt": prompt}):
        return
    if render is None:
        raise ValueError(
            "the data set's prompts are messages, but the tokenizer has no chat_template to write them with; take an "
            "instruction-tuned model, set tokenizer.chat_template, or use prompts that are plain text"
        )
    if CLOSED_THINKING.search(render(prompt)):
        warnings.warn(
            "the chat template closes the thinking before the model begins (<think></think> ends the prompt), so it "
            f"will answer without thinking; chat_template_kwargs is {dict(chat_template_kwargs)}, and models such as "
            "Qwen3 think with {enable_thinking: true}",
            UserWarning,
            stacklevel=2,
        )


def context_length(config: Mapping[str, Any]) -> int | None:
    """
    Tokens that a model's positions allow for prompt and completion together; `None` if the configuration is silent.

    Args:
        config (`Mapping`):
            The text configuration as a dictionary.

    Example:
        >>> context_length({"max_position_embeddings": 4096})
        4096
        >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
        >>> context_length({"max_position_embeddings": 40960, "rope_parameters": yarn})
        131072
    """
    length = config.get("max_position_embeddings")
    if length is None:
        return None
    rope = config.get("rope_parameters") or {}
    original = rope.get("original_max_position_embeddings")
    # whether a stretched model's configuration counts the stretch already is a matter of taste
    return max(length, int(original * rope["factor"])) if original and rope.get("factor") else int(length)


def context_of(config: Mapping[str, Any], args: "LeashGRPOConfig") -> tuple[int, str] | None:
    """The context in tokens and the field that sets it: the model's, or vLLM's where that is shorter; `None` if
    neither says."""
    length = context_length(config)
    served = args.vllm_max_model_length if args.use_vllm else None
    if served is not None and (length is None or served < length):
        return served, "vllm_max_model_length"
    return None if length is None else (length, "max_position_embeddings of the model")


@dataclass(frozen=True)
class PlacedPrompt:
    """A prompt as the model will see it.

    Args:
        row (`int`):
            Its row in the data set.
        prompt (`str` or `list[dict]`):
            The prompt, the method's suffix included.
        target (`float`):
            Its target in tokens, NaN for none.
    """

    row: int
    prompt: Any
    target: float


def long_prompts(
    dataset: Dataset, method: LengthControl, args: "LeashGRPOConfig", context: int, overhead: int
) -> list[PlacedPrompt]:
    """Prompts that may not fit into the context with a completion of the generation limit.

    A token stands for one byte at least, so that most prompts need not be tokenized to know that they fit.

    Args:
        dataset (`Dataset`):
            Training data with a column `prompt`.
        method (`LengthControl`):
            Gives targets and suffixes.
        args (`LeashGRPOConfig`):
            Configuration, whose targets and limit hold.
        context (`int`):
            Tokens of prompt and completion together that fit.
        overhead (`int`):
            Tokens that the chat template adds, or more.
    """
    columns = [name for name in ("prompt", TARGET_COLUMN) if name in dataset.column_names]
    limit = args.max_completion_length or 0
    found, start = [], 0
    for chunk in dataset.select_columns(columns).iter(CHUNK):
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*(chunk[c] for c in columns), strict=True)]
        seen, _, targets = rows_with_targets(rows, method, args.target_at(0), args.target_length)
        for index, (row, target) in enumerate(zip(seen, targets, strict=True), start):
            # JSON writes a character as one byte, or as six for the up to four that UTF-8 makes of it
            bound = len(json.dumps(row["prompt"], default=repr)) + overhead
            if bound + max(limit, 0 if math.isnan(target) else target) > context:
                found.append(PlacedPrompt(index, row["prompt"], target))
        start += len(rows)
    return found


def check_context(
    prompts: Sequence[PlacedPrompt],
    lengths: Sequence[int],
    max_completion_length: int | None,
    context: int,
    name: str,
) -> None:
    """Warns where prompt and generation limit do not fit into the context together.

    Args:
        prompts (`Sequence[PlacedPrompt]`):
            Prompts, at least one.
        lengths (`Sequence[int]`):
            Their tokens.
        max_completion_length (`int`, *optional*):
            Generation limit in tokens.
        context (`int`):
            Tokens of prompt and completion together that fit.
        name (`str`):
            Field that sets the context.

    Raises:
        `ValueError`: If a prompt does not fit with a completion of its target.

    Example:
        >>> check_context([PlacedPrompt(7, "", 20.0)], [90], 50, 100, "max_position_embeddings")
        Traceback (most recent call last):
        ValueError: row 7 of the data set has a prompt of 90 tokens, which does not fit into the context of 100 tokens
        (max_position_embeddings) with a completion of 20 tokens; drop prompts above 80 tokens with datasets' filter,
        or use a model with a longer context
    """
    targets = [1 if math.isnan(prompt.target) else prompt.target for prompt in prompts]
    worst = max(range(len(prompts)), key=lambda index: lengths[index] + targets[index])
    if lengths[worst] + targets[worst] > context:
        room = max(0, math.floor(context - targets[worst]))
        raise ValueError(
            f"row {prompts[worst].row} of the data set has a prompt of {lengths[worst]} tokens, which does not fit "
            f"into the context of {context} tokens ({name}) with a completion of {targets[worst]:g} tokens; drop "
            f"prompts above {room} tokens with datasets' filter, or use a model with a longer context"
        )
    longest = max(range(len(prompts)), key=lengths.__getitem__)
    if max_completion_length is not None and lengths[longest] + max_completion_length > context:
        warnings.warn(
            f"max_completion_length is {max_completion_length}, but beside the prompt of row {prompts[longest].row}, "
            f"{lengths[longest]} tokens, the context of {context} tokens ({name}) holds "
            f"{context - lengths[longest]}: longer completions run past it or are cut; lower max_completion_length "
            "to that, or drop long prompts",
            UserWarning,
            stacklevel=2,
        )
