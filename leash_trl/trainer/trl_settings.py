"""What the configuration of any trainer of TRL says about groups, generation and advantages.

The trainers that take reward functions have configurations of different classes. A field that one of them lacks has
the value with which its trainer works.
"""

import math
from typing import Any, Literal, NamedTuple

from trl import GRPOConfig, RLOOConfig

from leash_trl.completions.thinking import ThinkingMarkers, warn_of_hidden_markers
from leash_trl.model_facts import question_prompt, tokenizer_of


AdvantageKind = Literal["centered", "leave_one_out"]


class GroupSizes(NamedTuple):
    """Completions of one prompt that stand side by side in a call of a reward function; 1 if there are no groups.

    Args:
        training (`int`), evaluation (`int`): Completions per prompt.
    """

    training: int
    evaluation: int


def group_sizes(args: Any) -> GroupSizes:
    """Returns how many completions a trainer generates for each prompt."""
    training = getattr(args, "num_generations", 1)
    evaluation = getattr(args, "num_generations_eval", None) or training
    return GroupSizes(training, evaluation)


def completions_per_call(args: Any) -> int:
    """Returns how many completions one process scores in one call of a reward function during training."""
    # asynchronous GRPO has no steps_per_generation: its worker scores one group in each call
    num_steps: int = getattr(args, "steps_per_generation", group_sizes(args).training)
    return args.per_device_train_batch_size * num_steps


def generation_limit(args: Any) -> float:
    """Returns the most tokens that a completion may have, by TRL's rules; infinite if only the engine or the context
    length limits it."""
    # online DPO calls it max_new_tokens
    configured = getattr(args, "max_completion_length", getattr(args, "max_new_tokens", None))
    name_in_engine = "max_tokens" if getattr(args, "use_vllm", False) else "max_new_tokens"
    # these are the last arguments that TRL passes to the engine, so they win
    generation_kwargs = getattr(args, "generation_kwargs", None) or {}
    limit = generation_kwargs.get(name_in_engine, configured)
    return math.inf if limit is None else limit


def advantage_kind(args: Any) -> AdvantageKind | None:
    """Returns how a trainer computes advantages from rewards: `"centered"` subtracts the mean of the group,
    `"leave_one_out"` subtracts the mean of the other completions of the group; `None` also divides by a standard
    deviation, or is not known."""
    if isinstance(args, GRPOConfig):
        divides = args.scale_rewards not in ("none", False)
        sums_rewards = args.multi_objective_aggregation == "sum_then_normalize"
        return "centered" if sums_rewards and not divides else None
    if isinstance(args, RLOOConfig) and not args.normalize_advantages:
        return "leave_one_out"
    return None


def thinking_markers(args: Any, processing_class: Any, thinking_end: str) -> ThinkingMarkers:
    """Returns where the thinking begins and ends, and whether the chat template begins it in the prompt.

    Args:
        processing_class (`PreTrainedTokenizerBase` or `ProcessorMixin`): As for the trainer.
        thinking_end (`str`): Text that ends the thinking.
    """
    chat_template_kwargs = getattr(args, "chat_template_kwargs", None) or {}
    prompt = question_prompt(processing_class, **chat_template_kwargs)
    markers = ThinkingMarkers(thinking_end).after_prompt(prompt)
    warn_of_hidden_markers(tokenizer_of(processing_class), markers)
    return markers
