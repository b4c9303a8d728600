"""The gym's tokenizer: one token per word, number, signed term, label or sign; decoding restores the text.

A number is the same token wherever it stands, a signed term another. An effort in the prompt is one token. Words that
the task does not use are unknown tokens; the base model has seen prompts that end with some.
"""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from leash_trl.gym import task


PAD, EOS, UNK, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|unk|>", "<|user|>", "<|assistant|>"
EFFORTS = (" Effort: low.", " Effort: medium.", " Effort: high.")  # as leash_trl.data appends them
PIECE = r" Effort: [a-z]+\.| \([a-i]\) ?|[+\-]\d+|\d+| = ?|</?think>|\\boxed\{|\}|\?|\.| ?[A-Za-z]+,?(?: (?!\())?"

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
    labels = [f" ({label}) " for label in task.LABELS]
    signed = [f"{term:+d}" for term in range(-9, 10) if term]
    texts = [*task.STEPS, *task.OPENERS, task.CONFIRMATION, task.REPAIR, task.CLOSER]
    fixed = [
        "<think></think>",
        " = ?",
        *(text.replace("{total}", "1").replace("{}", "1").format(label="a", term=1) for text in texts),
        "\\boxed{1}",
    ]
    words = [piece for text in fixed for piece, _ in splitter.pre_tokenize_str(text)]
    numbers = [str(number) for number in range(task.MAX_NUMBER + 1)]
    return list(dict.fromkeys([*numbers, *signed, *labels, *EFFORTS, *words]))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The gym's tokenizer: the task's own words, padding on the left, a chat template that opens `<think>`."""
    specials = [PAD, EOS, UNK, USER, ASSISTANT]
    vocabulary = {piece: index for index, piece in enumerate([*specials, *_pieces()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
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
