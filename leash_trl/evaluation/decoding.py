"""Decoding strategies: plain sampling and s1's budget forcing."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from leash_trl.engines.engine import MAX_SEED, Engine, Generation, Request, SamplingSettings


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class DecodingStrategy:
    """Plain decoding, which samples each completion in one request; for models that stop by themselves.

    Another strategy is a subclass of this one: a frozen dataclass with another `name`, whose other fields are its
    parameters.
    """

    name: str = "plain"

    def check(self, tokenizer: "PreTrainedTokenizerBase", max_new_tokens: int) -> None:
        """Raises `ValueError` if the tokenizer lacks a token that the strategy needs, or the limit leaves no room."""

    def generate_completions(
        self,
        engine: Engine,
        prompts_ids: Sequence[Sequence[int]],
        seeds: Sequence[int],
        settings: SamplingSettings,
    ) -> list[list[int]]:
        """Returns the token ids of one completion per prompt, in their order, including inserted tokens. The result is
        deterministic."""
        requests = [
            Request(tuple(prompt_ids), seed, settings.max_new_tokens)
            for prompt_ids, seed in zip(prompts_ids, seeds, strict=True)
        ]
        return [generation.token_ids for generation in engine.generate(requests, settings)]


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


def ids_of_text(tokenizer: "PreTrainedTokenizerBase", text: str, field: str) -> list[int]:
    """Returns the token ids of a text; raises `ValueError` if the tokenizer has no tokens for it."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ValueError(f"{field} is {text!r}, which the model's tokenizer cannot encode; choose another text")
    return ids


def ids_with_word(tokenizer: "PreTrainedTokenizerBase", word: str, field: str) -> frozenset[int]:
    """Returns the ids of all tokens that are a word with or without white space around it; raises `ValueError` if
    there is none."""
    candidates = [index for token, index in tokenizer.get_vocab().items() if word in token]
    ids = frozenset(index for index in candidates if tokenizer.decode([index]).strip() == word)
    if not ids:
        raise ValueError(f"{field} is {word!r}, which is not a single token of the model's tokenizer; choose one")
    return ids


@dataclass(frozen=True)
class BudgetForcing(DecodingStrategy):
    r"""s1's budget forcing: stops thinking at a number of tokens, and continues thinking that ends too early.

    When the thinking exceeds `max_thinking_tokens`, it is stopped, and `end_thinking` and `final_answer` are appended.
    The first `num_ignore` times that the model itself ends its thinking, `wait` replaces the end.

    Source: [s1: Simple test-time scaling](https://huggingface.co/papers/2501.19393), README of `simplescaling/s1`,
    which sets `num_ignore` to 1 and the budget to 32000 tokens. For s1's own models, set `stop_thinking` to
    `<|im_start|>` and `end_thinking` to `<|im_start|>answer`.

    Differs: the inserted texts and the token that ends the thinking do not count toward the budget; in the README,
    that token counts, and in s1's evaluation harness, the texts do. The harness also starts a new line before
    `end_thinking` if it stops the thinking.

    Thinking of exactly `max_thinking_tokens` is not stopped. EOS ends the thinking as the token `stop_thinking` does.
    For a model that does not think, set `end_thinking` to "": its whole completion then counts as thinking, and a
    completion that ends by itself within the budget stays as it is.
    """

    name: str = "budget_forcing"
    max_thinking_tokens: int = 32000
    num_ignore: int = 0
    stop_thinking: str = "</think>"
    end_thinking: str = "</think>"
    final_answer: str = "\nFinal Answer:"
    wait: str = "Wait"

    def check(self, tokenizer: "PreTrainedTokenizerBase", max_new_tokens: int) -> None:
        """See [`DecodingStrategy.check`]."""
        if self.num_ignore < 0:
            raise ValueError(f"num_ignore is {self.num_ignore}, but must be at least 0; correct it")
        tokens = self.forcing_tokens(tokenizer)
        # the largest number of tokens that are inserted into a completion
        num_inserted = self.num_ignore * len(tokens.wait) + len(tokens.end) + len(tokens.final_answer)
        longest_budget = max_new_tokens - num_inserted - 1  # the answer has at least one token
        if not 1 <= self.max_thinking_tokens <= longest_budget:
            raise ValueError(
                f"max_thinking_tokens is {self.max_thinking_tokens}, but must be between 1 and {longest_budget}, so "
                f"that {num_inserted} inserted tokens and an answer fit into max_new_tokens={max_new_tokens}; change "
                "one of them"
            )

    def forcing_tokens(self, tokenizer: "PreTrainedTokenizerBase") -> "ForcingTokens":
        """Returns the token ids of the texts; raises `ValueError` if the tokenizer has none for a text."""
        return ForcingTokens(
            # Ids of tokens such as "</think>" and "</think>\n", any of which ends the thinking.
            stop=ids_with_word(tokenizer, self.stop_thinking, "stop_thinking"),
            wait=ids_of_text(tokenizer, self.wait, "wait") if self.num_ignore else [],
            end=ids_of_text(tokenizer, self.end_thinking, "end_thinking"),
            final_answer=ids_of_text(tokenizer, self.final_answer, "final_answer"),
        )

    def generate_completions(
        self,
        engine: Engine,
        prompts_ids: Sequence[Sequence[int]],
        seeds: Sequence[int],
        settings: SamplingSettings,
    ) -> list[list[int]]:
        """See [`DecodingStrategy.generate_completions`]. The engine generates the thinking of all completions up to
        its first end, then each further part for the completions that go on, and then all answers."""
        tokens = self.forcing_tokens(engine.tokenizer)
        completions = [
            ForcedCompletion(prompt_ids, seed, tokens_left=self.max_thinking_tokens)
            for prompt_ids, seed in zip(prompts_ids, seeds, strict=True)
        ]
        think(completions, engine, settings, tokens.stop)
        for _ in range(self.num_ignore):
            # If no budget is left, the end of the thinking is final.
            going_on = [completion for completion in completions if completion.tokens_left > 0]
            for completion in going_on:
                completion.response += tokens.wait
            think(going_on, engine, settings, tokens.stop)
        for completion in completions:
            completion.end_thinking(tokens)
        going_on = [completion for completion in completions if not completion.is_complete]
        requests = [completion.request(settings.max_new_tokens - len(completion.response)) for completion in going_on]
        answers = engine.generate(requests, settings) if requests else []
        for completion, answer in zip(going_on, answers, strict=True):
            completion.response += answer.token_ids
        return [completion.response for completion in completions]


