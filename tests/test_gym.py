"""The gym: problems, traces, tokenizer, checkpoint and its record."""

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.gym.styles import STYLES, forced_text
from leash_trl.gym.task import (
    LEVELS,
    MAX_LEVEL,
    MAX_TOTAL,
    SHORTCUTS,
    STEP_BY_STEP,
    Problem,
    TraceStyle,
    problems,
    sample_problem,
    solution_trace,
)


PROBLEMS = st.builds(
    lambda seed, level: sample_problem(random.Random(seed), level), st.integers(), st.integers(1, MAX_LEVEL)
)
SLIPPING = TraceStyle(slip_rate=1.0, skip_share=0.0)


def totals(trace):
    """What the trace says of each label it names, pass by pass."""
    passes = re.split(r"recheck|check again", trace)
    return [re.findall(r"\((\w)\)(?: [+-]\d+ (?:=|to get))? (\d+)", one_pass) for one_pass in passes]


@given(PROBLEMS)
def test_questions_mean_what_their_answer_says(problem):
    assert eval(re.sub(r"\(\w\)", "", problem.question.removesuffix(" = ?"))) == problem.answer
    partial_sums = [sum(problem.terms[: k + 1]) for k in range(len(problem.terms))]
    assert all(0 <= total <= MAX_TOTAL for total in partial_sums)
    assert problem.level == len(problem.terms) - 1


@pytest.mark.parametrize("level", [0, MAX_LEVEL + 1])
def test_level_out_of_range_is_an_error(level):
    with pytest.raises(ValueError, match="levels 1 to"):
        sample_problem(random.Random(0), level)


@given(PROBLEMS, st.integers(), st.sampled_from([STEP_BY_STEP, SHORTCUTS]))
def test_traces_without_slips_are_right_at_every_label(problem, seed, style):
    trace = solution_trace(problem, style, random.Random(seed))
    named = [pair for one_pass in totals(trace) for pair in one_pass]
    assert all(int(total) == sum(problem.terms[: "abcdefghi".index(label) + 2]) for label, total in named)
    assert trace.endswith(f"</think>\\boxed{{{problem.answer}}}")
    assert "slip" not in trace


@given(PROBLEMS, st.integers())
def test_step_by_step_names_every_label_once(problem, seed):
    (named,) = totals(solution_trace(problem, STEP_BY_STEP, random.Random(seed)))
    assert "".join(label for label, _ in named) == "abcdefghi"[: problem.level]


def test_a_slip_stays_until_a_recheck_repairs_it():
    rng = random.Random(0)
    for _, problem in zip(range(200), problems(0, LEVELS, "train"), strict=False):
        trace = solution_trace(problem, SLIPPING, rng)
        first, *others = totals(trace)
        assert int(first[-1][1]) != problem.answer
        assert all(int(one_pass[-1][1]) == problem.answer for one_pass in others)
        assert trace.endswith(f"{{{problem.answer}}}") == bool(others) == ("that was a slip" in trace)


def test_style_gives_the_accuracy_it_says():
    # 1 - slips without a recheck = 1 - 0.2 x 0.35
    rng, style, count = random.Random(0), TraceStyle(slip_rate=0.2, recheck_weights=(0.35, 0.4, 0.25)), 4000
    stream = zip(range(count), problems(1, LEVELS, "train"), strict=False)
    right = sum(solution_trace(p, style, rng).endswith(f"{{{p.answer}}}") for _, p in stream)
    assert right / count == pytest.approx(0.93, abs=0.015)


def test_brevity_shortens_steps_one_by_one():
    """At u each shorter style is u times as frequent as the one before."""
    rng, style = random.Random(0), TraceStyle(brevity=0.5, spread=0.0, skip_share=0.0, recheck_weights=(1.0,))
    text = " ".join(
        solution_trace(p, style, rng) for p, _ in zip(problems(4, (9,), "train"), range(1000), strict=False)
    )
    count = len(re.findall(r"\(\w\)", text))
    shares = [text.count(word) / count for word in (" Take", ") +", ") -", " = ")]
    full, short = shares[0], shares[3]
    assert full == pytest.approx(1 / 1.75, abs=0.02)
    assert short == pytest.approx(0.5 / 1.75, abs=0.02)


