"""What can be seen to be wrong with data, rewards, tokenizer and engine before anything is trained.

Errors name field, value and remedy; what may be meant is a warning. Only data with rows by index is read.
"""

import difflib
import heapq
import inspect
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from datasets import Dataset, IterableDataset, Value
from trl import is_conversational
from trl.import_utils import is_vllm_available

from leash_trl.data.blank_prompts import check_not_blank
from leash_trl.engines.endings import TEMPLATE_FAULTS, check_chat_template
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.targets import TARGET_COLUMN, own_target, rows_with_targets


if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


# TRL: GRPOTrainer._calculate_rewards hands these to reward functions, and every other column of the data set
GIVEN_TO_REWARDS = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)
SIMILAR = 0.8
CHUNK = 1000  # rows read at a time
MOST_MEASURED = 1000  # prompts tokenized, those that take the most bytes
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
        # a wrapper may give what it wraps more than it takes itself
        parameters = inspect.signature(reward_func, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # a reward model's name, or a function written in C
        return set()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.default is p.empty and p.kind in named} - GIVEN_TO_REWARDS


def known_columns(dataset: Any) -> list[str] | None:
    """Columns that rows of a data set have; `None` where that cannot be told: a stream may not say, a transform that
    is applied as rows are read makes others, and environments may do without a data set."""
    if not isinstance(dataset, Dataset | IterableDataset):
        return None
    if isinstance(dataset, Dataset) and dataset.format["type"] == "custom":
        return None
    return dataset.column_names


def check_columns(
    columns: Sequence[str] | None, reward_funcs: Any, rollout_func: Any = None, environment_factory: Any = None
) -> None:
    """Sees to it that prompts, and what the reward functions need, are there.

    Args:
        columns (`Sequence[str]`, *optional*):
            Columns of the data set, from [`known_columns`].
        reward_funcs (`RewardFunc` or `list[RewardFunc]`, *optional*):
            As the trainer takes them.
        rollout_func (`RolloutFunc` or `str`, *optional*):
            As the trainer takes it, or its name; it may give the reward functions fields of its own.
        environment_factory (`EnvironmentFactory` or `dict`, *optional*):
            As the trainer takes it; environments may bring the prompts.

    Raises:
        `ValueError`: If one is missing.
    """
    if not columns:
        return
    funcs = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    rewarded = {name for func in funcs for name in required_columns(func)} if rollout_func is None else set()
    needed = dict.fromkeys([*(["prompt"] if environment_factory is None else []), *sorted(rewarded)])
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
        `ValueError`: If one is no length, or one that the method cannot use within the generation limit, or at a
            milestone.
    """
    if not isinstance(dataset, Dataset) or TARGET_COLUMN not in (known_columns(dataset) or []):
        return
    checked: set[float] = set()
    for row, value in enumerate(dataset[TARGET_COLUMN]):
        try:
            target = own_target({TARGET_COLUMN: value})
            if target is None or target in checked:
                continue
            checked.add(target)
            # a fraction of a token more than the limit is more than the limit
            args.check_target(math.ceil(target), method)
        except ValueError as error:
            raise ValueError(f"row {row} of the data set, column {TARGET_COLUMN}: {error}") from error


def check_size(dataset: Any, args: "LeashGRPOConfig") -> None:
    """Sees to it that there is data for a step: with too few rows TRL trains none and says nothing.

    Raises:
        `ValueError`: If there is not. A stream is not counted.
    """
    if not isinstance(dataset, Dataset):
        return
    if len(dataset) == 0:
        raise ValueError("the data set is empty; see what it was made from, or what filtered it")
    needed = args.generation_batch_size // args.num_generations
    if len(dataset) < needed:
        raise ValueError(
            f"the data set has {len(dataset)} rows, but one generation batch takes {needed} prompts "
            f"(generation_batch_size {args.generation_batch_size} / num_generations {args.num_generations}); lower "
            "per_device_train_batch_size or gradient_accumulation_steps, or add rows"
        )


def check_end_token(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raises `ValueError` if a tokenizer does not say what ends a completion, which TRL takes for padding too where
    there is no pad token."""
    if tokenizer.eos_token is None:
        raise ValueError(
            f"the tokenizer has no eos_token (its pad_token is {tokenizer.pad_token!r}), so completions cannot end; "
            "set tokenizer.eos_token to the token that ends the model's answers, and save the tokenizer with the "
            "model or pass it as processing_class"
        )


def check_messages(prompt: Any, chat_template: Any) -> None:
    """Raises `ValueError` if a prompt is messages and there is no chat template to write them with."""
    if is_conversational({"prompt": prompt}):
        check_chat_template(chat_template)


def check_asks(dataset: Any) -> None:
    """Sees to it that every prompt of a data set with rows by index asks something.

    Raises:
        `ValueError`: If one is missing or empty; it names the row.
    """
    if isinstance(dataset, Dataset) and "prompt" in (known_columns(dataset) or []):
        check_not_blank(dataset)


