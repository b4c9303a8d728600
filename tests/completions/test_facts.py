"""The sizes of a completion: what the model wrote, what of it is thinking, and whether it ended."""

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from leash_trl.completions.facts import CompletionFacts, completion_facts
from leash_trl.completions.thinking import ThinkingMarkers, ThinkingTokens


EOS = 2
START = 10
END = 11
VOCABULARY = {"<unk>": 0, "<think>": START, "</think>": END}
TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>")))
THINKING = ThinkingTokens(TOKENIZER, ThinkingMarkers())


def test_thinking_that_a_prompt_opened_and_nobody_ended_is_all_of_the_completion():
    facts = completion_facts([5, 6], {EOS}, thinking=THINKING, begins_in_thinking=True)
    assert facts == CompletionFacts(num_tokens=2, num_thinking_tokens=2, is_truncated=True)


def test_the_output_of_tools_counts_nowhere_and_its_markers_are_not_the_models():
    # the model: start, 5; a tool: end, 7; the model: 6, end, 8, EOS
    ids = [START, 5, END, 7, 6, END, 8, EOS]
    facts = completion_facts(ids, {EOS}, tool_mask=[1, 1, 0, 0, 1, 1, 1, 1], thinking=THINKING)
    assert facts == CompletionFacts(num_tokens=6, num_thinking_tokens=4, is_truncated=False)


def test_an_empty_completion_is_truncated():
    assert completion_facts([], {EOS}) == CompletionFacts(0, 0, is_truncated=True)
