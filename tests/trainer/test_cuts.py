"""Completions that a method cuts: graded again, and without their tail in loss, log and table."""

import copy
from types import SimpleNamespace

import pytest
import torch
from conftest import generation_batches, log_rows

from leash_trl.length_control.dot import DOT
from leash_trl.length_control.none import NoControl
from leash_trl.trainer.cut_completions import check_cuts, cut_completions


# G = 4, alpha = 1. The first group is all right, with mean 20, sample std sqrt((3 * 10^2 + 30^2) / 3) = 20 and T = 40.
# The second has the same lengths and a wrong answer. The third is all right, with mean 13, std 2.58 and T = 15, and
# 16 - 15 is less than 8.
LENGTHS = [*(10, 10, 10, 50), *(10, 10, 10, 50), *(10, 12, 14, 16)]
CUT_ROW, WRONG_ROW = 3, 5
KEPT = [*(10, 10, 10, 40), *LENGTHS[4:]]
# of 1, 1, 1, -1 the mean is 0.5 and the sample std sqrt((3 * 0.5^2 + 1.5^2) / 3) = 1; with another last one the same
ADVANTAGES = [*(0.5, 0.5, 0.5, -1.5), *(0.5, -1.5, 0.5, 0.5), *(0.0, 0.0, 0.0, 0.0)]
FIELDS = {"length_control": "dot", "length_control_kwargs": {"alpha": 1.0, "min_excess": 8}, "lambda_lr": None}
FIELDS |= {"target_length": None, "max_completion_length": 64, "per_device_train_batch_size": 12, "max_steps": 1}
FIELDS |= {"generation_kwargs": None}


class Grader:
    """+1 for a text with a 5 in it, and an account of all it was shown; in the second call `again` in place of 1."""

    __name__ = "grader"

    def __init__(self, again=1.0):
        self.calls, self.again = [], again

    def __call__(self, completions, completion_ids, log_extra, log_metric, **kwargs):
        texts = [completion[0]["content"] for completion in completions]
        self.calls.append((texts, [list(ids) for ids in completion_ids]))
        log_extra("seen", [len(ids) for ids in completion_ids])
        log_extra(f"grading {len(self.calls)}", [1.0] * len(completion_ids))
        log_metric("tokens", sum(map(len, completion_ids)))
        most = self.again if len(self.calls) == 2 else 1.0
        return [most if "5" in text else -most for text in texts]


def make_rollout(tokenizer, *rounds, wrong_rows=(WRONG_ROW,), tail="7"):
    """Completions of these lengths by round; the last round comes again.

    Each is sevens, then a 5, which is the answer, and the end. `tail` stands beyond the cut instead of sevens.
    """
    seven, five, other = (tokenizer.encode(text)[0] for text in ("7", "5", tail))
    left = list(rounds)

    def rollout(prompts, trainer):
        ids = []
        for row, length in zip(range(len(prompts)), left.pop(0) if len(left) > 1 else left[0], strict=False):
            body = [seven] * (length - 2)
            if row == CUT_ROW:
                body[KEPT[row] :] = [other] * len(body[KEPT[row] :])
            ids.append([*body, seven if row in wrong_rows else five, tokenizer.eos_token_id])
        return {"prompt_ids": [tokenizer.encode("1+1=") for _ in prompts], "completion_ids": ids, "logprobs": None}

    return rollout


def test_a_completion_is_cut_in_tokens_and_keeps_its_form(tokenizer):
    one, two, six = (tokenizer.encode(text)[0] for text in ("1", "2", "6"))
    ids = [[one, six, two, six, tokenizer.eos_token_id], [two, six]]
    texts, kept = cut_completions(["1626", "26"], ids, [[], []], [2, 2], tokenizer)
    assert (texts, kept) == (["16", "26"], [[one, six], [two, six]])
    first, second = ([{"role": "assistant", "content": text, "seen": True}] for text in ("1626", "26"))
    messages, _ = cut_completions([first, second], ids, [[], []], [3, 2], tokenizer)
    assert messages == [[{"role": "assistant", "content": "162"}], second]


def test_a_reply_that_the_tokenizer_parses_is_parsed_after_the_cut_too(tokenizer):
    parser, fields = copy.copy(tokenizer), {"content": {"close_pattern": "$", "content": "text"}}
    fields["reasoning_content"] = {"open": "1", "close": "2", "content": "text"}
    parser.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "0",
        "fields": fields,
    }  # of a prompt
    ids = [tokenizer.encode(text)[0] for text in "718272"]
    reply = [{"role": "assistant", "content": "772", "reasoning_content": "8"}]
    [message], _ = cut_completions([reply], [ids], [tokenizer.encode("0")], [5], parser)
    assert message == [{"role": "assistant", "reasoning_content": "8", "content": "7"}]


@pytest.fixture
def trace(make_trainer, tokenizer):
    """Trains one step on the traced batch; what came out of each part."""

    def run(rollout=None, grader=None, **overrides):
        grader = grader or Grader()
        rollout = rollout or make_rollout(tokenizer, LENGTHS)
        trainer = make_trainer(grader, rollout_func=rollout, **{**FIELDS, **overrides})
        batches = generation_batches(trainer)
        trainer.train()
        return SimpleNamespace(trainer=trainer, grader=grader, batch=batches[0], log=log_rows(trainer)[0])

    return run