def warn_about_no_limit(args: "LeashGRPOConfig", *generation_configs: "GenerationConfig") -> None:
    """Warns where nothing limits completions, which transformers then ends after 20 tokens.

    Args:
        args (`LeashGRPOConfig`):
            Configuration of a run that samples with transformers.
        generation_configs (`GenerationConfig`):
            The trainer's and the model's.
    """
    given = [getattr(config, name) for config in generation_configs for name in ("max_new_tokens", "max_length")]
    if args.max_completion_length is None and not any(given):
        warnings.warn(
            "max_completion_length is None, and neither generation_kwargs nor the model's generation_config.json has "
            "a limit: transformers ends completions after 20 tokens; set max_completion_length",
            UserWarning,
            stacklevel=2,
        )


def warn_about_strings(dataset: Any, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Warns of prompts that are plain text where the tokenizer has a chat template, which is not applied then.

    Text with a token that was added to the tokenizer, such as `<|im_start|>`, was written by a template already.

    Args:
        dataset (`Dataset` or `IterableDataset`):
            Training data.
        tokenizer (`PreTrainedTokenizerBase`):
            The model's tokenizer.
    """
    if tokenizer.chat_template is None or "prompt" not in (known_columns(dataset) or []):
        return
    if not isinstance(dataset.features["prompt"], Value):
        return
    first = dataset[0]["prompt"] if isinstance(dataset, Dataset) and len(dataset) > 0 else ""
    if not any(token in first for token in tokenizer.get_added_vocab()):
        warnings.warn(
            "the data set's prompts are strings, which go to the model without the tokenizer's chat_template and "
            "without an instruction; leash_trl.data.as_conversation makes messages of them: train_dataset.map("
            "as_conversation)",
            UserWarning,
            stacklevel=2,
        )


def warn_about_closed_thinking(
    prompt: Any, render: Callable[[Any], str], chat_template_kwargs: Mapping[str, Any]
) -> None:
    """Warns where the text of messages keeps the model from thinking; a template that fails is not told on here.

    Args:
        prompt (`str` or `list[dict]`):
            A prompt of the data set.
        render (`callable`):
            Text of a conversation as the model gets it.
        chat_template_kwargs (`Mapping`):
            Arguments of the template, for the warning.
    """
    if not is_conversational({"prompt": prompt}):
        return
    try:
        text = render(prompt)
    except TEMPLATE_FAULTS:  # generation says it, if it gets to this prompt
        return
    if CLOSED_THINKING.search(text):
        warnings.warn(
            "the chat template closes the thinking before the model begins (<think></think> ends the prompt), so it "
            f"will answer without thinking; chat_template_kwargs is {dict(chat_template_kwargs)}, and models such as "
            "Qwen3 think with {enable_thinking: true}",
            UserWarning,
            stacklevel=2,
        )


def context_settings(config: "PreTrainedConfig") -> dict[str, Any]:
    """A model's text configuration as a dictionary, under the names that transformers maps its own to: GPT-2's
    `n_positions` is `max_position_embeddings` too."""
    text_config = config.get_text_config()
    settings: dict[str, Any] = text_config.to_dict()
    mapped = {name: settings[own] for name, own in text_config.attribute_map.items() if own in settings}
    return {**settings, **mapped}


def context_length(config: Mapping[str, Any]) -> int | None:
    """
    Tokens that a model's positions allow for prompt and completion together; `None` if the configuration is silent,
    or if positions are a slope (ALiBi), which has no end.

    Where a configuration may be read in two ways, the longer context counts.

    Args:
        config (`Mapping`):
            The text configuration, from [`context_settings`].

    Example:
        >>> context_length({"max_position_embeddings": 4096})
        4096
        >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
        >>> context_length({"max_position_embeddings": 40960, "rope_parameters": yarn})
        131072
        >>> linear = {"rope_type": "linear", "factor": 2.0}
        >>> context_length({"max_position_embeddings": 4096, "rope_parameters": linear})
        8192
    """
    length = config.get("max_position_embeddings")
    if length is None or config.get("alibi"):
        return None
    rope = config.get("rope_parameters") or {}
    # one scaling for all layers, or one for each kind of layer
    scalings = [rope, *(scaling for scaling in rope.values() if isinstance(scaling, Mapping))]
    # whether a stretched model's configuration counts the stretch already is a matter of taste
    stretched = [
        int((scaling.get("original_max_position_embeddings") or length) * (scaling.get("factor") or 1))
        for scaling in scalings
    ]
    return max(int(length), *stretched)


def context_of(config: Mapping[str, Any], args: "LeashGRPOConfig") -> tuple[int, str] | None:
    """The context in tokens and the field that sets it: the model's, or vLLM's where that is shorter; `None` if
    neither says."""
    length = context_length(config)
    served = args.vllm_max_model_length if args.use_vllm else None
    if served is not None and (length is None or served < length):
        return served, "vllm_max_model_length"
    return None if length is None else (length, "max_position_embeddings of the model")


def is_refused_beyond_context(args: "LeashGRPOConfig") -> bool:
    """Whether generation refuses a prompt that fills the context: vLLM in this process does, a server has a context of
    its own, and transformers goes on past it."""
    return args.use_vllm and args.vllm_mode == "colocate"


@dataclass(frozen=True)
class PlacedPrompt:
    """A prompt as the model will see it.

    Args:
        row (`int`):
            Its row in the data set.
        prompt (`str` or `list[dict]`):
            The prompt, the method's suffix included.
        target (`float`):
            Its target in tokens, at most the generation limit, NaN for none.
    """

    row: int
    prompt: Any
    target: float


def long_prompts(
    dataset: Dataset, method: LengthControl, args: "LeashGRPOConfig", context: int, overhead: int
) -> list[PlacedPrompt]:
    """Prompts that may not fit into the context with a completion of the generation limit.

    A token stands for one byte at least, so that most prompts need not be tokenized to know that they fit. Where more
    than `MOST_MEASURED` may not, as with a limit near the context, those of the most bytes stand for all.

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
    limit = args.generation_limit if math.isfinite(args.generation_limit) else 0
    found: list[tuple[int, PlacedPrompt]] = []
    start = 0
    for chunk in dataset.select_columns(columns).iter(CHUNK):
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*(chunk[c] for c in columns), strict=True)]
        seen, _, targets = rows_with_targets(rows, method, args.target_at(0), args.target_length)
        for index, (row, target) in enumerate(zip(seen, targets, strict=True), start):
            # JSON writes a character as one byte, or as six for the up to four that UTF-8 makes of it
            bound = len(json.dumps(row["prompt"], default=repr)) + overhead
            most = target if math.isnan(target) else min(target, args.generation_limit)
            if bound + max(limit, 0 if math.isnan(most) else most) > context:
                found.append((bound, PlacedPrompt(index, row["prompt"], most)))
        start += len(rows)
    return [placed for _, placed in heapq.nlargest(MOST_MEASURED, found, key=lambda pair: pair[0])]


