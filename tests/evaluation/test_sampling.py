"""Sampling unit by unit: seeds, files, and what a kill leaves."""

import itertools
import json

import pytest
from datasets import Dataset
from scripted_engine import ScriptedEngine

from leash_trl.engines.engine import Generation, SamplingSettings
from leash_trl.evaluation import sampling
from leash_trl.evaluation.reward_grader import RewardGrader
from leash_trl.evaluation.runs import read_lines, samples_path
from leash_trl.evaluation.sampling import (
    SamplingPlan,
    completion_seed,
    evaluate,
    longest_request,
    prepare_folder,
    question_text,
    sample_and_grade,
    sample_in_units,
    stored_completions,
)
from leash_trl.model_facts import prompt_ids
from leash_trl.rewards import math_reward
from leash_trl.rewards.grader.grading import Grade


class SumEngine:
    """Answers every prompt with its right sum, or one more where the seed is odd; stops if told to. `form` is what it
    says around the number; a form without EOS is a truncated completion."""

    name = "sums"
    max_length = 64

    def __init__(self, tokenizer, max_calls=100, form="</think>\\boxed{{{}}}<|end|>"):
        self.tokenizer = tokenizer
        self.eos_token_ids = [tokenizer.eos_token_id]
        self.calls = []
        self.max_calls = max_calls
        self.form = form

    def generate(self, requests, settings, **options):
        if len(self.calls) == self.max_calls:
            raise KeyboardInterrupt
        self.calls.append([request.seed for request in requests])
        return [self._generation(request) for request in requests]

    def _generation(self, request):
        question = self.tokenizer.decode(request.prompt_ids, skip_special_tokens=True)
        ids = self.tokenizer.encode(self.form.format(total(question) + request.seed % 2))
        return Generation(ids, is_truncated=ids[-1] not in self.eos_token_ids)


def total(question):
    return eval(question.partition("=")[0].replace("(a)", ""))


def row(number, question):
    return {"id": f"sum-{number}", "prompt": [{"role": "user", "content": question}], "solution": str(total(question))}


@pytest.fixture
def sums():
    questions = ["1 (a) +1 = ?", "3 (a) +2 = ?", "5 (a) -2 = ?", "7 (a) +8 = ?", "9 (a) -5 = ?"]
    return Dataset.from_list([row(number, question) for number, question in enumerate(questions)])


def plan(**changes):
    settings = {"num_samples": 2, "batch_size": 4, "sampling": SamplingSettings(max_new_tokens=20)}
    return SamplingPlan(**(settings | changes))


@pytest.fixture
def sample(tokenizer, sums):
    """Factory: samples and grades the sums into a folder; the engine that did."""

    def run(folder, the_plan=None, rewards=None, **engine):
        engine = SumEngine(tokenizer, **engine)
        for _ in sample_in_units(engine, "sums", sums, the_plan or plan(), folder, rewards):
            pass
        return engine

    return run


@pytest.fixture
def prepare(sums):
    """Factory: prepares a folder for a run that is recorded so, with changes."""

    def prepared(folder, **changes):
        folder.mkdir(exist_ok=True)
        return prepare_folder(folder, RUN | changes, {"sums": sums}, plan())

    return prepared


RUN = {"label": "a", "versions": {"torch": "1"}, "seed": 0}


def test_samples_are_graded_counted_and_in_order(sample, sums, tmp_path):
    sample(tmp_path)
    lines = read_lines(samples_path(tmp_path, "sums"))
    assert [(line["index"], line["id"]) for line in lines] == list(enumerate(sums["id"]))
    for line in lines:
        for number, completion in enumerate(line["completions"]):
            assert completion["seed"] == completion_seed(0, "sums", line["id"], number)
            assert completion["is_correct"] == (completion["seed"] % 2 == 0)
            assert completion["answer"] == str(int(line["solution"]) + completion["seed"] % 2)
            # </think>, \boxed{, the number, }, EOS
            assert (completion["num_tokens"], completion["finish_reason"]) == (5, "eos")


