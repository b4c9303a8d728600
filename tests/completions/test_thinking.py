"""Where thinking ends, by tokens: a marker of one token, and one whose last token holds more than the marker."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from leash_trl.completions.thinking import ThinkingMarkers, ThinkingTokens, warn_of_hidden_markers


def made_tokenizer(**special):
    """A byte-level tokenizer that merges `>` with the two new lines behind it, as those of Qwen2.5 do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([">\n\n"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


ONE = made_tokenizer(additional_special_tokens=["<think>", "</think>"])
SEVERAL = made_tokenizer()


@pytest.mark.parametrize("tokenizer", [ONE, SEVERAL], ids=["one token", "several tokens"])
@pytest.mark.parametrize(
    ("prompt", "thinking", "rest"),
    [
        ("Q", "<think>ab</think>", "\n\n12"),
        ("Q<think>\n", "ab</think>", "12"),
        ("Q<think>\n", "ab, and so on", ""),  # never ends
        ("Q", "<think>ab, and so on", ""),
        ("Q", "", "12"),  # none
        ("Q<think>\n\n</think>\n\n", "", "12"),  # the prompt has closed it
        ("Q</think>A", "a</think>b</think>", "12"),  # the last end counts
        ("Q", "a</think>b<think>c", ""),  # begun anew
    ],
)
def test_thinking_goes_up_to_its_last_end(tokenizer, prompt, thinking, rest):
    ids = tokenizer.encode(thinking + rest)
    markers = ThinkingMarkers()
    num_thinking = ThinkingTokens(tokenizer, markers).thinking_length(ids, markers.is_opened_by(prompt))
    assert tokenizer.decode(ids[:num_thinking]).rstrip("\n") == thinking
    if num_thinking:
        assert tokenizer.decode(ids[: num_thinking - 1]).rstrip("\n") != thinking


def test_a_marker_that_is_one_token_is_not_found_in_text_that_only_looks_like_it():
    quoted = ONE.encode("</thi") + ONE.encode("nk>")
    assert ONE.decode(quoted) == "</think>"
    assert ThinkingTokens(ONE, ThinkingMarkers()).thinking_length(quoted, begins_in_thinking=False) == 0


@pytest.mark.parametrize(
    ("end", "thinking", "rest"),
    [
        ("[/THINK]", "[THINK]ab[/THINK]", "12"),
        ("###", "ab###", " Answer 12"),  # which has no beginning
        ("###", "", "ab"),
    ],
)
def test_other_markers(end, thinking, rest):
    ids = SEVERAL.encode(thinking + rest)
    num_thinking = ThinkingTokens(SEVERAL, ThinkingMarkers(end)).thinking_length(ids, begins_in_thinking=False)
    assert SEVERAL.decode(ids[:num_thinking]) == thinking


@pytest.mark.parametrize(
    ("markers", "completion", "visible"),
    [
        (ThinkingMarkers(), "12", "12"),
        (ThinkingMarkers(), "<think>maybe 3</think>12", "12"),
        (ThinkingMarkers(), "<think>a</think>3<think>no", ""),  # begun anew
        (ThinkingMarkers(begins_in_thinking=True), "maybe 3</think>12", "12"),
        (ThinkingMarkers("[/THINK]"), "[THINK]maybe 3[/THINK]12", "12"),
        (ThinkingMarkers("[/THINK]"), "<think>12", "<think>12"),  # not a marker here
        (ThinkingMarkers("###"), "maybe 3", "maybe 3"),
    ],
)
def test_only_text_after_the_thinking_is_visible(markers, completion, visible):
    assert markers.visible_text(completion) == visible


def test_a_blank_inside_a_marker_is_no_marker_where_a_token_alone_is_decoded_without_its_blank():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    tokenizer.decoder = decoders.Metaspace()
    corpus = ["</think>", "a </ think> b", "<think> 12"] * 9
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=24, show_progress=False))
    dropping = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    blank_alone = dropping.encode("a </ think> b")
    assert "".join(dropping.decode([index]) for index in blank_alone) != dropping.decode(blank_alone)
    thinking = ThinkingTokens(dropping, ThinkingMarkers())
    assert thinking.thinking_length(blank_alone, begins_in_thinking=False) == 0
    ids = dropping.encode("a b</think> 12")
    num_thinking = thinking.thinking_length(ids, begins_in_thinking=False)
    assert dropping.decode(ids[:num_thinking]).rstrip() == "a b</think>"


@pytest.mark.parametrize(
    ("markers", "prompt", "begins_in_thinking"),
    [
        (ThinkingMarkers(), "Q<think>\n", True),
        (ThinkingMarkers(), "Q<think>\n\n</think>\n\n", False),
        (ThinkingMarkers(), "Q", False),
        (ThinkingMarkers("[/THINK]"), "Q[THINK]", True),
        (ThinkingMarkers("[/THINK]"), "Q<think>", False),
        (ThinkingMarkers("###"), "Q###", False),
        (ThinkingMarkers("/"), "Q", False),
    ],
)
def test_a_prompt_may_open_the_thinking(markers, prompt, begins_in_thinking):
    assert markers.is_opened_by(prompt) == begins_in_thinking
    assert markers.for_prompt(prompt).begins_in_thinking == begins_in_thinking


@pytest.mark.parametrize("is_special", [True, False])
def test_a_marker_that_texts_do_not_show_is_said(is_special, recwarn):
    tokenizer = made_tokenizer()
    tokenizer.add_tokens([AddedToken("[THINK]", special=is_special), AddedToken("[/THINK]", special=is_special)])
    warn_of_hidden_markers(tokenizer, ThinkingMarkers("[/THINK]"))
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == is_special
    assert all("[/THINK]" in message and "\n" not in message for message in messages)


def test_markers_that_the_vocabulary_does_not_have_are_shown(recwarn):
    warn_of_hidden_markers(SEVERAL, ThinkingMarkers())
    assert not recwarn
