"""Budget forcing, the decoding strategy of s1: an upper and a lower limit on thinking."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from leash_trl.engines.engine import Generation
from leash_trl.evaluation.decoding.strategy import Ask, Decoded, DecodingStrategy, Script
from leash_trl.evaluation.decoding.vocabulary import id_of_token, ids_of_text


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        if self.max_thinking_tokens < 1:
            raise ValueError(f"max_thinking_tokens is {self.max_thinking_tokens}, but must be at least 1")
        if self.num_ignore < 0:
            raise ValueError(f"num_ignore is {self.num_ignore}, but must be at least 0")

    def scripts(
        self, tokenizer: "PreTrainedTokenizerBase", prompts_ids: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[Script]:
        """One script per prompt; see [`DecodingStrategy.scripts`].

        Raises:
            `ValueError`: If the tokenizer cannot write a text, or no token is left for an answer.
        """
        ids = self._ids(tokenizer)
        put_in = self.num_ignore * len(ids.wait) + len(ids.end) + len(ids.final_answer)
        if self.max_thinking_tokens + put_in >= max_new_tokens:
            raise ValueError(
                f"max_thinking_tokens is {self.max_thinking_tokens}, which with {put_in} tokens put in leaves no "
                f"token for an answer within max_new_tokens={max_new_tokens}; lower it, or raise max_new_tokens"
            )
        return [self._script(list(prompt_ids), ids, max_new_tokens) for prompt_ids in prompts_ids]

    def _ids(self, tokenizer: "PreTrainedTokenizerBase") -> BudgetIds:
        return BudgetIds(
            stop=frozenset([id_of_token(tokenizer, self.stop_thinking, "stop_thinking")]),
            wait=ids_of_text(tokenizer, self.wait if self.num_ignore else "", "wait"),
            end=ids_of_text(tokenizer, self.end_thinking, "end_thinking"),
            final_answer=ids_of_text(tokenizer, self.final_answer, "final_answer"),
        )

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
