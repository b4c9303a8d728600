"""Plain sampling, and with it every method that trains a model to stop by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from leash_trl.evaluation.decoding.strategy import Ask, Decoded, DecodingStrategy, Script


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def plain_script(prompt_ids: Sequence[int], max_new_tokens: int) -> Script:
    """Samples until the model ends or the limit comes."""
    generation = yield Ask(list(prompt_ids), max_new_tokens)
    return Decoded(generation.token_ids, len(generation.token_ids), generation.finish_reason == "length")


@dataclass(frozen=True)
class Plain(DecodingStrategy):
    """Samples one completion, once."""

    name: ClassVar[str] = "plain"

    def scripts(
        self, tokenizer: "PreTrainedTokenizerBase", prompts_ids: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[Script]:
        """One script per prompt; see [`DecodingStrategy.scripts`]."""
        return [plain_script(prompt_ids, max_new_tokens) for prompt_ids in prompts_ids]
