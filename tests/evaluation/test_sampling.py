"""Sampling unit by unit: seeds, files, and what a kill leaves."""

import copy
import itertools
import json
from dataclasses import replace

import pytest
from datasets import Dataset

from leash_trl.engines.chat_template import prompt_ids
from leash_trl.engines.engine import Generation, SamplingSettings
from leash_trl.evaluation import resuming, sampling_run
from leash_trl.evaluation.decoding.strategies import Plain, make_strategy
from leash_trl.evaluation.resuming import check_run, grade_again, num_done
from leash_trl.evaluation.samples import read_samples, samples_path
from leash_trl.evaluation.sampling_run import (
    SamplingPlan,
    check_prompts,
    completion_seed,
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
    return SamplingPlan(**({"decoding": make_strategy()} | settings | changes))


def run(engine, problems, folder, the_plan):
    return [row for unit in sample_problems(engine, "sums", problems, the_plan, folder) for row in unit]


def test_samples_are_graded_counted_and_in_order(tokenizer, sums, tmp_path):
    run(SumEngine(tokenizer), sums, tmp_path, plan())
    done = read_samples(samples_path(tmp_path, "sums"))
    assert [problem.id for problem in done] == sums["id"]
    for problem in done:
        for number, completion in enumerate(problem.completions):
            assert completion.seed == completion_seed(0, "sums", problem.id, number)
            assert completion.is_correct == (completion.seed % 2 == 0)
            assert completion.answer == str(int(problem.solution) + completion.seed % 2)
            # </think>, \boxed{, the number, }, EOS
            assert (completion.num_tokens, completion.num_generated_tokens, completion.finish_reason) == (5, 5, "eos")


def test_an_answer_in_thinking_that_the_prompt_opened_and_nothing_closed_does_not_count(tokenizer, sums, tmp_path):
    run(SumEngine(tokenizer, form="\\boxed{{{}}} Wait, recheck from "), sums, tmp_path, plan())
    completions = [c for problem in read_samples(samples_path(tmp_path, "sums")) for c in problem.completions]
    assert {(c.answer, c.is_correct, c.finish_reason) for c in completions} == {(None, False, "length")}


def test_a_bare_answer_counts_on_request_only(tokenizer, sums, tmp_path):
    for lenient in (False, True):
        folder = tmp_path / str(lenient)
        run(SumEngine(tokenizer, form="</think> So the answer is {}.<|end|>"), sums, folder, plan(lenient=lenient))
        completions = [c for problem in read_samples(samples_path(folder, "sums")) for c in problem.completions]
        assert any(c.is_correct for c in completions) == lenient
        assert not any("<|end|>" in c.text for c in completions)


@pytest.mark.parametrize(("is_correct", "failure"), [(False, "ran out of time"), (None, "lost its worker")])
def test_a_comparison_that_does_not_end_is_on_record(tokenizer, sums, tmp_path, monkeypatch, is_correct, failure):
    monkeypatch.setattr(sampling_run, "grade", lambda texts, *rest: [Grade("1", is_correct, failure)] * len(texts))
    run(SumEngine(tokenizer), sums, tmp_path, plan())
    completions = [c for problem in read_samples(samples_path(tmp_path, "sums")) for c in problem.completions]
    assert {(c.is_correct, c.grader_failure) for c in completions} == {(is_correct, failure)}


def test_tokens_of_trials_are_counted_apart(tokenizer, sums, tmp_path):
    class Wasteful(Plain):
        def complete(self, *args, **kwargs):
            return [replace(decoded, num_generated_tokens=99) for decoded in super().complete(*args, **kwargs)]

    run(SumEngine(tokenizer), sums, tmp_path, plan(decoding=Wasteful()))
    completion = read_samples(samples_path(tmp_path, "sums"))[0].completions[0]
    assert (completion.num_tokens, completion.num_generated_tokens) == (5, 99)


def test_values_for_the_chat_template_reach_it(tokenizer, sums):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{% if quiet %}Wait, {% endif %}" + tokenizer.chat_template
    quiet, plain = (prompt_ids(tokenizer, sums["prompt"][:1], **given) for given in ({"quiet": True}, {}))
    assert len(quiet[0]) > len(plain[0])


def test_counting_what_is_done_changes_nothing(tokenizer, sums, tmp_path):
    run(SumEngine(tokenizer), sums.select([0, 1]), tmp_path, plan())
    path = samples_path(tmp_path, "sums")
    path.write_bytes(path.read_bytes() + b"damaged\n\n{")
    before = path.read_bytes()
    assert num_done(tmp_path, "sums", sums, plan()) == 2
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["sums.jsonl"]


def test_every_completion_has_a_seed_of_its_own():
    parts = itertools.product(range(3), "ab", "abc", range(8))
    assert len({completion_seed(*part) for part in parts}) == 3 * 2 * 3 * 8
    assert completion_seed(1, "amc", "3", 0) == completion_seed(1, "amc", "3", 0)


def test_units_hold_whole_problems(tokenizer, sums, tmp_path):
    engine = SumEngine(tokenizer)
    run(engine, sums, tmp_path, plan(batch_size=5))  # 5 // 2 = 2 problems of 2 completions
    assert [len(seeds) for seeds in engine.calls] == [4, 4, 2]
    assert plan(batch_size=1, num_samples=8).problems_per_unit == 1


@pytest.mark.parametrize("cut", [0, 1, 200])
@pytest.mark.parametrize("units", [1, 2])
def test_what_a_kill_leaves_is_completed_to_the_same_file(tokenizer, sums, tmp_path, units, cut):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    engine = SumEngine(tokenizer)
    run(engine, sums, whole, plan())
    stopped = SumEngine(tokenizer, max_calls=units)
    with pytest.raises(KeyboardInterrupt):
        run(stopped, sums, killed, plan())
    path = samples_path(killed, "sums")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - cut])

    resumed = SumEngine(tokenizer)
    run(resumed, sums, killed, plan())
    assert path.read_bytes() == samples_path(whole, "sums").read_bytes()
    # a cut unit is sampled again, as the same unit, and nothing else is
    assert resumed.calls == engine.calls[units - (cut > 0) :]


