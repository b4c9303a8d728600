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
    short = [stage._replace(steps=2) for stage in build_base.STAGES]
    monkeypatch.setattr(build_base, "BATCH_SIZE", 4)
    states = []
    for stages in (short, short, short[:3]):
        monkeypatch.setattr(build_base, "STAGES", stages)
        build_base.build_checkpoint(tmp_path)
        states.append(AutoModelForCausalLM.from_pretrained(tmp_path).state_dict())
    same, fewer = ([key for key in states[0] if states[0][key].equal(other[key])] for other in states[1:])
    assert len(same) == len(states[0]) > len(fewer)
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == tokenizer.get_vocab()


def test_rows_have_their_stages_prompts_and_a_loss_on_the_completion(build_base, tokenizer):
    rows = build_base.trace_rows(tokenizer, build_base.STAGES[-1]._replace(steps=8), seed=0)
    assert len(rows) == 8 * build_base.BATCH_SIZE
    for row in rows:
        start = len([*takewhile(lambda label: label == -100, row["labels"])])
        assert row["labels"][start:] == row["input_ids"][start:]
        assert row["input_ids"][-1] == tokenizer.eos_token_id
        assert tokenizer.decode(row["input_ids"][:start]).endswith("<|assistant|><think>")
    text = " ".join(tokenizer.decode(row["input_ids"]) for row in rows)
    assert all(words in text for words in (" Effort: low.", " Effort: high.", "= ?<|end|>", "<|unk|>"))


def test_written_stories_are_prompts_and_completions(build_base, tmp_path, monkeypatch):
    path = tmp_path / "traces.jsonl"
    monkeypatch.setattr(
        sys, "argv", ["build_base.py", "stories", "--output", str(path), "--count", "5", "--seed", "3"]
    )
    build_base.main()
    rows = pd.read_json(path, lines=True)
    assert len(rows) == 5
    for (prompt,), (completion,) in zip(rows["prompt"], rows["completion"], strict=True):
        assert (prompt["role"], completion["role"]) == ("user", "assistant")
        assert "\\boxed{" in completion["content"]
