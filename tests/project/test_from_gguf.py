"""The script that makes a model folder of a GGUF file, on a tiny file with a tokenizer of a few words."""

import runpy
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


SCRIPT = Path(__file__).parent.parent.parent / "recipes" / "smollm2_135m" / "from_gguf.py"
WIDTH, INNER, HEADS = 32, 48, 2
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "Ġ", "th", "the"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"


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
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    square = {f"blk.0.attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    inner = {f"blk.0.ffn_{name}.weight": (INNER, WIDTH) for name in ("gate", "up")}
    norms = dict.fromkeys(("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"), (WIDTH,))
    shapes = {"token_embd.weight": (len(TOKENS), WIDTH), "blk.0.ffn_down.weight": (WIDTH, INNER)}
    for name, shape in {**shapes, **square, **inner, **norms}.items():
        writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "tiny.gguf"


@pytest.fixture
def convert(monkeypatch):
    """The script with the arguments given to it."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return run


def test_the_folder_holds_a_model_that_trains_and_its_tokenizer(gguf_file, tmp_path, convert):
    folder = tmp_path / "base"
    (tmp_path / "base.partial").mkdir()
    (tmp_path / "base.partial" / "junk").write_text("of a run that was killed")
    convert(gguf_file, folder)
    assert not (folder / "junk").exists()
    source = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    model, original = AutoModelForCausalLM.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(**source)
    ids = torch.arange(3, 20)[None]
    assert torch.equal(model(ids).logits, original(ids).logits)
    model.train()(ids, labels=ids).loss.backward()
    model.save_pretrained(tmp_path / "again")
    assert not hasattr(model.config, "quantization_config")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("the thaw") == AutoTokenizer.from_pretrained(**source).encode("the thaw")
    assert tokenizer.decode(tokenizer.encode("the thaw")) == "the thaw"
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "he"}], tokenize=False) == (
        "<|im_start|>he<|im_end|>"
    )
    assert "A Title" not in (folder / "config.json").read_text()


def test_a_target_that_is_taken_is_refused_first(tmp_path, convert):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for target in (tmp_path / "full", tmp_path / "full" / "notes.txt"):
        with pytest.raises(SystemExit, match=f"^{target} is there already; name a new folder, or remove it$"):
            convert(tmp_path / "unread.gguf", target)
    assert (tmp_path / "full" / "notes.txt").read_text() == "mine"


def test_without_a_model_and_a_folder_it_says_how_it_is_used(tmp_path, convert):
    for arguments in ((), (tmp_path / "x.gguf",)):
        with pytest.raises(SystemExit, match=r"^usage: python recipes/smollm2_135m/from_gguf.py MODEL.gguf FOLDER$"):
            convert(*arguments)


@pytest.mark.parametrize("size", [None, 0, 3, 30, 300, 3000, -9])
def test_a_file_that_is_cut_off_is_one_line(size, gguf_file, tmp_path, convert):
    content = gguf_file.read_bytes()
    gguf_file.unlink() if size is None else gguf_file.write_bytes(content[:size])
    with pytest.raises(SystemExit, match=r"^.*tiny.gguf cannot be read: .*; make real-model fetches it again$"):
        convert(gguf_file, tmp_path / "base")
    assert {path.name for path in tmp_path.iterdir()} <= {"tiny.gguf"}
