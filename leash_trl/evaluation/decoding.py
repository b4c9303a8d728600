"""Decoding strategies: plain sampling, s1's budget forcing, DEER's early exit; each a series of requests to an engine.

A strategy gives one script per completion. A script asks the engine step by step, and returns the completion.
"""

import hashlib
import json
import math
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from leash_trl.engines.engine import MAX_SEED, Engine, Generation, Request, SamplingSettings


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Policy = Literal["avg1", "avg2"]
# texts at which a boxed trial answer is over
BOX_ENDS = (" }", "}\n", "}.", "}\\", "}}", ")}")
SMALLEST_PROBABILITY = 1e-10


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
            `ValueError`: If `scripts` raises it.
        """
        return run_scripts(
            self.scripts(engine.tokenizer, prompts_ids, settings.max_new_tokens), engine, seeds, settings
        )


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
    """What the scripts return, in their order; in each round the engine answers all that are not yet done.

    Args:
        scripts (`Sequence[Script]` of length N):
            Scripts that have not begun.
        engine (`Engine`), seeds (`Sequence[int]` of length N), settings (`SamplingSettings`):
            As in [`DecodingStrategy.complete`].
    """
    decoded: dict[int, Decoded] = {}
    asks = {row: next(script) for row, script in enumerate(scripts)}
    step = 0
    while asks:
        answers: dict[int, Generation] = {}
        for is_trial in (False, True):
            chosen = {row: ask for row, ask in asks.items() if ask.is_trial == is_trial}
            answers |= _answers(chosen, engine, seeds, settings, step, is_trial)
        rows, asks, step = [*asks], {}, step + 1
        for row in rows:
            try:
                asks[row] = scripts[row].send(answers[row])
            except StopIteration as end:
                decoded[row] = end.value
    return [decoded[row] for row in range(len(scripts))]


def _answers(
    asks: dict[int, Ask], engine: Engine, seeds: Sequence[int], settings: SamplingSettings, step: int, is_trial: bool
) -> dict[int, Generation]:
    """The engine's answers by row; trials are greedy, so they need their own call."""
    if not asks:
        return {}
    generations = engine.generate(
        [
            Request(tuple(ask.prompt_ids), step_seed(seeds[row], step), ask.max_new_tokens, ask.stop_token_ids)
            for row, ask in asks.items()
        ],
        replace(settings, temperature=0.0) if is_trial else settings,
        with_probabilities=is_trial,
        is_continuation=step > 0,
        description=f"sampling, step {step + 1}" if step else "sampling",
    )
    return dict(zip(asks, generations, strict=True))


def _check_range(strategy: DecodingStrategy, **ranges: tuple[float, float]) -> None:
    for name, (least, most) in ranges.items():
        if not least <= (value := getattr(strategy, name)) <= most:
            raise ValueError(f"{name} is {value}, but must be from {least} to {most}")


def ids_of_text(tokenizer: "PreTrainedTokenizerBase", text: str, field: str) -> list[int]:
    """Token ids of a text.

    Raises:
        `ValueError`: If the tokenizer cannot write it.
    """
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ValueError(f"{field} is {text!r}, which the model's tokenizer cannot write; choose another text")
    return ids


def id_of_token(tokenizer: "PreTrainedTokenizerBase", text: str, field: str) -> int:
    """Token id of a text that is one token.

    Raises:
        `ValueError`: If it is several.
    """
    ids = ids_of_text(tokenizer, text, field)
    if len(ids) != 1:
        raise ValueError(
            f"{field} is {text!r}, which is {len(ids)} tokens for the model's tokenizer, but must be one, so that "
            "generation can stop there; name the token that ends this model's thinking"
        )
    return ids[0]


