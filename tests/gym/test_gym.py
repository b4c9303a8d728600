"""The gym: problems, traces, tokenizer, checkpoint and its record."""

import json
import random
import re
import runpy
import zlib
from itertools import islice

import pytest
from conftest import ROOT
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from leash_trl.data.efforts import effort_suffix
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.gym import CHECKPOINT, base_record
from leash_trl.gym.task import (
    LEVELS,
    MAX_LEVEL,
    MAX_TOTAL,
    SHORTCUTS,
    STEP_BY_STEP,
    TraceStyle,
    problems,
    sample_problem,
    solution_trace,
)
from leash_trl.rewards import math_reward


PROBLEMS = st.builds(
    lambda seed, level: sample_problem(random.Random(seed), level), st.integers(), st.integers(1, MAX_LEVEL)
)


def totals(trace):
    """What the trace says of each label it names, pass by pass."""
    passes = re.split(r"recheck|check again", trace)
    return [re.findall(r"\((\w)\)(?: [+-]\d+ (?:=|to get))? (\d+)", one_pass) for one_pass in passes]


@given(PROBLEMS)
def test_questions_mean_what_their_answer_says(problem):
    assert eval(re.sub(r"\(\w\)", "", problem.question.removesuffix(" = ?"))) == problem.answer
    partial_sums = [sum(problem.terms[: k + 1]) for k in range(len(problem.terms))]
    assert all(0 <= total <= MAX_TOTAL for total in partial_sums)


@given(PROBLEMS, st.integers(), st.sampled_from([STEP_BY_STEP, SHORTCUTS]))
def test_traces_without_slips_are_right_at_every_label(problem, seed, style):
    trace = solution_trace(problem, style, random.Random(seed))
    named = [pair for one_pass in totals(trace) for pair in one_pass]
    assert all(int(total) == sum(problem.terms[: "abcdefghi".index(label) + 2]) for label, total in named)
    assert trace.endswith(f"</think>\\boxed{{{problem.answer}}}")
    assert "slip" not in trace


def test_a_slip_stays_until_a_recheck_repairs_it():
    rng, steps = random.Random(0), set()
    for problem in islice(problems(0, LEVELS, "train"), 200):
        trace = solution_trace(problem, TraceStyle(slip_rate=1.0, skip_share=0.0), rng)
        first, *others = totals(trace)
        right = [sum(problem.terms[: k + 2]) for k in range(problem.level)]
        steps.add(next(k for k, (_, total) in enumerate(first) if int(total) != right[k]))
        assert int(first[-1][1]) != problem.answer
        assert all(int(one_pass[-1][1]) == problem.answer for one_pass in others)
        assert trace.endswith(f"{{{problem.answer}}}") == bool(others) == ("that was a slip" in trace)
    assert steps == {*range(max(LEVELS))}  # at any step


def test_problems_and_traces_are_those_that_the_base_model_and_its_record_were_made_of():
    asked, rng = list(islice(problems(0, LEVELS, "test"), 200)), random.Random(0)
    assert zlib.crc32("".join(problem.question for problem in asked).encode()) == 3358231619
    assert zlib.crc32("".join(solution_trace(one, TraceStyle(), rng) for one in asked).encode()) == 3721115557


def test_forced_styles_of_the_base_model_are_those_of_its_record(tokenizer):
    model, recorded = AutoModelForCausalLM.from_pretrained(CHECKPOINT), base_record()["styles"]
    force_styles = runpy.run_path(str(ROOT / "recipes" / "gym" / "forced_styles.py"))["force_styles"]
    forced = list(force_styles(model, tokenizer, num_problems=64))
    for field in ("level", "style", "tokens"):
        assert [one[field] for one in forced] == [one[field] for one in recorded]
    for field in ("accuracy", "greedy_accuracy"):
        assert [one[field] for one in forced] == pytest.approx([one[field] for one in recorded], abs=0.15)


def test_a_record_of_other_weights_is_refused(monkeypatch, tmp_path):
    record = tmp_path / "record.json"
    record.write_text(json.dumps({**base_record(), "weights": "0" * 64}))
    monkeypatch.setattr("leash_trl.gym.RECORD", record)
    with pytest.raises(ValueError, match="other weights"):
        base_record()


def test_tokenizer_survives_save_and_reload(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    rng = random.Random(0)
    for problem in islice(problems(3, LEVELS, "test"), 200):
        text = problem.question + solution_trace(problem, TraceStyle(), rng)
        ids = tokenizer.encode(text)
        assert reloaded.encode(text) == ids
        assert reloaded.decode(ids) == tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids
    message = [{"role": "user", "content": "7 (a) +5 = ?"}]
    prompt = reloaded.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|user|>7 (a) +5 = ?<|end|><|assistant|><think>"
    assert reloaded.padding_side == "left"


def test_the_gym_is_a_model_in_python_too(tokenizer, tmp_path, monkeypatch):
    from leash_trl import LeashGRPOConfig, LeashGRPOTrainer

    monkeypatch.chdir(tmp_path)
    args = LeashGRPOConfig(target_length=46, max_completion_length=64, use_cpu=True, bf16=False, report_to="none")
    rows = [{"prompt": [{"role": "user", "content": "1 (a) +1 = ?"}], "solution": "2"}] * 8
    trainer = LeashGRPOTrainer(model="gym", reward_funcs=math_reward, args=args, train_dataset=Dataset.from_list(rows))
    engine = TransformersEngine.from_pretrained("gym")
    assert trainer.model.num_parameters() == engine.model.num_parameters()
    assert trainer.processing_class.get_vocab() == engine.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert engine.tokenizer.chat_template == tokenizer.chat_template


def test_an_effort_that_the_data_appends_is_one_token_and_other_words_are_unknown(tokenizer):
    asked = "7 (a) +5 = ?"
    start = tokenizer.encode(asked)
    efforts = [tokenizer.encode(asked + effort_suffix(effort)) for effort in ("low", "medium", "high")]
    assert [ids[:-1] for ids in efforts] == [start] * 3
    assert len({ids[-1] for ids in efforts} - {tokenizer.unk_token_id}) == 3
    for text in ("Think step by step!", " brief", "99", "\n", "é", " Effort: brief."):
        ids = tokenizer.encode(asked + text)
        assert (ids[: len(start)], {*ids[len(start) :]}) == (start, {tokenizer.unk_token_id})
