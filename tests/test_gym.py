"""The gym: problems, traces, tokenizer, checkpoint and its record."""

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.gym.task import CONCISE, MAX_NUMBER, MAX_TERMS, TraceStyle, problems, sample_problem, solution_trace


LEVELS = tuple(range(1, MAX_TERMS))
PROBLEMS = st.builds(
    lambda seed, level: sample_problem(random.Random(seed), level), st.integers(), st.sampled_from(LEVELS)
)


@given(PROBLEMS)
def test_questions_mean_what_their_answer_says(problem):
    assert eval(problem.question.removesuffix(" = ?")) == problem.answer
    partial_sums = [sum(problem.terms[: k + 1]) for k in range(len(problem.terms))]
    assert all(0 <= total <= MAX_NUMBER for total in partial_sums)
    assert problem.level == len(problem.terms) - 1


@pytest.mark.parametrize("level", [0, MAX_TERMS])
def test_level_out_of_range_is_an_error(level):
    with pytest.raises(ValueError, match="levels 1 to"):
        sample_problem(random.Random(0), level)


@given(PROBLEMS, st.integers())
def test_concise_traces_are_right_step_by_step(problem, seed):
    trace = solution_trace(problem, CONCISE, random.Random(seed))
    steps = re.findall(r"(\d+ [+-] \d+) = (\d+)", trace)
    assert len(steps) == problem.level
    assert all(eval(left) == int(right) for left, right in steps)
    assert trace.endswith(f"</think>\\boxed{{{problem.answer}}}")


@given(PROBLEMS, st.integers())
def test_traces_box_what_their_last_computation_found(problem, seed):
    trace = solution_trace(problem, TraceStyle(), random.Random(seed))
    last_result = re.findall(r"= (\d+)", trace)[-1]
    assert trace.endswith(f"\\boxed{{{last_result}}}")
    assert "-" not in re.findall(r"= (-?\d+)", trace)


def test_slips_happen_in_the_first_pass_and_only_rechecks_repair_them():
    rng = random.Random(0)
    style = TraceStyle(slip_rate=1.0, recompute_rate=1.0)
    for _, problem in zip(range(200), problems(0, LEVELS, "train"), strict=False):
        trace = solution_trace(problem, style, rng)
        is_right = trace.endswith(f"{{{problem.answer}}}")
        assert is_right == ("that was a slip" in trace) == ("Second" in trace)


def test_style_gives_the_accuracy_it_says():
    # 1 - 0.4 * sum_n P(n) 0.6^n = 0.904 from the weights
    rng, style, count = random.Random(0), TraceStyle(), 4000
    stream = zip(range(count), problems(1, LEVELS, "train"), strict=False)
    right = sum(solution_trace(p, style, rng).endswith(f"{{{p.answer}}}") for _, p in stream)
    weights = style.recheck_weights
    expected = 1 - style.slip_rate * sum(w * (1 - style.recompute_rate) ** n for n, w in enumerate(weights)) / sum(
        weights
    )
    assert expected == pytest.approx(0.904, abs=1e-3)
    assert right / count == pytest.approx(expected, abs=0.02)


def test_traces_hold_the_papers_keywords():
    rng = random.Random(0)
    text = " ".join(
        solution_trace(p, TraceStyle(), rng) for _, p in zip(range(300), problems(2, LEVELS, "train"), strict=False)
    )
    keywords = ["So", "Therefore", "Thus", "conclude", "overall", "check again", "double-check", "recheck", "rethink"]
    keywords += ["verify again", "Wait", "First", "Second", "Step"]
    assert [word for word in keywords if word not in text] == []


def test_no_problem_is_in_both_splits():
    from leash_trl.gym.dataset import load_gym

    data = load_gym()
    questions = {split: {row[0]["content"] for row in data[split]["prompt"]} for split in data}
    assert len(questions["train"]) == 8192
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
    message = [{"role": "user", "content": "7 + 5 = ?"}]
    prompt = reloaded.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|user|>7 + 5 = ?<|end|><|assistant|><think>"
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
    rows = [{"prompt": [{"role": "user", "content": "1 + 1 = ?"}], "solution": "2"}] * 8
    trainer = LeashGRPOTrainer(model="gym", reward_funcs=math_reward, args=args, train_dataset=Dataset.from_list(rows))
    engine = TransformersEngine.from_pretrained("gym")
    assert trainer.model.num_parameters() == engine.model.num_parameters()
    assert trainer.processing_class.get_vocab() == engine.tokenizer.get_vocab()
