"""The gym: problems, traces, tokenizer, checkpoint and its record."""

import hashlib
import random
import re
import runpy
import zlib
from itertools import accumulate, islice

import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from traces import TraceStyle, solution_trace
from transformers import AutoModelForCausalLM

from leash_trl.completions.prompts import effort_text
from leash_trl.gym import CHECKPOINT, base_record
from leash_trl.gym.task import LEVELS, MAX_LEVEL, MAX_TOTAL, problems, sample_problem


PROBLEMS = st.builds(
    lambda seed, level: sample_problem(random.Random(seed), level), st.integers(), st.integers(1, MAX_LEVEL)
)


@given(PROBLEMS)
def test_questions_mean_what_their_answer_says(problem):
    without_labels = re.sub(r"\(\w\)", "", problem.question.removesuffix(" = ?"))
    assert eval(without_labels) == problem.answer
    assert all(0 <= total <= MAX_TOTAL for total in accumulate(problem.terms))


def test_problems_and_traces_are_those_that_the_base_model_and_its_record_were_made_of():
    first_problems = list(islice(problems(0, LEVELS, "test"), 200))
    questions = "".join(problem.question for problem in first_problems)
    assert zlib.crc32(questions.encode()) == 3358231619
    rng = random.Random(0)
    traces = "".join(solution_trace(problem, TraceStyle(), rng) for problem in first_problems)
    assert zlib.crc32(traces.encode()) == 3721115557


def test_forced_styles_of_the_base_model_are_those_of_its_record(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    forced_styles = runpy.run_path(str(ROOT / "recipes" / "gym" / "forced_styles.py"))
    measured = pd.DataFrame(forced_styles["force_styles"](model, tokenizer, num_problems=64))
    recorded = pd.DataFrame(base_record()["styles"])
    for field in ("level", "style", "tokens"):
        assert measured[field].tolist() == recorded[field].tolist()
    for field in ("accuracy", "greedy_accuracy"):
        assert measured[field].tolist() == pytest.approx(recorded[field].tolist(), abs=0.15)


def test_the_record_was_measured_with_the_weights_of_the_base_model():
    weights = (CHECKPOINT / "model.safetensors").read_bytes()
    assert base_record()["weights"] == hashlib.sha256(weights).hexdigest()


def test_the_tokenizer_knows_every_word_of_the_task(tokenizer):
    rng = random.Random(0)
    for problem in islice(problems(3, LEVELS, "test"), 200):
        text = problem.question + solution_trace(problem, TraceStyle(), rng)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids
    message = [{"role": "user", "content": "7 (a) +5 = ?"}]
    prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|user|>7 (a) +5 = ?<|end|><|assistant|><think>"


def test_an_effort_that_the_data_appends_is_one_token(tokenizer):
    question = "7 (a) +5 = ?"
    effort_ids = set()
    for effort in ("low", "medium", "high"):
        *question_ids, effort_id = tokenizer.encode(question + effort_text(effort))
        assert question_ids == tokenizer.encode(question)
        effort_ids.add(effort_id)
    assert len(effort_ids) == 3
    assert tokenizer.unk_token_id not in effort_ids
