"""The script that makes a model folder of a GGUF file, on a tiny file with a tokenizer of a few words."""

import runpy
import string
import sys

import gguf
import numpy as np
import pytest
import torch
from conftest import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer


SCRIPT = ROOT / "recipes" / "smollm2_135m" / "from_gguf.py"
WIDTH, INNER, HEADS = 32, 48, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *string.ascii_lowercase, "Ġ", "th", "the"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
SHAPES = {
    "token_embd": (len(TOKENS), WIDTH),
    "output_norm": (WIDTH,),
    "blk.0.attn_q": (WIDTH, WIDTH),
    "blk.0.attn_k": (WIDTH, WIDTH),
    "blk.0.attn_v": (WIDTH, WIDTH),
    "blk.0.attn_output": (WIDTH, WIDTH),
    "blk.0.attn_norm": (WIDTH,),
    "blk.0.ffn_gate": (INNER, WIDTH),
    "blk.0.ffn_up": (INNER, WIDTH),
    "blk.0.ffn_down": (WIDTH, INNER),
    "blk.0.ffn_norm": (WIDTH,),
}


@pytest.fixture
def gguf_file(tmp_path):
    """A Llama of one layer with random weights."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_name("A Title Of The File")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["t h", "th e"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, shape in SHAPES.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "tiny.gguf"


def convert(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_the_folder_holds_a_model_that_trains_and_its_tokenizer(gguf_file, tmp_path, monkeypatch):
    folder = tmp_path / "base"
    convert(monkeypatch, gguf_file, folder)
    source = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    model = AutoModelForCausalLM.from_pretrained(folder)
    original = AutoModelForCausalLM.from_pretrained(**source)
    ids = torch.arange(3, 20)[None]
    assert torch.equal(model(ids).logits, original(ids).logits)
    model.train()(ids, labels=ids).loss.backward()
    model.save_pretrained(tmp_path / "again")
    assert not hasattr(model.config, "quantization_config")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("the thaw") == AutoTokenizer.from_pretrained(**source).encode("the thaw")
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert tokenizer.apply_chat_template([{"content": "he"}], tokenize=False) == "<|im_start|>he<|im_end|>"
    assert "A Title" not in (folder / "config.json").read_text()


def test_a_target_that_is_taken_is_refused_first(tmp_path, monkeypatch):
    file = tmp_path / "full" / "notes.txt"
    file.parent.mkdir()
    file.write_text("mine")
    for target in (file.parent, file):
        with pytest.raises(SystemExit, match=f"{target} is there"):  # before the file is read
            convert(monkeypatch, tmp_path / "unread.gguf", target)
