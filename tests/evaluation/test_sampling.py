"""Sampling unit by unit: seeds, files, and what a kill leaves."""

import itertools
import json

import pytest
from datasets import Dataset

from leash_trl.engines.chat_template import prompt_ids
from leash_trl.engines.engine import Generation, SamplingSettings
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.evaluation import sampling
from leash_trl.evaluation.frame import read_lines, samples_path
from leash_trl.evaluation.sampling import (
    SamplingPlan,
    completion_seed,
    evaluate,
    longest_request,
    prepare_folder,
    sample_problems,
)
from leash_trl.rewards.grading import Grade


def total(question):
    return eval(question.partition("=")[0].replace("(a)", ""))


class SumEngine:
    """Answers every prompt with its right sum, or one more where the seed is odd; stops if told to.

    `form` is what it says around the number; a form without EOS is a truncated completion.
    """

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
        answer = total(question) + request.seed % 2
        ids = self.tokenizer.encode(self.form.format(answer))
        return Generation(ids, "eos" if ids[-1] in self.eos_token_ids else "length")


@pytest.fixture
def sums():
    texts = ["1 (a) +1 = ?", "2 (a) +3 = ?", "9 (a) -4 = ?", "7 (a) +8 = ?", "6 (a) -2 = ?"]
    rows = [
        {"id": f"sum-{i}", "prompt": [{"role": "user", "content": text}], "solution": str(total(text))}
        for i, text in enumerate(texts)
    ]
    return Dataset.from_list(rows)


def plan(**changes):
    settings = {"num_samples": 2, "batch_size": 4, "sampling": SamplingSettings(max_new_tokens=20)}
    return SamplingPlan(**(settings | changes))


def run(engine, problems, folder, the_plan):
    return [row for unit in sample_problems(engine, "sums", problems, the_plan, folder) for row in unit]


def completions_in(folder):
    return [completion for line in read_lines(samples_path(folder, "sums")) for completion in line["completions"]]


RUN = {
    "label": "a",
    "model": "m",
    "num_samples": 2,
    "sampling": {"max_new_tokens": 20},
    "decoding": {"name": "plain"},
    "benchmarks": {"sums": {"num_problems": 5}},
    "versions": {"torch": "1"},
    "seed": 0,
}


def prepare(folder, problems, **changes):
    return prepare_folder(folder, RUN | changes, {"sums": problems}, plan())


def test_samples_are_graded_counted_and_in_order(tokenizer, sums, tmp_path):
    run(SumEngine(tokenizer), sums, tmp_path, plan())
    lines = read_lines(samples_path(tmp_path, "sums"))
    assert [(line["index"], line["id"]) for line in lines] == list(enumerate(sums["id"]))
    for line in lines:
        for number, completion in enumerate(line["completions"]):
            assert completion["seed"] == completion_seed(0, "sums", line["id"], number)
            assert completion["is_correct"] == (completion["seed"] % 2 == 0)
            assert completion["answer"] == str(int(line["solution"]) + completion["seed"] % 2)
            # </think>, \boxed{, the number, }, EOS
            assert (completion["num_tokens"], completion["finish_reason"]) == (5, "eos")


def test_a_box_in_thinking_that_the_prompt_opened_counts_nowhere(tokenizer, sums, tmp_path, monkeypatch):
    said = "\\boxed{{{}}} Wait, recheck from "
    run(SumEngine(tokenizer, form=said), sums, tmp_path, plan())
    found = {(c["answer"], c["is_correct"], c["finish_reason"]) for c in completions_in(tmp_path)}
    assert found == {(None, False, "length")}
    frame = evaluate(SumEngine(tokenizer, form=said), sums, plan())
    assert (frame["is_correct"] == 0).all()
    assert frame["answer"].isna().all()
    assert set(frame["finish_reason"]) == {"length"}


def test_completions_in_memory_repeat_with_the_seed(tiny_model_path, problems):
    engine = TransformersEngine.from_pretrained(str(tiny_model_path), batch_size=32)
    settings = SamplingSettings(1.0, 1.0, max_new_tokens=60)
    first, again = (evaluate(engine, problems.select(range(3)), plan(num_samples=40, sampling=settings)) for _ in "ab")
    assert first.equals(again)
    assert first.groupby("id").size().tolist() == [40] * 3
    is_cut = first["finish_reason"] == "length"
    assert (first["num_tokens"][is_cut] == 60).all()