def test_a_finished_run_samples_nothing(tokenizer, sums, tmp_path):
    run(SumEngine(tokenizer), sums, tmp_path, plan())
    assert num_done(tmp_path, "sums", sums, plan()) == 5
    assert run(SumEngine(tokenizer, max_calls=0), sums, tmp_path, plan()) == []


def test_samples_of_other_problems_are_refused(tokenizer, sums, tmp_path):
    run(SumEngine(tokenizer), sums, tmp_path, plan())
    before = samples_path(tmp_path, "sums").read_bytes()
    with pytest.raises(ValueError, match="other problems"):
        run(SumEngine(tokenizer), sums.map(lambda row: {"id": f"other {row['id']}"}), tmp_path, plan())
    assert samples_path(tmp_path, "sums").read_bytes() == before


def second_row_with(**changes):
    return lambda lines: json.dumps({**json.loads(lines[1]), **changes}).encode() + b"\n"


DAMAGED = {
    "half a line": lambda lines: lines[1][:40] + b"\n",
    "not JSON": lambda lines: b"@" + lines[1],
    "two lines in one": lambda lines: lines[1][:60] + lines[1],
    "JSON, but no row": lambda lines: b'{"index": 1}\n',
    "JSON, but a number": lambda lines: b"7\n",
    "JSON, but a list": lambda lines: b"[1, 2]\n",
    "not UTF-8": lambda lines: lines[1][:30] + b"\xff\xfe" + lines[1][30:],
    "zeros, as a full disk leaves them": lambda lines: b"\0" * 100 + b"\n",
    "a completion too few": lambda lines: second_row_with(completions=json.loads(lines[1])["completions"][:1])(lines),
    "of another problem": second_row_with(id="sum-7"),
    "of no index": second_row_with(index=None),
    "of no problem": second_row_with(index=99),
    "a copy of another row": lambda lines: lines[0],
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_set_aside_and_its_row_sampled_again(tokenizer, sums, tmp_path, damage, caplog):
    engine = SumEngine(tokenizer)
    run(engine, sums, tmp_path, plan())
    path = samples_path(tmp_path, "sums")
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    damaged = damage(lines)
    path.write_bytes(b"".join([lines[0], damaged, *lines[2:]]))
    assert num_done(tmp_path, "sums", sums, plan()) == 4

    resumed = SumEngine(tokenizer)
    assert [row.id for row in run(resumed, sums, tmp_path, plan())] == ["sum-1"]
    assert resumed.calls == engine.calls[:1]  # the same unit
    assert path.read_bytes() == whole
    assert path.with_name("sums.damaged.jsonl").read_bytes() == damaged
    (message,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in message
    assert all(words in message for words in (str(path), "line 2", "sums.damaged.jsonl", "sampled again"))
    assert run(SumEngine(tokenizer, max_calls=0), sums, tmp_path, plan()) == []
    assert len(caplog.records) == 1


def test_what_was_set_aside_before_is_kept(tokenizer, sums, tmp_path):
    path = samples_path(tmp_path, "sums")
    for damage in (b"first\n", b"second\n"):
        run(SumEngine(tokenizer), sums, tmp_path, plan())
        path.write_bytes(damage + path.read_bytes())
    run(SumEngine(tokenizer), sums, tmp_path, plan())
    assert path.with_name("sums.damaged.jsonl").read_bytes() == b"first\nsecond\n"


def test_a_kill_while_a_damaged_row_is_sampled_again_loses_nothing(tokenizer, sums, tmp_path):
    engine = SumEngine(tokenizer)
    run(engine, sums, tmp_path, plan())
    path = samples_path(tmp_path, "sums")
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([b"x\n", lines[1], b"y\n", lines[3]]))
    with pytest.raises(KeyboardInterrupt):
        run(SumEngine(tokenizer, max_calls=1), sums, tmp_path, plan())
    resumed = SumEngine(tokenizer)
    run(resumed, sums, tmp_path, plan())
    assert resumed.calls == engine.calls[1:]
    assert path.read_bytes() == whole


def test_an_empty_line_is_no_damage(tokenizer, sums, tmp_path, caplog):
    run(SumEngine(tokenizer), sums, tmp_path, plan())
    path = samples_path(tmp_path, "sums")
    whole = path.read_bytes()
    path.write_bytes(b"\n" + whole.replace(b"\n", b"\n \n"))
    assert len(read_samples(path)) == 5
    run(SumEngine(tokenizer, max_calls=0), sums, tmp_path, plan())
    assert path.read_bytes() == whole
    assert not caplog.records


def test_a_folder_holds_one_run_only(tmp_path):
    check_run(tmp_path, {"model": "b", "seed": 0}, False)
    check_run(tmp_path, {"model": "a", "seed": 0}, False)  # nothing had been sampled yet
    samples_path(tmp_path, "sums").parent.mkdir()
    samples_path(tmp_path, "sums").touch()
    check_run(tmp_path, {"model": "b", "seed": 0}, False)
    check_run(tmp_path, {"model": "a", "seed": 0, "versions": {"torch": "1"}}, False)
    samples_path(tmp_path, "sums").write_text("a line\n")
    check_run(tmp_path, {"model": "a", "seed": 0, "versions": {"torch": "1"}}, False)
    with pytest.raises(ValueError, match=r"seed: 0 there, 1 now.*another --output_dir"):
        check_run(tmp_path, {"model": "a", "seed": 1, "versions": {"torch": "1"}}, False)
    with pytest.raises(ValueError, match=r"seed: 0 there, null now"):
        check_run(tmp_path, {"model": "a", "versions": {"torch": "1"}}, False)
    with pytest.raises(ValueError, match="versions"):
        check_run(tmp_path, {"model": "a", "seed": 0, "versions": {"torch": "2"}}, False)
    # what is finished can be labelled anew, and keeps the versions that made it
    check_run(tmp_path, {"model": "a", "seed": 0, "versions": {"torch": "2"}, "label": "b"}, True)
    run_file = tmp_path / "run.json"
    assert json.loads(run_file.read_text()) == {"model": "a", "seed": 0, "versions": {"torch": "1"}, "label": "b"}
    run_file.unlink()
    with pytest.raises(ValueError, match=r"run\.json"):
        check_run(tmp_path, {"model": "a", "seed": 0}, False)


def test_a_prompt_without_room_for_its_completion_is_named(tokenizer, sums):
    engine = SumEngine(tokenizer)
    check_prompts(engine, sums, plan())
    with pytest.raises(ValueError, match=r"problem sum-0: max_new_tokens is 60, .*lower max_new_tokens"):
        check_prompts(engine, sums, plan(sampling=SamplingSettings(max_new_tokens=60)))
    engine.max_length = 4
    with pytest.raises(ValueError, match=r"problem sum-0: .* longer context"):
        check_prompts(engine, sums, plan())


@pytest.mark.parametrize("name", ["num_samples", "batch_size"])
def test_sizes_must_be_positive(name):
    with pytest.raises(ValueError, match=f"{name} is 0"):
        plan(**{name: 0})


def test_a_gold_that_cannot_be_read_is_an_error(tokenizer, sums, tmp_path):
    rows = sums.map(lambda row: {"solution": ""})
    with pytest.raises(ValueError, match="cannot be read"):
        run(SumEngine(tokenizer), rows, tmp_path, plan())


def test_what_the_machine_kept_from_being_graded_is_graded_again_from_its_text(tokenizer, sums, tmp_path, monkeypatch):
    whole, failed = tmp_path / "whole", tmp_path / "failed"
    run(SumEngine(tokenizer), sums, whole, plan())
    real = sampling_run.grade
    lost = Grade("15", None, "lost its worker")

    def failing(texts, *rest):
        return [lost if verdict.answer == "15" else verdict for verdict in real(texts, *rest)]

    monkeypatch.setattr(sampling_run, "grade", failing)
    monkeypatch.setattr(resuming, "grade", failing)
    run(SumEngine(tokenizer), sums, failed, plan())
    path = samples_path(failed, "sums")
    before = path.read_bytes()
    assert before != samples_path(whole, "sums").read_bytes()
    grade_again(failed, "sums", plan())  # the machine is as it was
    assert path.read_bytes() == before

    monkeypatch.setattr(resuming, "grade", real)
    grade_again(failed, "sums", plan())
    assert path.read_bytes() == samples_path(whole, "sums").read_bytes()
