"""With tools, a completion's length is what the model generated: its call and its answer, never the tool's output."""

import json
from pathlib import Path

import pytest
import trl
from conftest import logged, parity_reward
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from leash_trl import LeashGRPOTrainer


CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call><|im_end|>'
ANSWER = "It is 42.<|im_end|>"


def multiply(a: int, b: int) -> int:
    """
    Multiplies two numbers.

    Args:
        a: First factor.
        b: Second factor.

    Returns:
        The product.
    """
    return a * b


@pytest.fixture
def byte_tokenizer():
    """Bytes and Qwen3's special tokens, with Qwen3's chat template as TRL ships it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return tokenizer


def test_tool_output_does_not_count(make_args, byte_tokenizer):
    call, answer = byte_tokenizer.encode(CALL), byte_tokenizer.encode(ANSWER)
    seen = []

    class ScriptedTrainer(LeashGRPOTrainer):
        """Samples 0 and 2 of the first turn call the tool; every later turn answers."""

        turn = 0

        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            self.turn += 1
            calls = [self.turn == 1 and index in (0, 2) for index, _ in enumerate(prompt_ids)]
            return [list(call if is_call else answer) for is_call in calls], None

    def reward(completions, completion_ids, **kwargs):
        seen.extend(completions)
        return parity_reward(completion_ids)

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    ids = {"eos_token_id": byte_tokenizer.eos_token_id, "pad_token_id": byte_tokenizer.pad_token_id}
    config = LlamaConfig(vocab_size=len(byte_tokenizer), bos_token_id=None, **sizes, **ids)
    fields = {"target_length": 200, "max_completion_length": 400, "per_device_train_batch_size": 4, "max_steps": 1}
    trainer = ScriptedTrainer(
        LlamaForCausalLM(config),
        reward,
        make_args(skip_zero_signal=False, generation_kwargs=None, **fields),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "What is 6 times 7?"}]}] * 8),
        processing_class=byte_tokenizer,
        tools=[multiply],
    )
    trainer.train()
    called, plain = len(call) + len(answer), len(answer)
    assert list(trainer._logs["extra"]["length"]) == [called, plain, called, plain]
    assert logged(trainer, "leash/mean_length") == [(called + plain) / 2]
    assert (seen[0][1]["role"], json.loads(seen[0][1]["content"])) == ("tool", 42)
    # the tool's output is in the sequence and is not counted
    assert trainer._buffered_inputs[0]["completion_mask"].sum(dim=1).max() > called