def ids_with_word(tokenizer: "PreTrainedTokenizerBase", word: str, field: str) -> frozenset[int]:
    """Ids of all tokens that consist of a word and any white space around it.

    Raises:
        `ValueError`: If there is none.
    """
    candidates = [index for token, index in tokenizer.get_vocab().items() if word in token]
    ids = frozenset(index for index in candidates if tokenizer.decode([index]).strip() == word)
    if not ids:
        raise ValueError(
            f"{field} is {word!r}, which is no single token of the model's tokenizer; name a word that is one"
        )
    return ids


def answer_confidence(probabilities: Sequence[float], policy: Policy) -> float:
    r"""Confidence of a trial answer, in [0, 1]: the mean probability of its tokens from the second on.

    $$ \text{avg1} = \frac{1}{n-1} \sum_{t=2}^{n} p_t, \qquad
       \text{avg2} = \exp\left(\frac{1}{n-1} \sum_{t=2}^{n} \log p_t\right) $$

    Source: `vllm-deer.py` of `iie-ycx/DEER`, whose loop includes the last token, though its docstring says otherwise.

    Args:
        probabilities (`Sequence[float]`):
            Probability of each token of the trial. The first opens the box.
        policy (`str`):
            `"avg1"` or `"avg2"`.

    Returns:
        `float`: Confidence; 0 for a trial of fewer than two tokens.

    Example:
        >>> round(answer_confidence([0.3, 0.99, 0.98, 0.97], "avg1"), 6)
        0.98
    """
    counted = probabilities[1:]
    if not counted:
        return 0.0
    if policy == "avg1":
        return sum(counted) / len(counted)
    return math.exp(sum(math.log(max(p, SMALLEST_PROBABILITY)) for p in counted) / len(counted))


def box_length(tokenizer: "PreTrainedTokenizerBase", token_ids: Sequence[int]) -> int:
    """Tokens of a trial up to the one that completes a text after which the box is over; all if none does."""
    for length in range(1, len(token_ids)):
        text = tokenizer.decode(token_ids[:length])
        if any(end in text for end in BOX_ENDS):
            return length
    return len(token_ids)


