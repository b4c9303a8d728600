"""Runs in which a model calls a tool, in TRL's own format: what it writes is scripted, and all else is TRL's."""

import json

import torch
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.chat_template_utils import qwen3_chat_template


SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.

    Returns:
        Their sum.
    """
    return a + b


def always_right(completions, **columns):
    return [1.0] * len(completions)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and Qwen3's chat template, whose tool calls TRL can read."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: index for index, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for token in SPECIAL_TOKENS:
        tokenizer.add_tokens([AddedToken(token, special=token.startswith("<|"), normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=qwen3_chat_template,
    )


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256 + len(SPECIAL_TOKENS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config)


def conversations() -> Dataset:
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": f"What is 1 + {n}?"}] for n in range(8)]})


def turns_with(num_calls: int) -> list[str]:
    """What a model writes that calls the tool so many times in its first turn, and answers in its second."""
    call = json.dumps({"name": "add", "arguments": {"a": 1, "b": 2}})
    calls = "".join(f"<tool_call>\n{call}\n</tool_call>\n" for _ in range(num_calls))
    answer = "It is 3.<|im_end|>"
    return [calls.strip() + "<|im_end|>", answer] if num_calls else [answer]


def with_script(trainer_class, calls_by_update: list[list[int]]):
    """A trainer of this class whose completions of update u call the tool `calls_by_update[u]` times, in turn."""

    class ScriptedTrainer(trainer_class):
        def _generate(self, prompts):
            num_calls = calls_by_update[self.state.global_step]
            self.scripts = [turns_with(num_calls[row % len(num_calls)]) for row in range(len(prompts))]
            self.num_turns = 0
            return super()._generate(prompts)

        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            # the second turn is generated for those alone who have called a tool
            texts = [script[self.num_turns] for script in self.scripts if len(script) > self.num_turns]
            self.num_turns += 1
            completion_ids = [self.processing_class.encode(text, add_special_tokens=False) for text in texts]
            return completion_ids, None

    return ScriptedTrainer
