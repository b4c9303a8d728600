"""Finds the tokens that end a completion."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The end tokens of a model's generation configuration, and the tokenizer's."""
    return merged_eos_token_ids(model.generation_config.eos_token_id, tokenizer)


def merged_eos_token_ids(configured: list[int] | int | None, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokenizer's end token and those that a generation configuration names."""
    ids = configured if isinstance(configured, list) else [] if configured is None else [configured]
    return list(dict.fromkeys([tokenizer.eos_token_id, *ids]))
