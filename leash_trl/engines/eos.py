"""Finds the tokens that end a completion."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the end tokens of the tokenizer and of a model's generation configuration."""
    return merged_eos_token_ids(model.generation_config.eos_token_id, tokenizer)


def merged_eos_token_ids(configured: list[int] | int | None, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the end token of the tokenizer and those of a generation configuration."""
    ids = configured if isinstance(configured, list) else [] if configured is None else [configured]
    return list(dict.fromkeys([tokenizer.eos_token_id, *ids]))
