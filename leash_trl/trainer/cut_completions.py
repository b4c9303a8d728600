"""Completions that end where length control cuts them, in the form in which TRL gives them to reward functions."""

from collections.abc import Sequence
from typing import Any

from trl.chat_template_utils import parse_response

from leash_trl.length_control.method import LengthControl


def check_cuts(trainer: Any) -> None:
    """Raises `ValueError` if a trainer's method cuts completions and the trainer's settings do not allow it."""
    if not trainer.length_control.cuts:
        return
    if trainer.tools or trainer.environment_factories is not None:
        refuse_turns(trainer.length_control)
    args = trainer.args
    if args.use_vllm and args.vllm_importance_sampling_correction and "sequence" in args.vllm_importance_sampling_mode:
        mode = f"vllm_importance_sampling_mode is {args.vllm_importance_sampling_mode!r}"
        raise ValueError(f"{mode}, but {trainer.length_control.name} cuts completions; set it to 'token_truncate'")


def refuse_turns(method: LengthControl) -> None:
    """Raises the `ValueError` for completions of several turns: what an answer earned in them cannot be cut."""
    turns = "with tools, environments or an env_mask of a rollout_func they have several turns"
    raise ValueError(f"length_control={method.name} cuts completions, but {turns}; choose another method")


def cut_completions(
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]],
    prompt_ids: Sequence[Sequence[int]],
    lengths: Sequence[int],
    processor: Any,
) -> tuple[list[Any], list[list[int]]]:
    """Completions as reward functions get them, and their tokens, cut to `lengths`; no end token follows a cut."""
    cut, cut_ids = list(completions), [list(ids) for ids in completion_ids]
    for row, length in enumerate(lengths):
        if length < len(cut_ids[row]):
            cut_ids[row] = cut_ids[row][:length]
            cut[row] = _decoded(processor, cut_ids[row], prompt_ids[row], not isinstance(completions[row], str))
    return cut, cut_ids


def _decoded(processor: Any, ids: list[int], prompt_ids: Sequence[int], is_message: bool) -> Any:
    # TRL: GRPOTrainer._generate decodes in the same way
    tokenizer = getattr(processor, "tokenizer", processor)
    parses = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))
    if is_message and parses:
        return [parse_response(tokenizer, ids, prefix=list(prompt_ids))]
    text = processor.batch_decode([ids], skip_special_tokens=True)[0]
    return [{"role": "assistant", "content": text}] if is_message else text
