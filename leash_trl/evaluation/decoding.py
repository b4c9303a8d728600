"""Decoding strategies: plain sampling, s1's budget forcing, DEER's early exit; each gives one script per completion,
which asks the engine step by step and returns the completion.
"""

import hashlib
import math
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from leash_trl.engines.engine import MAX_SEED, Engine, Generation, Request, SamplingSettings


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Policy = Literal["avg1", "avg2"]
BOX_END = re.compile(r" \}|\}[\n.\\}]|\)\}")  # where a boxed trial answer is over
SMALLEST_PROBABILITY = 1e-10


@dataclass(frozen=True)
class Decoded:
    """One completion as a strategy made it: the response with EOS and inserted tokens, without trials; the number of
    its tokens and of all that were sampled and discarded on the way; whether the limit cut it off."""

    token_ids: list[int]
    num_generated_tokens: int
    is_truncated: bool


@dataclass(frozen=True)
class Ask:
    """The next request of one completion to the engine: the prompt and all tokens so far, and the limit of this step.

    With `is_trial` the engine takes the likeliest tokens and returns their probabilities, instead of sampling.
    """

    prompt_ids: list[int]
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    is_trial: bool = False

    def request(self, seed: int) -> Request:
        """What the engine is asked."""
        return Request(tuple(self.prompt_ids), seed, self.max_new_tokens, self.stop_token_ids)


# Yields what it needs, is sent what the engine generated, returns the completion.
Script = Generator[Ask, Generation, Decoded]