def test_a_bare_answer_counts_on_request_only(tokenizer, sums, tmp_path):
    for lenient in (False, True):
        folder = tmp_path / str(lenient)
        run(SumEngine(tokenizer, form="</think> So the answer is {}.<|end|>"), sums, folder, plan(lenient=lenient))
        assert any(completion["is_correct"] for completion in completions_in(folder)) == lenient


def test_every_completion_has_a_seed_of_its_own():
    parts = itertools.product(range(3), "ab", "abc", range(8))
    assert len({completion_seed(*part) for part in parts}) == 3 * 2 * 3 * 8


@pytest.mark.parametrize("cut", [0, 1, 200])
@pytest.mark.parametrize("units", [1, 2])
def test_what_a_kill_leaves_is_completed_to_the_same_file(tokenizer, sums, tmp_path, units, cut):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    engine = SumEngine(tokenizer)
    run(engine, sums, whole, plan())
    assert [len(seeds) for seeds in engine.calls] == [4, 4, 2]  # units hold whole problems
    with pytest.raises(KeyboardInterrupt):
        run(SumEngine(tokenizer, max_calls=units), sums, killed, plan())
    path = samples_path(killed, "sums")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - cut])

    resumed = SumEngine(tokenizer)
    run(resumed, sums, killed, plan())
    assert path.read_bytes() == samples_path(whole, "sums").read_bytes()
    # a cut unit is sampled again, as the same unit, and nothing else is
    assert resumed.calls == engine.calls[units - (cut > 0) :]


DAMAGED = {
    "not JSON": lambda lines: b"@" + lines[1],
    "no row": lambda lines: b'{"index": 1}\n',
    "not UTF-8": lambda lines: lines[1][:30] + b"\xff\xfe" + lines[1][30:],
    "zeros": lambda lines: b"\0" * 100 + b"\n",
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_refused_with_its_number_and_the_file_left_alone(tokenizer, sums, tmp_path, damage):
    prepare(tmp_path, sums)
    run(SumEngine(tokenizer), sums, tmp_path, plan())
    path = samples_path(tmp_path, "sums")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damage(lines), *lines[2:]]))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="line 2"):
        prepare(tmp_path, sums)
    assert path.read_bytes() == before


def test_a_folder_holds_one_run_only(tokenizer, sums, tmp_path):
    assert prepare(tmp_path, sums, seed=1) == {"sums": 0}
    assert prepare(tmp_path, sums) == {"sums": 0}  # nothing had been sampled yet
    with pytest.raises(KeyboardInterrupt):
        run(SumEngine(tokenizer, max_calls=1), sums, tmp_path, plan())
    assert prepare(tmp_path, sums) == {"sums": 2}
    with pytest.raises(ValueError, match="seed"):
        prepare(tmp_path, sums, seed=1)
    with pytest.raises(ValueError, match="versions"):
        prepare(tmp_path, sums, versions={"torch": "2"})
    run(SumEngine(tokenizer), sums, tmp_path, plan())
    # what is finished can be labelled anew, and keeps the versions that made it
    prepare(tmp_path, sums, versions={"torch": "2"}, label="b")
    assert json.loads((tmp_path / "run.json").read_text()) == RUN | {"label": "b"}


def test_the_longest_prompt_of_all_data_sets_and_its_limit_need_the_longest_context(tokenizer, sums):
    longer = Dataset.from_list([{"prompt": [{"role": "user", "content": "1 + 1 + 1 + 1 = ?"}]}])
    (expected,) = prompt_ids(tokenizer, longer["prompt"])
    longest = longest_request(tokenizer, [longer, sums], plan())
    assert (longest.prompt_ids, longest.max_new_tokens) == (tuple(expected), 20)


def test_what_the_machine_kept_from_being_graded_is_graded_again_from_its_text(tokenizer, sums, tmp_path, monkeypatch):
    whole, failed = tmp_path / "whole", tmp_path / "failed"
    run(SumEngine(tokenizer), sums, whole, plan())
    real, lost = sampling.grade, Grade("15", None, "lost its worker")

    def failing(*args):
        return [lost if verdict.answer == "15" else verdict for verdict in real(*args)]

    monkeypatch.setattr(sampling, "grade", failing)
    failed.mkdir()
    prepare(failed, sums)
    run(SumEngine(tokenizer), sums, failed, plan())
    path = samples_path(failed, "sums")
    before = path.read_bytes()
    assert before != samples_path(whole, "sums").read_bytes()
    prepare(failed, sums)  # the machine is as it was
    assert path.read_bytes() == before
    monkeypatch.setattr(sampling, "grade", real)
    prepare(failed, sums)
    assert path.read_bytes() == samples_path(whole, "sums").read_bytes()
