"""Turns the texts that a decoding strategy looks for or inserts into token ids."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