def check_refused(prompts: Sequence[PlacedPrompt], lengths: Sequence[int], context: int, name: str) -> None:
    """Sees to it that every prompt leaves at least one token of the context to its completion, as vLLM demands.

    Args:
        prompts (`Sequence[PlacedPrompt]`):
            Prompts, at least one.
        lengths (`Sequence[int]`):
            Their tokens.
        context (`int`):
            Tokens of prompt and completion together that fit.
        name (`str`):
            Field that sets the context.

    Raises:
        `ValueError`: If one does not.

    Example:
        >>> check_refused([PlacedPrompt(7, "", 20.0)], [100], 100, "vllm_max_model_length")
        Traceback (most recent call last):
        ValueError: row 7 of the data set has a prompt of 100 tokens, which does not fit into the context of 100 tokens
        (vllm_max_model_length) with a completion of 1 tokens; drop prompts above 99 tokens with datasets' filter, or
        use a model with a longer context
    """
    longest = max(range(len(prompts)), key=lengths.__getitem__)
    if lengths[longest] >= context:
        raise ValueError(_no_room(prompts[longest], lengths[longest], 1, context, name))


def warn_about_context(
    prompts: Sequence[PlacedPrompt],
    lengths: Sequence[int],
    limit: float,
    context: int,
    name: str,
) -> None:
    """Warns where a prompt does not fit into the context with a completion of its target, or of the generation limit.

    Args:
        prompts (`Sequence[PlacedPrompt]`):
            Prompts, at least one.
        lengths (`Sequence[int]`):
            Their tokens.
        limit (`float`):
            Generation limit in tokens, infinite for none.
        context (`int`):
            Tokens of prompt and completion together that fit.
        name (`str`):
            Field that sets the context.
    """
    targets = [1 if math.isnan(prompt.target) else prompt.target for prompt in prompts]
    worst = max(range(len(prompts)), key=lambda index: lengths[index] + targets[index])
    longest = max(range(len(prompts)), key=lengths.__getitem__)
    if lengths[worst] + targets[worst] > context:
        problem = _no_room(prompts[worst], lengths[worst], targets[worst], context, name)
    elif math.isfinite(limit) and lengths[longest] + limit > context:
        problem = (
            f"max_completion_length is {limit}, but beside the prompt of row {prompts[longest].row}, "
            f"{lengths[longest]} tokens, the context of {context} tokens ({name}) holds "
            f"{context - lengths[longest]}: longer completions run past it or are cut; lower max_completion_length "
            "to that, or drop long prompts"
        )
    else:
        return
    warnings.warn(problem, UserWarning, stacklevel=2)


def _no_room(prompt: PlacedPrompt, length: int, completion: float, context: int, name: str) -> str:
    room = max(0, math.floor(context - completion))
    return (
        f"row {prompt.row} of the data set has a prompt of {length} tokens, which does not fit into the context of "
        f"{context} tokens ({name}) with a completion of {completion:g} tokens; drop prompts above {room} tokens with "
        "datasets' filter, or use a model with a longer context"
    )