def test_special_tokens_that_texts_do_not_show_are_counted(sample, tmp_path):
    sample(tmp_path, form="<|pad|></think>\\boxed{{{}}}<|end|>")
    for line in read_lines(samples_path(tmp_path, "sums")):
        assert [completion["num_special_tokens"] for completion in line["completions"]] == [1, 1]


def test_every_completion_has_a_seed_of_its_own():
    parts = itertools.product(range(3), "ab", "abc", range(8))
    assert len({completion_seed(*part) for part in parts}) == 3 * 2 * 3 * 8


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        ("1 (a) +1 = ?", "1 (a) +1 = ?"),
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 = ?"}], "2 = ?"),
    ],
)
def test_the_question_is_the_text_of_the_last_message(prompt, question):
    assert question_text(prompt) == question


def test_a_line_of_a_reward_holds_the_columns_in_which_an_unknown_gold_may_be(tokenizer):
    columns = {"word": ["dog", "cat"], "level": [7, 8], "image": [[0, 1], [1, 0]], "solution": [None, "6"]}
    rows = {"id": ["a", "b"], "prompt": ["3 (a) +3 = ?"] * 2, **columns}
    rewards = RewardGrader([lambda prompts, **columns: [1.0] * len(prompts)])
    unknown, known = sample_and_grade(SumEngine(tokenizer), "own", rows, plan(), rewards)
    assert unknown["columns"] == {"word": "dog", "level": 7}
    assert (known["solution"], known["columns"]) == ("6", {})


# a box in thinking that the prompt opened counts nowhere; a bare answer on request only
@pytest.mark.parametrize(
    ("form", "lenient", "has_right", "finish_reason"),
    [
        ("\\boxed{{{}}} Wait, recheck from ", True, False, "length"),
        ("</think> So the answer is {}.<|end|>", False, False, "eos"),
        ("</think> So the answer is {}.<|end|>", True, True, "eos"),
    ],
)
def test_what_counts_as_an_answer(sample, tmp_path, form, lenient, has_right, finish_reason):
    sample(tmp_path, plan(lenient=lenient), form=form)
    completions = list(stored_completions(tmp_path, ["sums"]))
    assert any(completion["is_correct"] for completion in completions) == has_right
    assert any(completion["answer"] for completion in completions) == has_right
    assert {completion["finish_reason"] for completion in completions} == {finish_reason}


@pytest.mark.parametrize("rewards", [None, RewardGrader([math_reward])], ids=["grader", "own rewards"])
def test_another_text_ends_the_thinking_for_the_grader_and_for_own_rewards(tokenizer, sums, rewards):
    tokenizer.add_tokens(["[THINK]", "[/THINK]"])
    template = {"chat_template": "{{ messages[0].content }}[THINK]"}
    settings = plan(thinking_end="[/THINK]", chat_template_kwargs=template)

    def num_right(form):
        lines = sample_and_grade(SumEngine(tokenizer, form=form), "sums", sums[:], settings, rewards)
        return sum(completion["is_correct"] for line in lines for completion in line["completions"])

    assert num_right("\\boxed{{{}}} Wait, <|end|>") == 0
    assert num_right("\\boxed{{0}}[/THINK]\\boxed{{{}}}<|end|>") > 0


def test_completions_in_memory_are_rows_with_the_index_for_an_id(tokenizer, sums):
    frame = evaluate(SumEngine(tokenizer), sums, plan(num_samples=3))
    assert frame["id"].tolist() == [*"000111222333444"]
    assert frame["sample"].tolist() == [0, 1, 2] * 5
    assert frame["is_correct"].tolist() == [1 - seed % 2 for seed in frame["seed"]]


@pytest.mark.parametrize("cut", [0, 1, 200])
@pytest.mark.parametrize("units", [1, 2])
def test_what_a_kill_leaves_is_completed_to_the_same_file(sample, tmp_path, units, cut):
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    engine = sample(whole)
    assert [len(seeds) for seeds in engine.calls] == [4, 4, 2]  # units hold whole problems
    with pytest.raises(KeyboardInterrupt):
        sample(killed, max_calls=units)
    path = samples_path(killed, "sums")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - cut])
    # a cut unit is sampled again, as the same unit, and nothing else is
    assert sample(killed).calls == engine.calls[units - (cut > 0) :]
    assert path.read_bytes() == samples_path(whole, "sums").read_bytes()


