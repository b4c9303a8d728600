"""Samples completions with plain transformers, for evaluation on any device."""

from dataclasses import dataclass

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from leash_trl.engines.eos import eos_token_ids
from leash_trl.engines.shrinking_batch import get_warpers, sample_tokens


@dataclass(frozen=True)
class Completion:
    """One sampled completion: its text, its length in tokens (EOS included), and whether the limit cut it off."""

    text: str
    length: int
    is_truncated: bool


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[dict[str, str]]],
    num_samples: int,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch_size: int = 128,
    seed: int = 0,
    description: str = "sampling",
) -> list[list[Completion]]:
    """Samples `num_samples` completions for every prompt.

    Args:
        model (`PreTrainedModel`):
            Model to sample from.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer, with a chat template.
        prompts (`list[list[dict[str, str]]]`):
            Conversations that end with a user message.
        num_samples (`int`):
            Completions per prompt.
        max_new_tokens (`int`):
            Limit in tokens; a completion without EOS by then is truncated.
        temperature (`float`), top_p (`float`):
            Sampling parameters.
        batch_size (`int`):
            Completions sampled at once.
        seed (`int`):
            Seed of torch's global generator, set once at the start.
        description (`str`):
            Label of the progress bar.

    Returns:
        `list[list[Completion]]`: One list of `num_samples` completions per prompt.
    """
    torch.manual_seed(seed)
    model.eval()
    eos_ids = eos_token_ids(model, tokenizer)
    warpers = get_warpers(temperature, top_p)
    rows = [prompt for prompt in prompts for _ in range(num_samples)]
    completions: list[Completion] = []
    for start in tqdm(range(0, len(rows), batch_size), desc=description, unit="batch", leave=False):
        prompt_ids = tokenizer.apply_chat_template(
            rows[start : start + batch_size], add_generation_prompt=True, return_dict=False
        )
        for ids in sample_tokens(model, prompt_ids, eos_ids, tokenizer.pad_token_id, max_new_tokens, warpers):
            text = tokenizer.decode(ids, skip_special_tokens=True)
            completions.append(Completion(text, len(ids), ids[-1] not in eos_ids))
    return [completions[start : start + num_samples] for start in range(0, len(completions), num_samples)]
