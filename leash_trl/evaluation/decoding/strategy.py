"""The interface of a decoding strategy: one script per completion, which asks the engine step by step."""

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from leash_trl.engines.engine import MAX_SEED, Engine, Generation, Request, SamplingSettings, check_lengths


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Decoded:
    """One completion as a strategy made it.

    Args:
        token_ids (`list[int]`):
            Tokens of the response, with EOS and inserted tokens, without trials.
        num_generated_tokens (`int`):
            Those tokens, and all that were sampled and discarded on the way.
        is_truncated (`bool`):
            Whether the limit cut the response off.
    """

    token_ids: list[int]
    num_generated_tokens: int
    is_truncated: bool


@dataclass(frozen=True)
class Ask:
    """The next request of one completion to the engine.

    Args:
        prompt_ids (`list[int]`):
            The prompt and all tokens so far.
        max_new_tokens (`int`):
            Limit of this step in tokens.
        stop_token_ids (`frozenset[int]`, *optional*):
            Tokens that end this step.
        is_trial (`bool`, *optional*, defaults to `False`):
            Whether to take the likeliest tokens and return their probabilities, instead of sampling.
    """

    prompt_ids: list[int]
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    is_trial: bool = False


# Yields what it needs, is sent what the engine generated, returns the completion.
Script = Generator[Ask, Generation, Decoded]


@dataclass(frozen=True)
class DecodingStrategy:
    """A strategy; a subclass is a frozen dataclass with a `name` and `scripts`, its fields are its parameters."""

    name: ClassVar[str]

    def scripts(
        self, tokenizer: "PreTrainedTokenizerBase", prompts_ids: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[Script]:
        """One script per prompt.

        Args:
            tokenizer (`PreTrainedTokenizerBase`):
                The engine's tokenizer.
            prompts_ids (`Sequence[Sequence[int]]` of length N):
                Token ids of the prompts.
            max_new_tokens (`int`):
                Limit of a response in tokens.

        Raises:
            `ValueError`: If the tokenizer lacks a token that the strategy looks for, or the limit leaves no room.
        """
        raise NotImplementedError

    def check(self, tokenizer: "PreTrainedTokenizerBase", max_new_tokens: int) -> None:
        """Checks cheaply, before anything is sampled, that the strategy works with this tokenizer and limit.

        Args:
            tokenizer (`PreTrainedTokenizerBase`), max_new_tokens (`int`):
                As in [`DecodingStrategy.scripts`].

        Raises:
            `ValueError`: If `scripts` raises it.
        """
        self.scripts(tokenizer, [], max_new_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters, as a run's folder records them."""
        return {"name": self.name, **asdict(self)}

    def complete(
        self,
        engine: Engine,
        prompts_ids: Sequence[Sequence[int]],
        seeds: Sequence[int],
        settings: SamplingSettings,
    ) -> list[Decoded]:
        """One completion per prompt; the same call gives the same completions.

        Args:
            engine (`Engine`):
                The engine that generates.
            prompts_ids (`Sequence[Sequence[int]]` of length N):
                Token ids of the prompts, chat template applied; one per completion.
            seeds (`Sequence[int]` of length N):
                Seed of each completion; its later steps take seeds from [`step_seed`].
            settings (`SamplingSettings`):
                Settings of the sampling, and the limit of a response in tokens.

        Raises:
            `ValueError`: If prompt and limit do not fit into the model's context, or `scripts` raises it.
        """
        limit = settings.max_new_tokens
        check_lengths(
            [Request(tuple(prompt), seed, limit) for prompt, seed in zip(prompts_ids, seeds, strict=True)],
            engine.max_length,
        )
        return run_scripts(self.scripts(engine.tokenizer, prompts_ids, limit), engine, seeds, settings)


def step_seed(seed: int, step: int) -> int:
    """Seed of a completion's step: its own for step 0, else the first 63 bits of BLAKE2b of `"seed:step"`.

    Example:
        >>> step_seed(7, 0), step_seed(7, 1) != step_seed(7, 2)
        (7, True)
    """
    if step == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & MAX_SEED


def run_scripts(
    scripts: Sequence[Script], engine: Engine, seeds: Sequence[int], settings: SamplingSettings
) -> list[Decoded]:
    """Runs scripts side by side: in each round the engine answers all that are not yet done.

    Args:
        scripts (`Sequence[Script]` of length N):
            Scripts that have not begun.
        engine (`Engine`), seeds (`Sequence[int]` of length N), settings (`SamplingSettings`):
            As in [`DecodingStrategy.complete`].

    Returns:
        `list[Decoded]`: What the scripts return, in their order.
    """
    decoded: dict[int, Decoded] = {}
    asks = {row: next(script) for row, script in enumerate(scripts)}
    step = 0
    while asks:
        answers = _answers(asks, engine, seeds, settings, step)
        asks = {}
        for row, answer in answers.items():
            try:
                asks[row] = scripts[row].send(answer)
            except StopIteration as end:
                decoded[row] = end.value
        step += 1
    return [decoded[row] for row in range(len(scripts))]


def _answers(
    asks: dict[int, Ask], engine: Engine, seeds: Sequence[int], settings: SamplingSettings, step: int
) -> dict[int, Generation]:
    """The engine's answers by row; trials are greedy, so they need their own call."""
    answers: dict[int, Generation] = {}
    for is_trial in (False, True):
        requests = {
            row: Request(tuple(ask.prompt_ids), step_seed(seeds[row], step), ask.max_new_tokens, ask.stop_token_ids)
            for row, ask in asks.items()
            if ask.is_trial == is_trial
        }
        if requests:
            generations = engine.generate(
                list(requests.values()),
                replace(settings, temperature=0.0) if is_trial else settings,
                with_probabilities=is_trial,
                is_continuation=step > 0,
                description="sampling" if step == 0 else f"sampling, step {step + 1}",
            )
            answers |= dict(zip(requests, generations, strict=True))
    # rows in their order, whatever the kind of their step
    return {row: answers[row] for row in asks}
