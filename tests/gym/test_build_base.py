"""`recipes/gym/build_base.py`: the stages of the base model and the stories for models from elsewhere."""

import sys
from itertools import takewhile

import pandas as pd
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture(scope="module")
def build_base():
    import build_base  # and the trainer of transformers

    return build_base


def test_the_build_trains_every_stage_and_writes_a_checkpoint(build_base, tokenizer, tmp_path, monkeypatch):
    stages = [stage._replace(steps=2) for stage in build_base.STAGES]
    monkeypatch.setattr(build_base, "BATCH_SIZE", 4)

    def weights_after(stages):
        monkeypatch.setattr(build_base, "STAGES", stages)
        build_base.build_checkpoint(tmp_path)
        return AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()

    weights = weights_after(stages)
    repeated = weights_after(stages)
    without_last_stage = weights_after(stages[:3])
    assert all(repeated[name].equal(weights[name]) for name in weights)
    assert not all(without_last_stage[name].equal(weights[name]) for name in weights)
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == tokenizer.get_vocab()


def test_rows_have_their_stages_prompts_and_a_loss_on_the_completion(build_base, tokenizer):
    rows = build_base.trace_rows(tokenizer, build_base.STAGES[-1]._replace(steps=8), seed=0)
    assert len(rows) == 8 * build_base.BATCH_SIZE
    for row in rows:
        prompt_length = len(list(takewhile(lambda label: label == -100, row["labels"])))
        assert row["labels"][prompt_length:] == row["input_ids"][prompt_length:]
        assert row["input_ids"][-1] == tokenizer.eos_token_id
        assert tokenizer.decode(row["input_ids"][:prompt_length]).endswith("<|assistant|><think>")
    text = " ".join(tokenizer.decode(row["input_ids"]) for row in rows)
    # ends of prompts: two efforts, none, and other words
    for words in (" Effort: low.", " Effort: high.", "= ?<|end|>", "<|unk|>"):
        assert words in text


def test_written_stories_are_prompts_and_completions(build_base, tmp_path, monkeypatch):
    path = tmp_path / "traces.jsonl"
    argv = ["build_base.py", "stories", "--output", str(path), "--count", "5", "--seed", "3"]
    monkeypatch.setattr(sys, "argv", argv)
    build_base.main()
    rows = pd.read_json(path, lines=True)
    assert len(rows) == 5
    for (prompt,), (completion,) in zip(rows["prompt"], rows["completion"], strict=True):
        assert prompt["role"] == "user"
        assert completion["role"] == "assistant"
        assert "\\boxed{" in completion["content"]
