"""What the configuration of any trainer of TRL says about groups, generation and advantages.

The trainers that take reward functions have configurations of different classes. For a field that a configuration
lacks, the value is used with which its trainer works.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import GRPOConfig, RLOOConfig

from leash_trl.completions.thinking import DEFAULT_MARKERS, ThinkingMarkers, warn_of_hidden_markers
from leash_trl.model_facts import SAMPLE_QUESTION, eos_token_ids, rendered_prompt, tokenizer_of


AdvantageBaseline = Literal["centered", "leave_one_out"]


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run that a reward function needs.

    Args:
        num_generations (`int`), num_generations_eval (`int`): Completions per prompt in training and in evaluation,
            which stand next to each other; 1 for a trainer without groups.
        completions_per_call (`int`): Completions that one process scores in one call during training.
        num_processes (`int`): Number of training processes, each of which scores only its own completions.
        max_completion_length (`float`): Generation limit in tokens; infinite for no limit.
        end_ids (`frozenset[int]`): Tokens that end a completion.
        pad_id (`int`): The padding token, for trainers that pass padded completions to reward functions.
        advantage_baseline (`str`): How the trainer computes advantages from rewards; see [`advantage_baseline`].
        normalizes_each_reward (`bool`): Whether the trainer normalizes each reward function apart before it sums them.
        thinking_markers ([`ThinkingMarkers`]): Where the thinking begins and ends, for a sample question.
        tokenizer (`PreTrainedTokenizerBase`): That of the model.
        processing_class (`PreTrainedTokenizerBase` or `ProcessorMixin`), chat_template_kwargs (`dict`): What renders
            messages, and its arguments.
    """

    num_generations: int
    num_generations_eval: int
    max_completion_length: float
    end_ids: frozenset[int]
    pad_id: int
    tokenizer: PreTrainedTokenizerBase
    completions_per_call: int = 1
    num_processes: int = 1
    advantage_baseline: AdvantageBaseline | None = None
    normalizes_each_reward: bool = False
    thinking_markers: ThinkingMarkers = DEFAULT_MARKERS
    processing_class: Any = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


def run_settings(args: Any, model: PreTrainedModel, processing_class: Any, thinking_end: str) -> RunSettings:
    """Returns the settings of a run that the configuration of a trainer of TRL means.

    Args:
        processing_class (`PreTrainedTokenizerBase` or `ProcessorMixin`): As for the trainer.
        thinking_end (`str`): Text that ends the thinking.
    """
    tokenizer = tokenizer_of(processing_class)
    num_generations: int = getattr(args, "num_generations", 1)  # online DPO has no groups
    # asynchronous GRPO has no steps_per_generation; its worker scores one group of `num_generations` in each call
    num_steps: int = getattr(args, "steps_per_generation", num_generations)
    return RunSettings(
        num_generations=num_generations,
        num_generations_eval=getattr(args, "num_generations_eval", None) or num_generations,
        completions_per_call=args.per_device_train_batch_size * num_steps,
        num_processes=args.world_size,
        max_completion_length=generation_limit(args),
        end_ids=frozenset(eos_token_ids(model, tokenizer)),
        pad_id=tokenizer.pad_token_id,
        advantage_baseline=advantage_baseline(args),
        normalizes_each_reward=getattr(args, "multi_objective_aggregation", None) == "normalize_then_sum",
        thinking_markers=thinking_markers(args, processing_class, thinking_end),
        tokenizer=tokenizer,
        processing_class=processing_class,
        chat_template_kwargs=getattr(args, "chat_template_kwargs", None) or {},
    )


def generation_limit(args: Any) -> float:
    """Returns the most tokens that a completion may have, by TRL's rules; infinite if only the engine or the context
    length limits it."""
    # Online DPO has max_new_tokens instead of max_completion_length.
    configured = getattr(args, "max_completion_length", getattr(args, "max_new_tokens", None))
    name_in_engine = "max_tokens" if getattr(args, "use_vllm", False) else "max_new_tokens"
    # TRL merges generation_kwargs into the engine's arguments last, so a limit in them wins.
    generation_kwargs = getattr(args, "generation_kwargs", None) or {}
    limit = generation_kwargs.get(name_in_engine, configured)
    return math.inf if limit is None else limit


def advantage_baseline(args: Any) -> AdvantageBaseline | None:
    """Returns how a trainer computes advantages from rewards: `"centered"` subtracts the mean of the group,
    `"leave_one_out"` subtracts the mean of the other completions of the group; `None` if the trainer also divides by a
    standard deviation, or if its rule is not known."""
    if isinstance(args, GRPOConfig):
        # GRPOConfig turns False into "none". If each reward function is normalized apart, TRL always divides.
        divides = args.scale_rewards != "none"
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
    # The prompt of any question shows whether the chat template ends it with the text that begins the thinking.
    chat_template_kwargs = getattr(args, "chat_template_kwargs", None) or {}
    prompt = rendered_prompt(processing_class, SAMPLE_QUESTION, **chat_template_kwargs)
    markers = ThinkingMarkers(thinking_end).for_prompt(prompt)
    warn_of_hidden_markers(tokenizer_of(processing_class), markers)
    return markers
