"""Decoding strategies: plain sampling and s1's budget forcing.

A strategy creates a generator for each completion, which sends requests to the engine and returns the completion.
"""

import hashlib
import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from leash_trl.engines.engine import MAX_SEED, Engine, Generation, Request, SamplingSettings


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# A generator that yields requests, receives what the engine generated for them, and returns the completion.
RequestGenerator: TypeAlias = Generator[Request, Generation, Generation]


@dataclass(frozen=True)
class DecodingStrategy:
    """Plain decoding, which samples each completion in one request; for models that stop by themselves.

    To write another strategy, subclass this one as a frozen dataclass with a `name` and a
    `request_generator_factory`; the fields are its parameters.
    """

    name: ClassVar[str] = "plain"

    def request_generator_factory(
        self, tokenizer: "PreTrainedTokenizerBase", max_new_tokens: int
    ) -> Callable[[Sequence[int], int], RequestGenerator]:
        """Returns a function that creates the generator of a completion from the token ids of its prompt and its seed.
        Completions end at `max_new_tokens`.

        The default samples the completion in one request.

        Raises:
            `ValueError`: If the tokenizer lacks a token that the strategy looks for, or the limit leaves no room.
        """
        return partial(answer_requests, max_new_tokens=max_new_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Returns name and parameters for the record of a run."""
        return {"name": self.name, **asdict(self)}

    def generate_completions(
        self, engine: Engine, prompts_ids: Sequence[Sequence[int]], seeds: Sequence[int], settings: SamplingSettings
    ) -> list[Generation]:
        """Returns one completion per prompt, in their order, including inserted tokens. The result is deterministic.

        In each round, the engine generates for all completions that are not done yet.
        """
        create_generator = self.request_generator_factory(engine.tokenizer, settings.max_new_tokens)
        generators = [create_generator(prompt_ids, seed) for prompt_ids, seed in zip(prompts_ids, seeds, strict=True)]
        # The next request of each generator that is not done, by the position of its prompt.
        requests = {row: next(generator) for row, generator in enumerate(generators)}
        completions: dict[int, Generation] = {}
        while requests:
            generations = engine.generate([*requests.values()], settings)
            next_requests = {}
            for row, generation in zip(requests, generations, strict=True):
                try:
                    # The generator goes on from its last `yield`, to its next request or to its end.
                    next_requests[row] = generators[row].send(generation)
                except StopIteration as end:
                    completions[row] = end.value  # what the generator returned
            requests = next_requests
        # Generators end in any order, and completions have the order of the prompts.
        return [completions[row] for row in range(len(generators))]


def step_seed(seed: int, step: int) -> int:
    """Returns the seed for a step of a completion: the completion's own for step 0, else the first 63 bits of BLAKE2b
    of `"seed:step"`.

    Example:
        >>> step_seed(7, 0), step_seed(7, 1) != step_seed(7, 2)
        (7, True)
    """
    if step == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & MAX_SEED


def answer_requests(
    prompt_ids: Sequence[int], seed: int, max_new_tokens: int, response: Sequence[int] = ()
) -> RequestGenerator:
    """Requests the answer with the rest of the token limit; `response` is the part of the completion before it."""
    tokens_left = max_new_tokens - len(response)
    answer = yield Request((*prompt_ids, *response), seed, tokens_left)
    return Generation([*response, *answer.token_ids], answer.is_truncated)


def ids_of_text(tokenizer: "PreTrainedTokenizerBase", text: str, field: str) -> list[int]:
    """Returns the token ids of a text; raises `ValueError` if the tokenizer has no tokens for it."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ValueError(f"{field} is {text!r}, which the model's tokenizer cannot encode; choose another text")
    return ids


def ids_with_word(tokenizer: "PreTrainedTokenizerBase", word: str, field: str) -> frozenset[int]:
    """Returns the ids of all tokens that consist of a word and any white space around it; raises `ValueError` if there
    is none."""
    candidates = [index for token, index in tokenizer.get_vocab().items() if word in token]
    ids = frozenset(index for index in candidates if tokenizer.decode([index]).strip() == word)
    if not ids:
        raise ValueError(f"{field} is {word!r}, which is not a single token of the model's tokenizer; choose one")
    return ids


@dataclass(frozen=True)
class BudgetForcing(DecodingStrategy):
    r"""s1's budget forcing: stops thinking at a number of tokens, and continues thinking that ends too early.

    When the thinking exceeds `max_thinking_tokens`, it is stopped, and `end_thinking` and `final_answer` are appended.
    The first `num_ignore` times that the model ends its thinking, `wait` replaces the end.

    Source: [s1: Simple test-time scaling](https://huggingface.co/papers/2501.19393), README of `simplescaling/s1`,
    with `num_ignore` 1 and 32000 tokens. For s1's own models, set `stop_thinking` to `<|im_start|>` and `end_thinking`
    to `<|im_start|>answer`.

    Differs: neither inserted words nor the token that ends the thinking count toward the budget; in the README, that
    token does, and in s1's evaluation harness, the words do. The harness also starts a new line before `end_thinking`
    if it stops the thinking.

    Thinking of exactly `max_thinking_tokens` is not stopped. EOS ends the thinking as the token `stop_thinking` does.
    """

    name: ClassVar[str] = "budget_forcing"

    max_thinking_tokens: int = 32000
    num_ignore: int = 0
    stop_thinking: str = "</think>"
    end_thinking: str = "</think>"
    final_answer: str = "\nFinal Answer:"
    wait: str = "Wait"

    def request_generator_factory(
        self, tokenizer: "PreTrainedTokenizerBase", max_new_tokens: int
    ) -> Callable[[Sequence[int], int], RequestGenerator]:
        """See [`DecodingStrategy.request_generator_factory`]."""
        tokens = ForcingTokens(
            # Ids of tokens such as "</think>" and "</think>\n", any of which ends the thinking.
            stop=ids_with_word(tokenizer, self.stop_thinking, "stop_thinking"),
            wait=ids_of_text(tokenizer, self.wait, "wait") if self.num_ignore else [],
            end=ids_of_text(tokenizer, self.end_thinking, "end_thinking"),
            final_answer=ids_of_text(tokenizer, self.final_answer, "final_answer"),
        )
        # The most tokens that are inserted into a completion.
        num_inserted = self.num_ignore * len(tokens.wait) + len(tokens.end) + len(tokens.final_answer)
        longest_budget = max_new_tokens - num_inserted - 1  # the answer has at least one token
        if not 1 <= self.max_thinking_tokens <= longest_budget:
            raise ValueError(
                f"max_thinking_tokens is {self.max_thinking_tokens}, but must be between 1 and {longest_budget}, so "
                f"that {num_inserted} inserted tokens and an answer fit into max_new_tokens={max_new_tokens}; change "
                "one of them"
            )
        return partial(self._requests, tokens=tokens, max_new_tokens=max_new_tokens)

    def _requests(
        self, prompt_ids: Sequence[int], seed: int, tokens: "ForcingTokens", max_new_tokens: int
    ) -> RequestGenerator:
        """Requests the thinking in one or more steps, and then the answer."""
        response: list[int] = []
        tokens_left = self.max_thinking_tokens
        # Each step continues the thinking until the model ends it or the budget is spent.
        for step in itertools.count():
            # One token more than the budget, so that thinking of exactly the budget can end by itself.
            generation = yield Request(
                (*prompt_ids, *response), step_seed(seed, step), tokens_left + 1, stop_token_ids=tokens.stop
            )
            # The last token is the end of the thinking or, if the thinking was cut, the one beyond the budget.
            thinking = generation.token_ids[:-1]
            response += thinking
            tokens_left -= len(thinking)
            # An end of thinking counts once `num_ignore` of them were ignored, or if no budget is left.
            if generation.is_truncated or step == self.num_ignore or tokens_left < 1:
                break
            response += tokens.wait
        # The text `end_thinking` replaces the token that ended the thinking.
        response += tokens.end
        # Only a model whose thinking was cut is asked for the answer, since others go on to it by themselves.
        if generation.is_truncated:
            response += tokens.final_answer
        return (yield from answer_requests(prompt_ids, step_seed(seed, step + 1), max_new_tokens, response))


class ForcingTokens(NamedTuple):
    """The token ids of budget forcing: each of `stop` ends the thinking, and the others are texts to insert."""

    stop: frozenset[int]
    wait: list[int]
    end: list[int]
    final_answer: list[int]


STRATEGIES: dict[str, type[DecodingStrategy]] = {
    "plain": DecodingStrategy,
    "budget_forcing": BudgetForcing,
}


def make_strategy(name: str = "plain", **parameters: Any) -> DecodingStrategy:
    """Returns a strategy by its name and parameters.

    Example:
        >>> make_strategy("budget_forcing", max_thinking_tokens=1000).to_dict()["max_thinking_tokens"]
        1000
    """
    return STRATEGIES[name](**parameters)