class ForcingTokens(NamedTuple):
    """The token ids of budget forcing: each of `stop` ends the thinking, and the others are texts to insert."""

    stop: frozenset[int]
    wait: list[int]
    end: list[int]
    final_answer: list[int]


@dataclass
class ForcedCompletion:
    """A completion whose thinking is forced to a budget.

    Args:
        prompt_ids (`Sequence[int]`): Token ids of its prompt.
        seed (`int`): Its seed.
        tokens_left (`int`): Tokens that are left of the budget.
        response (`list[int]`): Token ids that were generated or inserted so far.
        num_steps (`int`): Number of requests so far, which have different seeds.
        last_token (`int`): Token that ended the thinking or, if the thinking was cut, the token beyond the budget.
        is_cut (`bool`): Whether the budget, not the model, ended the thinking.
        is_complete (`bool`): Whether no answer follows the thinking.
    """

    prompt_ids: Sequence[int]
    seed: int
    tokens_left: int
    response: list[int] = field(default_factory=list)
    num_steps: int = 0
    last_token: int = -1
    is_cut: bool = False
    is_complete: bool = False

    def request(self, max_new_tokens: int, stop_token_ids: frozenset[int] = frozenset()) -> Request:
        """Returns the request to continue the response."""
        prompt_ids = (*self.prompt_ids, *self.response)
        return Request(prompt_ids, step_seed(self.seed, self.num_steps), max_new_tokens, stop_token_ids)

    def add_thinking(self, generation: Generation) -> None:
        """Appends a part of the thinking, without its last token, which is kept as `last_token`."""
        *thinking, self.last_token = generation.token_ids
        self.response += thinking
        self.tokens_left -= len(thinking)
        self.num_steps += 1
        self.is_cut = generation.is_truncated

    def end_thinking(self, tokens: ForcingTokens) -> None:
        """Appends the text `end_thinking`, which replaces the token that ended the thinking. Without such a text, the
        completion of a model that ended it by itself is complete."""
        # The model is asked for the answer only if its thinking was cut; otherwise, it goes on to it by itself.
        if self.is_cut:
            self.response += [*tokens.end, *tokens.final_answer]
        elif tokens.end:
            self.response += tokens.end
        else:
            self.response.append(self.last_token)
            self.is_complete = True


def think(
    completions: Sequence[ForcedCompletion],
    engine: Engine,
    settings: SamplingSettings,
    stop: frozenset[int],
) -> None:
    """Continues the thinking of completions until the model ends it or the budget is spent."""
    # One token more than the budget, so that thinking of exactly the budget can end by itself.
    requests = [completion.request(completion.tokens_left + 1, stop) for completion in completions]
    generations = engine.generate(requests, settings) if requests else []
    for completion, generation in zip(completions, generations, strict=True):
        completion.add_thinking(generation)


STRATEGIES: dict[str, type[DecodingStrategy]] = {
    "plain": DecodingStrategy,
    "budget_forcing": BudgetForcing,
}


def make_strategy(name: str = "plain", **parameters: Any) -> DecodingStrategy:
    """Returns a strategy by its name and parameters; raises `ValueError` if it has no parameter of one of the names.

    Example:
        >>> make_strategy("budget_forcing", max_thinking_tokens=1000).max_thinking_tokens
        1000
    """
    strategy = STRATEGIES[name]
    known = [parameter.name for parameter in fields(strategy) if parameter.name != "name"]
    for parameter in parameters:
        if parameter not in known:
            raise ValueError(
                f"decoding_kwargs has {parameter!r}, but decoding {name!r} has "
                f"{', '.join(known) or 'no parameters'}; correct or remove it"
            )
    return strategy(**parameters)