def test_a_cut_batch_is_graded_again_trained_on_without_the_tail_and_logged_once(trace, tokenizer):
    seen = trace(grader=Grader(again=0.25))
    # row 3 is cut to 40 tokens, of which none is the answer
    (texts, ids), (texts_again, ids_again) = seen.grader.calls
    assert [len(each) for each in ids] == LENGTHS
    assert [len(each) for each in ids_again] == KEPT
    assert (texts[3], texts_again[3]) == ("7" * 48 + "5", "7" * 40)
    assert texts[:3] + texts[4:] == texts_again[:3] + texts_again[4:]
    # what is trained on
    assert seen.batch["advantages"].tolist() == pytest.approx(ADVANTAGES, abs=1e-6)
    assert seen.batch["completion_mask"].tolist() == [[int(place < kept) for place in range(50)] for kept in KEPT]
    assert seen.batch["num_items_in_batch"] == sum(KEPT)
    assert (seen.batch["completion_ids"][3, 40:] == tokenizer.pad_token_id).all()
    # the rewards after the cut, of what was cut alone, and the lengths before it
    rewards = [*(1, 1, 1, -0.25), *(1, -1, 1, 1), *(1, 1, 1, 1)]
    table, extra = seen.trainer._logs, seen.trainer._logs["extra"]
    assert list(table["rewards"]["grader"]) == list(extra["task_reward"]) == rewards
    assert list(table["advantages"]) == pytest.approx(ADVANTAGES, abs=1e-6)
    assert list(extra["length"]) == LENGTHS
    assert list(extra["seen"]) == list(extra["kept_length"]) == KEPT
    assert ("grading 1" in extra, list(extra["grading 2"])) == (False, [1.0] * 12)
    assert list(table["completion"])[3] == [{"role": "assistant", "content": "7" * 40}]
    expected = {
        **{"tokens": sum(KEPT), "reward": 8.75 / 12, "leash/cut_share": 1 / 12, "leash/accuracy": 10 / 12},
        **{"leash/mean_length": sum(LENGTHS) / 12, "leash/truncated_share": 0, "leash/zero_signal_share": 1 / 3},
        "leash/generated_tokens": sum(LENGTHS),
    }
    assert {key: seen.log[key] for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize("is_cut", [True, False])
def test_the_loss_does_not_depend_on_the_tail_unless_it_stays(trace, tokenizer, is_cut):
    """To the last bit, with old and reference probabilities."""
    fields = {"beta": 0.04, "num_iterations": 2, "max_steps": 2}
    if not is_cut:
        fields["length_control_kwargs"] = {"alpha": 1.0, "min_excess": 11}
    wrong = (WRONG_ROW,) if is_cut else (CUT_ROW, WRONG_ROW)
    runs = [trace(make_rollout(tokenizer, LENGTHS, wrong_rows=wrong, tail=tail), **fields) for tail in ("7", "3")]
    assert runs[0].grader.calls[0] != runs[1].grader.calls[0]
    assert runs[0].log["grad_norm"] > 0
    assert all(map(torch.equal, *(run.trainer.model.parameters() for run in runs))) == is_cut


def test_evaluation_cuts_nothing_and_a_batch_without_outliers_is_graded_once(make_trainer, tokenizer, problems):
    grader = Grader()
    data = {"eval_dataset": problems.select(range(3)), "per_device_eval_batch_size": 12}
    trainer = make_trainer(
        grader, rollout_func=make_rollout(tokenizer, LENGTHS, [10, 12, 14, 16] * 3), **data, **FIELDS
    )
    trainer.evaluate()
    assert [len(ids) for ids in grader.calls[0][1]] == list(trainer._logs["extra"]["kept_length"]) == LENGTHS
    assert trainer.state.log_history[-1]["eval_leash/cut_share"] == 0
    trainer.train()
    assert len(grader.calls) == 2
    assert log_rows(trainer)[0]["leash/cut_share"] == 0


def test_a_group_that_the_cut_gave_a_signal_is_not_refilled(trace):
    """Only the third group is drawn anew; its fresh group, like the first, is cut in its turn."""
    seen = trace(dynamic_sampling_rounds=1)
    assert [[len(ids) for ids in call[1]] for call in seen.grader.calls] == [LENGTHS, KEPT, LENGTHS[:4], KEPT[:4]]
    assert seen.batch["completion_mask"].sum(dim=1).tolist() == KEPT[:8] + KEPT[:4]
    assert seen.batch["advantages"].tolist() == pytest.approx(ADVANTAGES[:8] + ADVANTAGES[:4], abs=1e-6)
    assert (seen.log["leash/cut_share"], seen.log["leash/wasted_share"]) == (2 / 16, 4 / 16)


def test_what_a_cut_cannot_go_with_is_refused_in_one_line(trace, tokenizer):
    vllm = {"use_vllm": True, "vllm_importance_sampling_correction": True}
    token, sequence = (
        SimpleNamespace(**vllm, vllm_importance_sampling_mode=f"{unit}_mask") for unit in ("token", "sequence")
    )
    fits = {"length_control": DOT(), "tools": None, "environment_factories": None, "args": token}
    check_cuts(SimpleNamespace(**fits))
    for unfit, named in (({"tools": [print]}, "dot"), ({"args": sequence}, "vllm_importance_sampling_mode")):
        with pytest.raises(ValueError, match=named):
            check_cuts(SimpleNamespace(**{**fits, **unfit}))
        check_cuts(SimpleNamespace(**{**fits, **unfit, "length_control": NoControl()}))
    rollout = make_rollout(tokenizer, LENGTHS)

    def of_several_turns(prompts, trainer):
        output = rollout(prompts, trainer)
        return {**output, "env_mask": [[1] * len(ids) for ids in output["completion_ids"]]}

    with pytest.raises(ValueError, match="env_mask"):
        trace(of_several_turns)