@dataclass(frozen=True)
class Plain(DecodingStrategy):
    """Samples one completion, once; for every method that trains a model to stop by itself."""

    name: ClassVar[str] = "plain"

    def scripts(
        self, tokenizer: "PreTrainedTokenizerBase", prompts_ids: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[Script]:
        """One script per prompt; see [`DecodingStrategy.scripts`]."""
        return [self._script(prompt_ids, max_new_tokens) for prompt_ids in prompts_ids]

    def _script(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Script:
        generation = yield Ask(list(prompt_ids), max_new_tokens)
        return Decoded(generation.token_ids, len(generation.token_ids), generation.finish_reason == "length")


@dataclass(frozen=True)
class BudgetIds:
    """Token ids of budget forcing's texts."""

    stop: frozenset[int]
    wait: list[int]
    end: list[int]
    final_answer: list[int]


def kept_thinking(generation: Generation, tokens_left: int) -> tuple[list[int], bool]:
    """Thinking within the budget, without the token that ended it, and whether the budget cut it off.

    The engine must have been allowed one token beyond the budget: thinking that ends right at the budget ends itself.

    Args:
        generation (`Generation`):
            Thinking of up to `tokens_left + 1` tokens.
        tokens_left (`int`):
            Budget in tokens.

    Example:
        >>> kept_thinking(Generation([5, 6, 1], "stop"), 2), kept_thinking(Generation([5, 6, 7], "length"), 2)
        (([5, 6], False), ([5, 6], True))
    """
    is_cut = generation.finish_reason == "length"
    return (generation.token_ids[:tokens_left], True) if is_cut else (generation.token_ids[:-1], False)


@dataclass(frozen=True)
class BudgetForcing(DecodingStrategy):
    r"""s1's budget forcing: cuts thinking at a number of tokens, and continues thinking that ends too early.

    Thinking that reaches `max_thinking_tokens` is cut, and `end_thinking` and `final_answer` follow it. The first
    `num_ignore` times that the model ends its thinking, `wait` replaces the end.

    Source: [s1: Simple test-time scaling](https://huggingface.co/papers/2501.19393), README of `simplescaling/s1`,
    with `num_ignore` 1 and 32000 tokens. Its own models stop at `<|im_start|>` and end with `<|im_start|>answer`.

    Differs: inserted words do not count towards the budget, nor does the token that ends thinking (the README counts
    that token). With `counts_wait` the words count, as in s1's evaluation harness: there each continuation gets the
    full budget and everything is cut afterwards, which gives the same tokens. The harness starts a new line before
    `end_thinking` if thinking is cut.

    Args:
        max_thinking_tokens (`int`, *optional*, defaults to `32000`):
            Budget in tokens; thinking of exactly that length is not cut.
        num_ignore (`int`, *optional*, defaults to `0`):
            How often an end of thinking is ignored, budget permitting.
        counts_wait (`bool`, *optional*, defaults to `False`):
            Whether inserted words count towards the budget.
        stop_thinking (`str`, *optional*, defaults to `"</think>"`):
            Token at which the model ends its thinking; EOS does too.
        end_thinking (`str`, *optional*, defaults to `"</think>"`):
            Text after thinking.
        final_answer (`str`, *optional*, defaults to `"\nFinal Answer:"`):
            Text after that, if thinking was cut.
        wait (`str`, *optional*, defaults to `"Wait"`):
            Text in place of an ignored end.

    Raises:
        `ValueError`: If a number is out of its range.
    """

    name: ClassVar[str] = "budget_forcing"

    max_thinking_tokens: int = 32000
    num_ignore: int = 0
    counts_wait: bool = False
    stop_thinking: str = "</think>"
    end_thinking: str = "</think>"
    final_answer: str = "\nFinal Answer:"
    wait: str = "Wait"

    def __post_init__(self) -> None:
        _check_range(self, max_thinking_tokens=(1, math.inf), num_ignore=(0, math.inf))

    def scripts(
        self, tokenizer: "PreTrainedTokenizerBase", prompts_ids: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[Script]:
        """One script per prompt; see [`DecodingStrategy.scripts`].

        Raises:
            `ValueError`: If the tokenizer cannot write a text, or no token is left for an answer.
        """
        ids = BudgetIds(
            stop=frozenset([id_of_token(tokenizer, self.stop_thinking, "stop_thinking")]),
            wait=ids_of_text(tokenizer, self.wait if self.num_ignore else "", "wait"),
            end=ids_of_text(tokenizer, self.end_thinking, "end_thinking"),
            final_answer=ids_of_text(tokenizer, self.final_answer, "final_answer"),
        )
        put_in = self.num_ignore * len(ids.wait) + len(ids.end) + len(ids.final_answer)
        if self.max_thinking_tokens + put_in >= max_new_tokens:
            raise ValueError(
                f"max_thinking_tokens is {self.max_thinking_tokens}, which with {put_in} tokens put in leaves no "
                f"token for an answer within max_new_tokens={max_new_tokens}; lower it, or raise max_new_tokens"
            )
        return [self._script(list(prompt_ids), ids, max_new_tokens) for prompt_ids in prompts_ids]

    def _script(self, prompt_ids: list[int], ids: BudgetIds, max_new_tokens: int) -> Script:
        response: list[int] = []
        tokens_left, num_waits, num_dropped = self.max_thinking_tokens, 0, 0
        while True:
            generation = yield Ask([*prompt_ids, *response], tokens_left + 1, ids.stop)
            thinking, is_cut = kept_thinking(generation, tokens_left)
            num_dropped += len(generation.token_ids) - len(thinking)
            response += thinking
            tokens_left -= len(thinking)
            tokens_left_after_wait = tokens_left - len(ids.wait) * self.counts_wait
            if is_cut or num_waits == self.num_ignore or tokens_left_after_wait < 1:
                break
            response += ids.wait
            tokens_left, num_waits = tokens_left_after_wait, num_waits + 1
        # an end that is put back was not thrown away
        num_dropped -= generation.token_ids[-1:] == ids.end[:1]
        response += [*ids.end, *ids.final_answer] if is_cut else ids.end
        answer = yield Ask([*prompt_ids, *response], max_new_tokens - len(response))
        response += answer.token_ids
        return Decoded(response, len(response) + num_dropped, answer.finish_reason == "length")


@dataclass(frozen=True)
class DeerIds:
    """Token ids of DEER's texts."""

    boundaries: frozenset[int]
    stop: frozenset[int]
    trial: list[int]
    end: list[int]


@dataclass(frozen=True)
class Deer(DecodingStrategy):
    r"""DEER's early exit: at each "Wait" the model makes a trial answer, and thinking ends if it is confident of it.

    The trial is discarded in either case; its tokens only count in `num_generated_tokens`.

    Source: [Dynamic Early Exit in Reasoning Models](https://huggingface.co/papers/2504.15895), `vllm-deer.py` of
    `iie-ycx/DEER`, for models of DeepSeek-R1's kind.

    Differs: trials take the likeliest tokens (the source's script leaves vLLM's default temperature). A boundary is a
    token, so "Waiting" in one token is not one. Thinking that ends by itself keeps the model's own tokens, EOS within
    thinking ends the completion, and thinking may use its share to the last token (the source leaves 50). If thinking
    reaches its share, it is closed and the model answers; the source then inserts its final answer line.

    Args:
        threshold (`float`, *optional*, defaults to `0.95`):
            Confidence to exceed, in [0, 1].
        policy (`str`, *optional*, defaults to `"avg1"`):
            `"avg1"`, the arithmetic mean, or `"avg2"`, the geometric one.
        max_trials (`int`, *optional*, defaults to `10`):
            Trials per completion; after them thinking continues undisturbed.
        think_share (`float`, *optional*, defaults to `0.9`):
            Share of `max_new_tokens` for thinking, in (0, 1); then the answer is forced.
        max_trial_tokens (`int`, *optional*, defaults to `20`):
            Tokens of a trial.
        boundary (`str`, *optional*, defaults to `"Wait"`):
            Word before which the model makes a trial.
        trial (`str`, *optional*):
            Start of a trial; defaults to the source's final answer line up to `\boxed`.
        stop_thinking (`str`, *optional*, defaults to `"</think>"`):
            Token at which the model ends its thinking.
        end_thinking (`str`, *optional*, defaults to `"\n</think>\n\n"`):
            Text to insert when thinking ends early.

    Raises:
        `ValueError`: If a value is out of its range.
    """

    name: ClassVar[str] = "deer"

    threshold: float = 0.95
    policy: Policy = "avg1"
    max_trials: int = 10
    think_share: float = 0.9
    max_trial_tokens: int = 20
    boundary: str = "Wait"
    trial: str = "\n**Final Answer**\n\\boxed"
    stop_thinking: str = "</think>"
    end_thinking: str = "\n</think>\n\n"

    def __post_init__(self) -> None:
        # the first token of a trial is left out of its confidence
        _check_range(self, threshold=(0, 1), max_trials=(0, math.inf), max_trial_tokens=(2, math.inf))
        if self.policy not in ("avg1", "avg2"):
            raise ValueError(f"policy is {self.policy!r}, but must be 'avg1' or 'avg2'")

    def scripts(
        self, tokenizer: "PreTrainedTokenizerBase", prompts_ids: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[Script]:
        """One script per prompt; see [`DecodingStrategy.scripts`].

        Raises:
            `ValueError`: If the tokenizer cannot write a text, or thinking leaves too little for a trial or an answer.
        """
        ids = DeerIds(
            boundaries=ids_with_word(tokenizer, self.boundary, "boundary"),
            stop=frozenset([id_of_token(tokenizer, self.stop_thinking, "stop_thinking")]),
            trial=ids_of_text(tokenizer, self.trial, "trial"),
            end=ids_of_text(tokenizer, self.end_thinking, "end_thinking"),
        )
        max_thinking_tokens = int(max_new_tokens * self.think_share)
        needed = max(len(ids.trial) + self.max_trial_tokens, len(ids.end) + 1)
        if max_thinking_tokens < 1 or max_new_tokens - max_thinking_tokens < needed:
            raise ValueError(
                f"think_share is {self.think_share}, which leaves {max_new_tokens - max_thinking_tokens} of "
                f"max_new_tokens={max_new_tokens} after thinking, but trials and answer need {needed}; lower "
                "think_share, or raise max_new_tokens"
            )
        return [
            self._script(tokenizer, list(prompt_ids), ids, max_thinking_tokens, max_new_tokens)
            for prompt_ids in prompts_ids
        ]

    def _script(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        prompt_ids: list[int],
        ids: DeerIds,
        max_thinking_tokens: int,
        max_new_tokens: int,
    ) -> Script:
        thinking: list[int] = []
        end, num_dropped, num_trials = ids.end, 0, 0
        while len(thinking) < max_thinking_tokens:
            stops = ids.stop | ids.boundaries if num_trials < self.max_trials else ids.stop
            step = yield Ask([*prompt_ids, *thinking], max_thinking_tokens - len(thinking), stops)
            thinking += step.token_ids
            if step.finish_reason == "eos":
                return Decoded(thinking, len(thinking) + num_dropped, False)
            if step.finish_reason == "length":
                break
            if thinking[-1] in ids.stop:
                end = []
                break
            boundary = thinking.pop()
            trial = yield Ask([*prompt_ids, *thinking, *ids.trial], self.max_trial_tokens, is_trial=True)
            num_dropped, num_trials = num_dropped + len(trial.token_ids), num_trials + 1
            if self._is_confident(tokenizer, trial):
                num_dropped += 1
                break
            thinking.append(boundary)
        response = [*thinking, *end]
        answer = yield Ask([*prompt_ids, *response], max_new_tokens - len(response))
        response += answer.token_ids
        return Decoded(response, len(response) + num_dropped, answer.finish_reason == "length")

    def _is_confident(self, tokenizer: "PreTrainedTokenizerBase", trial: Generation) -> bool:
        length = box_length(tokenizer, trial.token_ids)
        return answer_confidence((trial.probabilities or [])[:length], self.policy) > self.threshold


STRATEGIES: dict[str, type[DecodingStrategy]] = {strategy.name: strategy for strategy in (Plain, BudgetForcing, Deer)}


def strategy_parameters() -> str:
    """Each strategy's name, and its parameters with their defaults as JSON, without the braces."""
    defaults = {name: {field.name: field.default for field in fields(kind)} for name, kind in STRATEGIES.items()}
    return "; ".join(f"{name}: {json.dumps(values)[1:-1] or 'no parameters'}" for name, values in defaults.items())


def make_strategy(name: str = "plain", **parameters: Any) -> DecodingStrategy:
    """A strategy by its name and parameters.

    Raises:
        `ValueError`: If there is no such strategy or parameter, or a value is of another type or out of its range.

    Example:
        >>> make_strategy("budget_forcing", max_thinking_tokens=1000).to_dict()["max_thinking_tokens"]
        1000
    """
    if name not in STRATEGIES:
        raise ValueError(f"decoding is {name!r}, but must be one of {', '.join(STRATEGIES)}")
    defaults = {field.name: field.default for field in fields(STRATEGIES[name])}
    for parameter, value in parameters.items():
        if parameter not in defaults:
            raise ValueError(f"decoding {name!r} has no parameter {parameter}; it has {', '.join(defaults) or 'none'}")
        expected = type(defaults[parameter])
        # a whole number is a number; a bool is an int in Python, but not here
        if type(value) is not expected and (expected, type(value)) != (float, int):
            raise ValueError(f"{name}'s {parameter} is {value!r}, but must be of type {expected.__name__}")
    return STRATEGIES[name](**parameters)
