"""Samples completions with plain transformers, for evaluation on any device."""

from dataclasses import dataclass

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Completion:
    """One sampled completion: its text, its length in tokens (EOS included), and whether the limit cut it off."""

    text: str
    length: int
    is_truncated: bool


def _until_eos(ids: list[int], eos_ids: set[int]) -> list[int]:
    end = next((position for position, token in enumerate(ids) if token in eos_ids), len(ids) - 1)
    return ids[: end + 1]


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
    eos = model.generation_config.eos_token_id
    eos_ids = set(eos if isinstance(eos, list) else [eos])
    rows = [prompt for prompt in prompts for _ in range(num_samples)]
    completions: list[Completion] = []
    for start in tqdm(range(0, len(rows), batch_size), desc=description, unit="batch", leave=False):
        inputs = tokenizer.apply_chat_template(
            rows[start : start + batch_size],
            add_generation_prompt=True,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            return_dict=True,
        ).to(model.device)
        with torch.inference_mode():
            # top_k=0: transformers' own default cuts the distribution to 50 tokens
            output = model.generate(
                **inputs, do_sample=True, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, top_k=0
            )
        for ids in output[:, inputs["input_ids"].shape[1] :].tolist():
            kept = _until_eos(ids, eos_ids)
            text = tokenizer.decode(kept, skip_special_tokens=True)
            completions.append(Completion(text, len(kept), kept[-1] not in eos_ids))
    return [completions[start : start + num_samples] for start in range(0, len(completions), num_samples)]