@dataclass(frozen=True)
class DecodingStrategy:
    """Samples one completion, once: plain decoding, for every method that trains a model to stop by itself.

    Another strategy is a subclass, a frozen dataclass with a `name` and a `script`, whose fields are its parameters.
    """

    name: ClassVar[str] = "plain"

    def script(self, tokenizer: "PreTrainedTokenizerBase", max_new_tokens: int) -> Callable[[list[int]], Script]:
        """What makes the script of a completion from the token ids of its prompt; responses end at `max_new_tokens`.

        A strategy without thinking of its own samples once, plainly.

        Raises:
            `ValueError`: If the tokenizer lacks a token that the strategy looks for, or the limit leaves no room.
        """
        return lambda prompt_ids: answered(prompt_ids, [], 0, max_new_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters, as a run's folder records them."""
        return {"name": self.name, **asdict(self)}

    def complete(
        self, engine: Engine, prompts_ids: Sequence[Sequence[int]], seeds: Sequence[int], settings: SamplingSettings
    ) -> list[Decoded]:
        """One completion per prompt, in their order; the same call gives the same completions.

        In each round the engine answers all scripts that are not yet done. `seeds` has one for each prompt, from which
        [`step_seed`] makes those of the later rounds.
        """
        script = self.script(engine.tokenizer, settings.max_new_tokens)
        scripts = [script(list(prompt_ids)) for prompt_ids in prompts_ids]
        decoded: dict[int, Decoded] = {}
        asks, step = {row: next(script) for row, script in enumerate(scripts)}, 0
        while asks:
            answers: dict[int, Generation] = {}
            for is_trial in sorted({ask.is_trial for ask in asks.values()}):  # trials are greedy: a call of their own
                chosen = {row: ask for row, ask in asks.items() if ask.is_trial == is_trial}
                generations = engine.generate(
                    [ask.request(step_seed(seeds[row], step)) for row, ask in chosen.items()],
                    replace(settings, temperature=0.0) if is_trial else settings,
                    with_probabilities=is_trial,
                    is_continuation=step > 0,
                )
                answers |= zip(chosen, generations, strict=True)
            rows, asks, step = [*asks], {}, step + 1
            for row in rows:
                try:
                    asks[row] = scripts[row].send(answers[row])
                except StopIteration as end:
                    decoded[row] = end.value
        return [decoded[row] for row in range(len(scripts))]


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


def answered(prompt_ids: list[int], response: list[int], num_dropped: int, max_new_tokens: int) -> Script:
    """The rest of a script whose thinking is closed: the answer, with what is left of the limit."""
    answer = yield Ask([*prompt_ids, *response], max_new_tokens - len(response))
    response = [*response, *answer.token_ids]
    return Decoded(response, len(response) + num_dropped, answer.finish_reason == "length")


def ids_of_text(tokenizer: "PreTrainedTokenizerBase", text: str, field: str) -> list[int]:
    """Token ids of a text, which `ValueError` says the tokenizer cannot write."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ValueError(f"{field} is {text!r}, which the model's tokenizer cannot write; choose another text")
    return ids


def ids_with_word(tokenizer: "PreTrainedTokenizerBase", word: str, field: str) -> frozenset[int]:
    """Ids of all tokens that consist of a word and any white space around it; `ValueError` if there is none."""
    candidates = [index for token, index in tokenizer.get_vocab().items() if word in token]
    ids = frozenset(index for index in candidates if tokenizer.decode([index]).strip() == word)
    if not ids:
        raise ValueError(f"{field} is {word!r}, which is no single token of the model's tokenizer; name one that is")
    return ids


def check_room(field: str, value: float, num_thinking: int, num_after: int, limit: int) -> None:
    """Raises `ValueError` if thinking and what must follow it, in tokens, do not fit into a completion."""
    if num_thinking < 1 or num_thinking + num_after > limit:
        rest = f"and {num_after} must follow, a trial or an answer; change it, or raise max_new_tokens={limit}"
        raise ValueError(f"{field} is {value}, which gives thinking {num_thinking} tokens, {rest}")


def answer_confidence(probabilities: Sequence[float], policy: Policy) -> float:
    r"""Confidence of a trial answer, in [0, 1]: the mean probability of its tokens from the second on, 0 without any.

    $$ \text{avg1} = \frac{1}{n-1} \sum_{t=2}^{n} p_t, \qquad
       \text{avg2} = \exp\left(\frac{1}{n-1} \sum_{t=2}^{n} \log p_t\right) $$

    The first token opens the box. Source: `vllm-deer.py` of `iie-ycx/DEER`, whose loop includes the last token, though
    its docstring says otherwise.

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
        if BOX_END.search(tokenizer.decode(token_ids[:length])):
            return length
    return len(token_ids)


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

    Thinking of exactly `max_thinking_tokens` is not cut. EOS ends thinking as the token `stop_thinking` does.
    """

    name: ClassVar[str] = "budget_forcing"

    max_thinking_tokens: int = 32000
    num_ignore: int = 0
    counts_wait: bool = False
    stop_thinking: str = "</think>"
    end_thinking: str = "</think>"
    final_answer: str = "\nFinal Answer:"
    wait: str = "Wait"

    def script(self, tokenizer: "PreTrainedTokenizerBase", max_new_tokens: int) -> Callable[[list[int]], Script]:
        """See [`DecodingStrategy.script`]."""
        stop = ids_with_word(tokenizer, self.stop_thinking, "stop_thinking")
        wait = ids_of_text(tokenizer, self.wait if self.num_ignore else "", "wait")
        end = ids_of_text(tokenizer, self.end_thinking, "end_thinking")
        final_answer = ids_of_text(tokenizer, self.final_answer, "final_answer")
        put_in = self.num_ignore * len(wait) + len(end) + len(final_answer)
        budget = self.max_thinking_tokens
        check_room("max_thinking_tokens", budget, budget, put_in + 1, max_new_tokens)

        def script(prompt_ids: list[int]) -> Script:
            response: list[int] = []
            tokens_left, num_ends = budget, 0
            while True:
                # one token beyond the budget: thinking that ends right at the budget ends itself
                generation = yield Ask([*prompt_ids, *response], tokens_left + 1, stop)
                *thinking, last = generation.token_ids
                response += thinking
                is_cut, num_ends = generation.finish_reason == "length", num_ends + 1
                tokens_left -= len(thinking) + len(wait) * self.counts_wait
                if is_cut or num_ends > self.num_ignore or tokens_left < 1:
                    break
                response += wait
            response += [*end, *final_answer] if is_cut else end
            # an end that is put back was not thrown away
            return (yield from answered(prompt_ids, response, num_ends - ([last] == end[:1]), max_new_tokens))

        return script


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
        threshold (`float`): Confidence to exceed, in [0, 1].
        policy (`str`): `"avg1"`, the arithmetic mean, or `"avg2"`, the geometric one.
        max_trials (`int`): Trials per completion; after them thinking continues undisturbed.
        think_share (`float`): Share of `max_new_tokens` for thinking, in (0, 1); then the answer is forced.
        max_trial_tokens (`int`): Tokens of a trial, of which the first does not count.
        boundary (`str`), trial (`str`): Word before which the model makes a trial, and how a trial starts.
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
        if self.policy not in ("avg1", "avg2") or not 0 <= self.threshold <= 1 or self.max_trial_tokens < 2:
            known = "policy 'avg1' or 'avg2', threshold from 0 to 1 and max_trial_tokens from 2 on"
            raise ValueError(f"deer takes {known}, not {self.policy!r}, {self.threshold} and {self.max_trial_tokens}")

    def script(self, tokenizer: "PreTrainedTokenizerBase", max_new_tokens: int) -> Callable[[list[int]], Script]:
        """See [`DecodingStrategy.script`]."""
        boundaries = ids_with_word(tokenizer, self.boundary, "boundary")
        stop = ids_with_word(tokenizer, self.stop_thinking, "stop_thinking")
        trial_ids = ids_of_text(tokenizer, self.trial, "trial")
        end = ids_of_text(tokenizer, self.end_thinking, "end_thinking")
        budget = int(max_new_tokens * self.think_share)
        needed = max(len(trial_ids) + self.max_trial_tokens, len(end) + 1)
        check_room("think_share", self.think_share, budget, needed, max_new_tokens)

        def script(prompt_ids: list[int]) -> Script:
            thinking: list[int] = []
            num_dropped, num_trials = 0, 0
            while len(thinking) < budget:
                stops = stop | boundaries if num_trials < self.max_trials else stop
                step = yield Ask([*prompt_ids, *thinking], budget - len(thinking), stops)
                thinking += step.token_ids
                if step.finish_reason == "eos":
                    return Decoded(thinking, len(thinking) + num_dropped, False)
                if step.finish_reason == "length" or thinking[-1] in stop:
                    break
                boundary = thinking.pop()
                trial = yield Ask([*prompt_ids, *thinking, *trial_ids], self.max_trial_tokens, is_trial=True)
                num_dropped, num_trials = num_dropped + len(trial.token_ids), num_trials + 1
                counted = (trial.probabilities or [])[: box_length(tokenizer, trial.token_ids)]
                if answer_confidence(counted, self.policy) > self.threshold:
                    num_dropped += 1
                    break
                thinking.append(boundary)
            response = [*thinking, *end] if stop.isdisjoint(thinking) else thinking
            return (yield from answered(prompt_ids, response, num_dropped, max_new_tokens))

        return script


STRATEGIES: dict[str, type[DecodingStrategy]] = {
    strategy.name: strategy for strategy in (DecodingStrategy, BudgetForcing, Deer)
}


def make_strategy(name: str = "plain", **parameters: Any) -> DecodingStrategy:
    """A strategy by its name and parameters; `ValueError` if there is no such one, or a value does not fit.

    Example:
        >>> make_strategy("budget_forcing", max_thinking_tokens=1000).to_dict()["max_thinking_tokens"]
        1000
    """
    if name not in STRATEGIES:
        raise ValueError(f"decoding is {name!r}, but must be one of {', '.join(STRATEGIES)}")
    defaults = asdict(STRATEGIES[name]())
    for parameter, value in parameters.items():
        kind = type(defaults.get(parameter, ...))
        # a whole number is a number; a bool is an int in Python, but not here
        if type(value) is not kind and (kind, type(value)) != (float, int):
            raise ValueError(f"decoding {name!r} takes no {parameter}={value!r}; its parameters: {defaults}")
    return STRATEGIES[name](**parameters)
