"""`recipes/gym/build_base.py`: the stages of the base model and the stories for models from elsewhere."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest


SCRIPT = Path(__file__).parents[2] / "recipes" / "gym" / "build_base.py"


@pytest.fixture(scope="module")
def build_base():
    spec = importlib.util.spec_from_file_location("build_base", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_base"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["build_base"]


def test_the_build_writes_a_checkpoint_and_does_not_train_a_finished_stage_again(build_base, tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM, Trainer

    short = tuple(replace(stage, steps=2, batch_size=4) for stage in build_base.STAGES)
    monkeypatch.setattr(build_base, "STAGES", short)
    build_base.build_checkpoint(tmp_path / "model", tmp_path / "work")
    assert {path.name for path in (tmp_path / "work").iterdir()} == {stage.name for stage in short}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    monkeypatch.setattr(Trainer, "training_step", lambda *_: pytest.fail("a finished stage is trained again"))
    build_base.build_checkpoint(tmp_path / "again", tmp_path / "work")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))


def test_rows_have_their_stages_prompts_and_a_loss_on_the_completion(build_base, tokenizer):
    last = build_base.STAGES[-1]
    rows = build_base.trace_rows(tokenizer, replace(last, steps=8), seed=0)
    assert len(rows) == 8 * last.batch_size
    for row in rows:
        start = next(index for index, label in enumerate(row["labels"]) if label != -100)
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
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 5
    for row in rows:
        (prompt,), (completion,) = row["prompt"], row["completion"]
        assert (prompt["role"], completion["role"]) == ("user", "assistant")
        assert "\\boxed{" in completion["content"]
