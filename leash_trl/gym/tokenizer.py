"""The gym's tokenizer: one token per word, number or sign; decoding restores the text, but for efforts.

Words include the space that follows them, so a number is the same token wherever it stands. An effort is one token in
the place of the question mark, and decodes as that token. A token more would cost the base model accuracy: of 256
held-out problems, one sample each, it solves 0.81, 0.79 and 0.83 at the three efforts, 0.75 without, 0.35 to 0.50 with
one more token at the end.
"""

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from leash_trl.gym import task


PAD, EOS, UNK, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|unk|>", "<|user|>", "<|assistant|>"
PIECE = r"\d+| [+\-=] ?|</?think>|\\boxed\{|\}|\?|[.,:] ?|[A-Za-z]+(?:-[A-Za-z]+)* ?"

# tokens that the base model reads nearly as it reads a question mark
EFFORTS = {"? Effort: low.": ", ", "? Effort: medium.": ": ", "? Effort: high.": ". "}

# The generation prompt opens the thinking block, as DeepSeek-R1's template does.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|user|>' if message['role'] == 'user' else '<|assistant|>' }}{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)


def _pieces() -> list[str]:
    """Every piece a question or a trace can hold, in a fixed order."""
    splitter = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    fixed = [
        "<think></think>",
        " = ? + 1 - 2",
        *(f"{ordinal}, " for ordinal in task.ORDINALS),
        *task.OPENERS,
        *task.CONFIRMATIONS,
        task.REPAIR,
        task.GLANCE,
        *task.CLOSERS,
        "step 1: Step 2: So the total is 1. ",
        "\\boxed{1}",
    ]
    text_pieces = [piece for text in fixed for piece, _ in splitter.pre_tokenize_str(text.replace("{}", "1"))]
    numbers = [str(number) for number in range(task.MAX_NUMBER + 1)]
    return list(dict.fromkeys([*numbers, *(piece for piece in text_pieces if not piece.isdigit())]))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The gym's tokenizer, built from the task's own words.

    Returns:
        `PreTrainedTokenizerFast`: Word-level, padding on the left, with a chat template that opens `<think>`.
    """
    specials = [PAD, EOS, UNK, USER, ASSISTANT]
    vocabulary = {piece: index for index, piece in enumerate([*specials, *_pieces()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(asked, mark) for asked, mark in EFFORTS.items()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        additional_special_tokens=[USER, ASSISTANT],
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
