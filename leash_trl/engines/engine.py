"""The interface of all engines, which turn requests into generations, deterministically."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MAX_SEED = 2**63 - 1  # the largest seed that all libraries of the engines accept


@dataclass(frozen=True)
class SamplingSettings:
    """Settings for sampling completions; the defaults are the paper's.

    Source: evaluation settings of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        temperature (`float`): Temperature, dimensionless; with 0, the most likely token is chosen.
        top_p (`float`): Probability mass to sample from, in (0, 1].
        top_k (`int`): Number of most likely tokens to sample from; 0 means all.
        max_new_tokens (`int`): Maximum length of a completion in tokens. Engines use the limit of each request.
    """

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0
    max_new_tokens: int = 32768


@dataclass(frozen=True)
class Request:
    """One completion to generate, with its own seed, its limit in tokens, and stop tokens, which end the completion as
    the model's end tokens do."""

    prompt_ids: tuple[int, ...]
    seed: int
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()

    def end_ids(self, eos_token_ids: Iterable[int]) -> frozenset[int]:
        """Returns all tokens that end the completion: the end tokens of the model, and those of the request."""
        return self.stop_token_ids.union(eos_token_ids)


@dataclass(frozen=True)
class Generation:
    """One completion as an engine generated it.

    Args:
        token_ids (`list[int]`): Its tokens, including the end token or stop token.
        is_truncated (`bool`): Whether its last token is neither an end token nor a stop token: the limit cut it off.
    """

    token_ids: list[int]
    is_truncated: bool


def generations_of(
    requests: Sequence[Request], completions: Sequence[list[int]], eos_token_ids: Sequence[int]
) -> list[Generation]:
    """Returns the generations of requests by the token ids, at least one each, that an engine sampled for them."""
    generations = []
    for request, token_ids in zip(requests, completions, strict=True):
        is_truncated = token_ids[-1] not in request.end_ids(eos_token_ids)
        generations.append(Generation(token_ids, is_truncated))
    return generations


class Engine(Protocol):
    """A model that completes prompts.

    Attributes:
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        eos_token_ids (`list[int]`): Tokens that end a completion.
        max_length (`int`): Maximum number of tokens of prompt and completion together; `None` if not known.
    """

    tokenizer: "PreTrainedTokenizerBase"
    eos_token_ids: list[int]
    max_length: int | None

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Generation]:
        """Returns one generation per request, in their order. The result is deterministic.

        Raises:
            `ValueError`: If a request does not fit into the model's context.
        """
        ...


def check_lengths(requests: Sequence[Request], max_length: int | None) -> None:
    """Raises `ValueError` if the prompt and the limit of a request together exceed the context, since transformers
    would generate beyond it. If `max_length` is `None`, nothing is checked."""
    if max_length is None:
        return
    for request in requests:
        prompt_length = len(request.prompt_ids)
        num_left = max(0, max_length - prompt_length)  # 0 if the prompt alone is too long
        if request.max_new_tokens > num_left:
            raise ValueError(
                f"max_new_tokens is {request.max_new_tokens}, but with a prompt of {prompt_length} tokens the model's "
                f"context of {max_length} tokens holds {num_left} more; lower max_new_tokens to that, remove longer "
                "prompts, or use a model with a longer context"
            )