def test_traces_hold_the_papers_keywords():
    rng = random.Random(0)
    text = " ".join(
        solution_trace(p, TraceStyle(), rng) for _, p in zip(range(300), problems(2, LEVELS, "train"), strict=False)
    )
    keywords = ["So", "check again", "recheck", "Wait"]
    assert [word for word in keywords if word not in text] == []


@pytest.mark.parametrize("style", STYLES)
def test_forced_traces_leave_the_model_its_totals_only(style):
    problem = Problem((14, 5, -3, 2))
    *pieces, end = forced_text(problem, style)
    assert end == "}"
    assert all(not re.search(r"(?<![+-])\b\d+", piece.replace("from 14", "")) for piece in pieces)
    labels = {"full, twice": "abcabc", "two of three": "ab", "every second": "b", "none": ""}
    assert "".join(re.findall(r"\((\w)\)", "".join(pieces))) == labels.get(style, "abc")
    assert len(pieces) == len(labels.get(style, "abc")) + 1


def test_no_problem_is_in_both_splits():
    from leash_trl.gym.dataset import load_gym

    data = load_gym()
    questions = {split: {row[0]["content"] for row in data[split]["prompt"]} for split in data}
    assert len(questions["train"]) == 3072
    assert len(questions["test"]) == 512
    assert not questions["train"] & questions["test"]


def test_tokenizer_survives_save_and_reload(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    rng = random.Random(0)
    for _, problem in zip(range(200), problems(3, LEVELS, "test"), strict=False):
        text = problem.question + solution_trace(problem, TraceStyle(), rng)
        ids = tokenizer.encode(text)
        assert reloaded.encode(text) == ids
        assert reloaded.decode(ids) == tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids
    message = [{"role": "user", "content": "7 (a) +5 = ?"}]
    prompt = reloaded.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|user|>7 (a) +5 = ?<|end|><|assistant|><think>"
    assert reloaded.padding_side == "left"


def test_shipped_tokenizer_is_the_one_the_code_builds(tokenizer):
    from transformers import AutoTokenizer

    from leash_trl.gym import CHECKPOINT

    shipped = AutoTokenizer.from_pretrained(CHECKPOINT)
    assert shipped.get_vocab() == tokenizer.get_vocab()
    assert shipped.chat_template == tokenizer.chat_template


def test_shipped_model_does_what_its_record_says():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from leash_trl.evaluation.evaluate import evaluate, summarize
    from leash_trl.gym import CHECKPOINT
    from leash_trl.gym.dataset import gym_problems

    record = json.loads((CHECKPOINT / "record.json").read_text())
    assert 0.7 <= record["accuracy"] <= 0.95  # room above, and something to lose
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    assert 100_000 <= model.num_parameters() <= 1_000_000
    samples = evaluate(
        model,
        AutoTokenizer.from_pretrained(CHECKPOINT),
        gym_problems("test", 64),
        num_samples=2,
        max_new_tokens=256,
        seed=1,
    )
    measured = summarize(samples)
    # 128 completions: three standard errors
    assert measured.accuracy == pytest.approx(record["accuracy"], abs=0.1)
    assert measured.mean_tokens == pytest.approx(record["mean_tokens"], rel=0.15)


def test_the_gym_is_a_model_in_python_too(tmp_path, monkeypatch):
    from datasets import Dataset

    from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
    from leash_trl.engines.transformers_engine import TransformersEngine
    from leash_trl.rewards import math_reward

    monkeypatch.chdir(tmp_path)
    args = LeashGRPOConfig(target_length=46, max_completion_length=64, use_cpu=True, bf16=False, report_to="none")
    rows = [{"prompt": [{"role": "user", "content": "1 (a) +1 = ?"}], "solution": "2"}] * 8
    trainer = LeashGRPOTrainer(model="gym", reward_funcs=math_reward, args=args, train_dataset=Dataset.from_list(rows))
    engine = TransformersEngine.from_pretrained("gym")
    assert trainer.model.num_parameters() == engine.model.num_parameters()
    assert trainer.processing_class.get_vocab() == engine.tokenizer.get_vocab()
