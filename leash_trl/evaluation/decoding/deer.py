"""DEER, a decoding strategy: ends thinking early when the model is confident of a trial answer."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from leash_trl.engines.engine import Generation
from leash_trl.evaluation.decoding.strategy import Ask, Decoded, DecodingStrategy, Script
from leash_trl.evaluation.decoding.vocabulary import id_of_token, ids_of_text, ids_with_word


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Policy = Literal["avg1", "avg2"]
# texts at which a boxed trial answer is over
BOX_ENDS = (" }", "}\n", "}.", "}\\", "}}", ")}")
SMALLEST_PROBABILITY = 1e-10


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
class DeerIds:
    """Token ids of DEER's texts."""

    boundaries: frozenset[int]
    stop: frozenset[int]
    trial: list[int]
    end: list[int]


@dataclass(frozen=True)
class Thinking:
    """Thinking up to the answer, the tokens discarded on the way, and whether the model ended it with EOS."""

    token_ids: list[int]
    num_dropped: int
    is_whole: bool = False


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
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is {self.threshold}, but must lie in [0, 1]")
        if self.policy not in ("avg1", "avg2"):
            raise ValueError(f"policy is {self.policy!r}, but must be 'avg1' or 'avg2'")
        if self.max_trials < 0:
            raise ValueError(f"max_trials is {self.max_trials}, but must be at least 0")
        if not 0 < self.think_share < 1:
            raise ValueError(f"think_share is {self.think_share}, but must lie between 0 and 1")
        if self.max_trial_tokens < 2:
            raise ValueError(
                f"max_trial_tokens is {self.max_trial_tokens}, but must be at least 2: the first is left out"
            )

    def scripts(
        self, tokenizer: "PreTrainedTokenizerBase", prompts_ids: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[Script]:
        """One script per prompt; see [`DecodingStrategy.scripts`].

        Raises:
            `ValueError`: If the tokenizer cannot write a text, or thinking leaves too little for a trial or an answer.
        """
        ids = self._ids(tokenizer)
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

    def _ids(self, tokenizer: "PreTrainedTokenizerBase") -> DeerIds:
        return DeerIds(
            boundaries=ids_with_word(tokenizer, self.boundary, "boundary"),
            stop=frozenset([id_of_token(tokenizer, self.stop_thinking, "stop_thinking")]),
            trial=ids_of_text(tokenizer, self.trial, "trial"),
            end=ids_of_text(tokenizer, self.end_thinking, "end_thinking"),
        )

    def _script(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        prompt_ids: list[int],
        ids: DeerIds,
        max_thinking_tokens: int,
        max_new_tokens: int,
    ) -> Script:
        thinking = yield from self._thinking(tokenizer, prompt_ids, ids, max_thinking_tokens)
        response = thinking.token_ids
        if thinking.is_whole:
            return Decoded(response, len(response) + thinking.num_dropped, False)
        answer = yield Ask([*prompt_ids, *response], max_new_tokens - len(response))
        response = [*response, *answer.token_ids]
        return Decoded(response, len(response) + thinking.num_dropped, answer.finish_reason == "length")

    def _thinking(
        self, tokenizer: "PreTrainedTokenizerBase", prompt_ids: list[int], ids: DeerIds, max_thinking_tokens: int
    ) -> Generator[Ask, Generation, Thinking]:
        thinking: list[int] = []
        num_dropped, num_trials = 0, 0
        while len(thinking) < max_thinking_tokens:
            stops = ids.stop | ids.boundaries if num_trials < self.max_trials else ids.stop
            step = yield Ask([*prompt_ids, *thinking], max_thinking_tokens - len(thinking), stops)
            thinking += step.token_ids
            if step.finish_reason == "length":
                break
            if step.finish_reason == "eos" or step.token_ids[-1] in ids.stop:
                return Thinking(thinking, num_dropped, is_whole=step.finish_reason == "eos")
            before_boundary = thinking[:-1]
            trial = yield Ask([*prompt_ids, *before_boundary, *ids.trial], self.max_trial_tokens, is_trial=True)
            num_dropped, num_trials = num_dropped + len(trial.token_ids), num_trials + 1
            if self._is_confident(tokenizer, trial):
                return Thinking([*before_boundary, *ids.end], num_dropped + 1)
        return Thinking([*thinking, *ids.end], num_dropped)

    def _is_confident(self, tokenizer: "PreTrainedTokenizerBase", trial: Generation) -> bool:
        length = box_length(tokenizer, trial.token_ids)
        return answer_confidence((trial.probabilities or [])[:length], self.policy) > self.threshold