def test_a_folder_holds_one_run_only(sample, prepare, tmp_path):
    assert prepare(tmp_path, seed=1) == {"sums": 0}
    assert prepare(tmp_path) == {"sums": 0}  # nothing had been sampled yet
    with pytest.raises(KeyboardInterrupt):
        sample(tmp_path, max_calls=1)
    assert prepare(tmp_path) == {"sums": 2}
    with pytest.raises(ValueError, match="seed"):
        prepare(tmp_path, seed=1)
    with pytest.raises(ValueError, match="versions"):
        prepare(tmp_path, versions={"torch": "2"})
    sample(tmp_path)
    # what is finished can be labeled anew, and keeps the versions that made it
    prepare(tmp_path, versions={"torch": "2"}, label="b")
    assert json.loads((tmp_path / "run.json").read_text()) == RUN | {"label": "b"}


def test_the_longest_prompt_of_all_data_sets_and_its_limit_need_the_longest_context(tokenizer, sums):
    longer = Dataset.from_list([row(0, "1 + 1 + 1 + 1 = ?")])
    (expected,) = prompt_ids(tokenizer, longer["prompt"])
    longest = longest_request(tokenizer, [longer, sums], plan())
    assert (longest.prompt_ids, longest.max_new_tokens) == (tuple(expected), 20)


def test_what_the_machine_kept_from_being_graded_is_graded_again_from_its_text(sample, prepare, tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    failed = tmp_path / "failed"
    sample(whole)
    real_grade = sampling.grade

    def failing(*args, **kwargs):
        lost = Grade("15", None, "lost its worker")
        return [lost if verdict.answer == "15" else verdict for verdict in real_grade(*args, **kwargs)]

    def without_thinking(path):
        return path.read_bytes().replace(b"</think>", b"")

    path = samples_path(failed, "sums")
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "grade", failing)
        prepare(failed)
        sample(failed)
        before = without_thinking(path)
        path.write_bytes(before)
        prepare(failed)  # the machine is as it was
        assert path.read_bytes() == before
    expected = without_thinking(samples_path(whole, "sums"))
    assert before != expected
    prepare(failed)
    assert path.read_bytes() == expected


def test_a_reward_of_none_is_a_verdict_and_is_not_graded_again(sample, prepare, tmp_path):
    def silent(prompts, **kwargs):
        return [None] * len(prompts)

    prepare(tmp_path)
    sample(tmp_path, rewards=RewardGrader([silent]))
    before = samples_path(tmp_path, "sums").read_bytes()
    prepare(tmp_path)
    assert samples_path(tmp_path, "sums").read_bytes() == before


@pytest.mark.parametrize("rewards", [None, RewardGrader([math_reward])], ids=["grader", "own rewards"])
def test_each_row_is_asked_and_graded_with_its_arguments_of_the_template(tokenizer, rewards):
    tokenizer.chat_template = "{{ messages[0].content }}{{ '<think>' if thinks else '</think>' }}"
    guess = [*tokenizer.encode(r"\boxed{4} Wait, "), tokenizer.eos_token_id]  # 5 tokens
    # an engine tells rows apart by the first token
    engine = ScriptedEngine(tokenizer, {tokenizer.encode(digit)[0]: [guess] for digit in "12"})
    rows = {
        "id": ["on", "off"],
        "prompt": [[{"role": "user", "content": f"{digit}?"}] for digit in "12"],
        "solution": ["4", "4"],
        "chat_template_kwargs": [{"thinks": True}, {"thinks": None}],
    }
    plan = SamplingPlan(num_samples=1, sampling=SamplingSettings(max_new_tokens=9))
    on, off = [line["completions"][0] for line in sample_and_grade(engine, "sums", rows, plan, rewards)]
    assert (on["is_correct"], on["num_thinking_tokens"]) == (False, 5)
    assert (off["is_correct"], off["num_thinking_tokens"]) == (True, 0)
    (requests,) = engine.calls
    assert [request.prompt_ids for request in requests] == [
        tuple(tokenizer.encode(text)) for text in ("1?<think>", "2?</think>")
    ]
