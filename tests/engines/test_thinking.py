"""Where thinking ends, by tokens: a marker of one token, and one whose last token holds more than the marker."""

import pickle

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from leash_trl.engines.thinking import ThinkingMarkers


def made_tokenizer(**special):
    """A byte-level tokenizer that merges `>` with the two new lines behind it, as those of Qwen2.5 do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([">\n\n"] * 9, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
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
    markers = ThinkingMarkers.of(tokenizer)
    counted = markers.thinking_length(ids, markers.is_opened_by(prompt))
    assert tokenizer.decode(ids[:counted]).rstrip("\n") == thinking
    assert not counted or tokenizer.decode(ids[: counted - 1]).rstrip("\n") != thinking


def test_a_marker_that_is_one_token_is_not_found_in_text_that_only_looks_like_it():
    quoted = [index for text in ("</thi", "nk>") for index in ONE.encode(text)]
    assert ONE.decode(quoted) == "</think>"
    assert ThinkingMarkers.of(ONE).thinking_length(quoted, False) == 0


def test_another_marker_and_one_without_a_beginning():
    ids = SEVERAL.encode("[THINK]ab[/THINK]12")
    num_thinking = ThinkingMarkers.of(SEVERAL, "[/THINK]").thinking_length(ids, False)
    assert SEVERAL.decode(ids[:num_thinking]) == "[THINK]ab[/THINK]"
    ids = SEVERAL.encode("ab### Answer 12")
    assert SEVERAL.decode(ids[: ThinkingMarkers.of(SEVERAL, "###").thinking_length(ids, False)]) == "ab###"
    assert ThinkingMarkers.of(SEVERAL, "###").thinking_length(SEVERAL.encode("ab"), False) == 0


def test_it_travels_to_other_processes_without_the_vocabulary():
    markers = pickle.loads(pickle.dumps(ThinkingMarkers.of(SEVERAL)))
    assert markers.thinking_length(SEVERAL.encode("a</think>b"), False) == len(SEVERAL.encode("a</think>"))


def test_a_blank_inside_a_marker_is_no_marker_where_a_token_alone_is_decoded_without_its_blank():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    tokenizer.decoder = decoders.Metaspace()
    corpus = ["</think>", "a </ think> b", "<think> 12"] * 9
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=24, show_progress=False))
    dropping = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    blank_alone = dropping.encode("a </ think> b")
    assert "".join(dropping.decode([index]) for index in blank_alone) != dropping.decode(blank_alone)
    markers = ThinkingMarkers.of(dropping)
    assert markers.thinking_length(blank_alone, False) == 0
    ids = dropping.encode("a b</think> 12")
    counted = markers.thinking_length(ids, False)
    assert dropping.decode(ids[:counted]).rstrip() == "a b</think>"


def test_a_marker_is_one_too_where_the_tokens_hold_no_blanks():
    tokenizer = Tokenizer(models.WordLevel({"<": 0, "/": 1, "think": 2, ">": 3, "a": 4, "b": 5}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert words.decode(words.encode("</think>")) == "< / think >"
    ids = words.encode("a</think>b")
    assert ThinkingMarkers.of(words).thinking_length(ids, False) == len(ids) - 1
