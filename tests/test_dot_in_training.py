"""DOT: the cut by hand, when it cannot happen, and one batch traced through the trainer."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from cut_run import ADVANTAGES, CUT_ROW, FIELDS, KEPT, LENGTHS, REWARDS, WRONG_ROW, Grader, make_rollout

from leash_trl.length_control.dot import DOT
from leash_trl.length_control.none import NoControl
from leash_trl.trainer.cut_completions import check_cuts, cut_completions


NAN = float("nan")


def test_two_rewards_need_one_that_says_which_answers_are_right(make_rollouts, make_trainer, tokenizer):
    def well_formed(completions, **kwargs):
        return [0.5] * len(completions)

    fields = {**FIELDS, "rollout_func": make_rollout(tokenizer, LENGTHS)}
    with pytest.raises(ValueError, match="correctness_func is None"):
        make_trainer([Grader(), well_formed], **fields)
    # 1.5 and 0.5 are the sums: all positive, but the third answer is wrong
    rollouts = make_rollouts([1.5, 1.5, 0.5, 1.5], [10, 10, 10, 50])
    rollouts = replace(rollouts, correctness_rewards=torch.tensor([1, 1, 0, 1], dtype=torch.float64))
    method = DOT(alpha=1.0, min_excess=8)
    assert method.cut_lengths(rollouts).tolist() == [10, 10, 10, 50]
    assert method.base_rewards(rollouts).tolist() == [1.5, 1.5, 0.5, 1.5]


def test_a_completion_is_cut_in_tokens_and_keeps_its_form(tokenizer):
    one, two, six = (tokenizer.encode(text)[0] for text in ("1", "2", "6"))
    ids = [[one, six, two, six, tokenizer.eos_token_id], [two, six]]
    texts, kept = cut_completions(["1626", "26"], ids, [[], []], [2, 2], tokenizer)
    assert (texts, kept) == (["16", "26"], [[one, six], [two, six]])
    first, second = ([{"role": "assistant", "content": text, "seen": True}] for text in ("1626", "26"))
    messages, _ = cut_completions([first, second], ids, [[], []], [3, 2], tokenizer)
    assert messages == [[{"role": "assistant", "content": "162"}], second]


def test_a_reply_that_the_tokenizer_parses_is_parsed_after_the_cut_too(tokenizer):
    parser = copy.copy(tokenizer)
    parser.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "0",  # ends the prompt
        "fields": {
            "reasoning_content": {"open": "1", "close": "2", "content": "text"},
            "content": {"close_pattern": "$", "content": "text"},
        },
    }
    ids = [tokenizer.encode(text)[0] for text in "718272"]
    reply = [{"role": "assistant", "content": "772", "reasoning_content": "8"}]
    [message], _ = cut_completions([reply], [ids], [tokenizer.encode("0")], [5], parser)
    assert message == [{"role": "assistant", "reasoning_content": "8", "content": "7"}]


@pytest.fixture
def trace(make_trainer, tokenizer):
    """Trains one step on the traced batch; what came out of each part."""

    def run(rollout=None, dataset=None, grader=None, **overrides):
        grader, outputs = grader or Grader(), []
        trainer = make_trainer(
            grader,
            dataset=dataset,
            rollout_func=rollout or make_rollout(tokenizer, LENGTHS),
            **{**FIELDS, **overrides},
        )
        score = trainer._generate_and_score_completions

        def spy(inputs):
            outputs.append(score(inputs))
            return outputs[-1]

        trainer._generate_and_score_completions = spy
        trainer.train()
        rows = [row for row in trainer.state.log_history if "loss" in row]
        return SimpleNamespace(trainer=trainer, grader=grader, output=outputs[0], outputs=outputs, log=rows[0])

    return run


def test_a_batch_traced_through_the_trainer(trace, tokenizer):
    seen = trace()
    # graded twice: as generated, then with row 3 cut to 40 tokens, of which none is the answer
    (texts, ids), (texts_again, ids_again) = seen.grader.calls
    assert [len(each) for each in ids] == LENGTHS
    assert [len(each) for each in ids_again] == KEPT
    assert ids_again[3] == ids[3][:40]
    assert texts_again[3] == "7" * 40
    assert texts[3] == "7" * 48 + "5"
    assert [row for row in range(12) if texts[row] != texts_again[row]] == [3]
    # what is trained on
    assert seen.output["advantages"].tolist() == pytest.approx(ADVANTAGES, abs=1e-6)
    mask = seen.output["completion_mask"]
    assert mask.tolist() == [[int(place < kept) for place in range(50)] for kept in KEPT]
    assert seen.output["num_items_in_batch"] == sum(KEPT) == 202
    assert seen.output["completion_ids"][3, :40].tolist() == ids[3][:40]
    assert (seen.output["completion_ids"][3, 40:] == tokenizer.pad_token_id).all()
    # what length control and its log see: the rewards after the cut, the lengths before it
    rollouts = seen.trainer._batch.scored.rollouts
    assert rollouts.task_rewards.tolist() == REWARDS
    assert rollouts.lengths.tolist() == LENGTHS
    assert not rollouts.is_truncated.any()
    assert seen.log["leash/cut_share"] == pytest.approx(1 / 12)
    assert seen.log["leash/mean_length"] == pytest.approx(sum(LENGTHS) / 12)
    assert seen.log["leash/accuracy"] == pytest.approx(10 / 12)
    assert seen.log["leash/zero_signal_share"] == pytest.approx(1 / 3)
    assert seen.log["leash/generated_tokens"] == sum(LENGTHS)


def test_trls_log_and_table_hold_the_second_grading_once(trace):
    seen = trace()
    logs = seen.trainer._logs
    assert list(logs["rewards"]["grader"]) == REWARDS
    assert list(logs["advantages"]) == pytest.approx(ADVANTAGES, abs=1e-6)
    assert list(logs["extra"]["seen"]) == list(logs["extra"]["kept_length"]) == KEPT
    assert list(logs["extra"]["length"]) == LENGTHS
    assert seen.log["tokens"] == sum(KEPT)
    assert seen.log["reward"] == seen.log["rewards/grader/mean"] == pytest.approx(8 / 12)
    assert all(len(values) == 12 for values in (*logs["extra"].values(), logs["completion"], logs["prompt"]))


def test_the_table_has_nothing_that_was_said_of_the_first_grading(trace):
    """A column holds the last rows only, so one that both gradings fill would not show it."""

    class Diary(Grader):
        def __call__(self, log_extra, **kwargs):
            log_extra(f"grading {len(self.calls)}", [1.0] * len(kwargs["completions"]))
            return super().__call__(log_extra=log_extra, **kwargs)

    extra = trace(grader=Diary()).trainer._logs["extra"]
    assert list(extra["grading 1"]) == [1.0] * 12
    assert "grading 0" not in extra


def test_a_completion_that_is_not_cut_keeps_its_first_reward(trace):
    """Also where a reward function judges anew each time."""

    class Judge(Grader):
        def __call__(self, **kwargs):
            rewards = super().__call__(**kwargs)
            return rewards if len(self.calls) == 1 else [reward / 4 for reward in rewards]

    seen = trace(grader=Judge())
    # twelve rewards of +-1, but -0.25 for the one that was cut
    assert list(seen.trainer._logs["rewards"]["grader"]) == [1, 1, 1, -0.25, *REWARDS[4:]]


@pytest.mark.parametrize("fields", [{}, {"beta": 0.04, "num_iterations": 2, "max_steps": 2}], ids=str)
def test_the_loss_does_not_depend_on_the_tail(trace, tokenizer, fields):
    """Same gradients, to the last bit, whatever stood beyond the cut, also with old and reference probabilities."""
    runs = [trace(make_rollout(tokenizer, LENGTHS, tail=tail), **fields) for tail in ("7", "3")]
    assert runs[0].grader.calls[0] != runs[1].grader.calls[0]
    assert runs[0].log["grad_norm"] == runs[1].log["grad_norm"] > 0
    for mine, theirs in zip(*(run.trainer.model.parameters() for run in runs), strict=True):
        assert torch.equal(mine, theirs)


def test_the_loss_would_depend_on_the_tail_if_it_were_not_cut(trace, tokenizer):
    """Guards the test above."""
    fields = {"length_control_kwargs": {"alpha": 1.0, "min_excess": 11}}
    runs = [
        trace(make_rollout(tokenizer, LENGTHS, wrong_rows=(CUT_ROW, WRONG_ROW), tail=tail), **fields)
        for tail in ("7", "3")
    ]
    assert runs[0].log["leash/cut_share"] == 0
    assert runs[0].log["grad_norm"] != runs[1].log["grad_norm"]


def test_the_table_shows_the_text_that_was_graded(trace):
    from packaging.version import Version
    from trl import __version__

    shown = list(trace().trainer._logs["completion"])[3]
    if Version(__version__) < Version("1.11"):  # text of what was generated, decoded before it is graded
        assert shown == "7" * 48 + "5"
    else:
        assert shown == [{"role": "assistant", "content": "7" * 40}]


def test_plain_text_is_cut_as_text(trace, problems):
    texts = problems.map(lambda row: {"prompt": row["prompt"][0]["content"]})
    seen = trace(dataset=texts)
    assert seen.grader.calls[1][0][3] == "7" * 40
    assert seen.output["advantages"].tolist() == pytest.approx(ADVANTAGES, abs=1e-6)


def test_a_batch_without_outliers_is_graded_once(trace, tokenizer):
    seen = trace(make_rollout(tokenizer, [10, 12, 14, 16] * 3))
    assert len(seen.grader.calls) == 1
    assert seen.log["leash/cut_share"] == 0
    assert list(seen.trainer._logs["extra"]["kept_length"]) == [10, 12, 14, 16] * 3


def test_evaluation_cuts_nothing(make_trainer, tokenizer, problems):
    grader = Grader()
    trainer = make_trainer(
        grader,
        rollout_func=make_rollout(tokenizer, LENGTHS),
        eval_dataset=problems.select(range(3)),
        eval_strategy="steps",
        **{**FIELDS, "per_device_eval_batch_size": 12},
    )
    metrics = {**trainer.evaluate(), **trainer.state.log_history[-1]}
    assert [[len(ids) for ids in call[1]] for call in grader.calls] == [LENGTHS]
    assert metrics["eval_leash/cut_share"] == 0
    assert metrics["eval_leash/accuracy"] == pytest.approx(11 / 12)
    assert list(trainer._logs["extra"]["kept_length"]) == LENGTHS


def test_dynamic_sampling_keeps_a_group_that_the_cut_gave_a_signal(trace):
    """Groups 1 and 2 have a signal, so that only the third is drawn anew; its fresh group is cut in its turn."""
    seen = trace(dynamic_sampling_rounds=1)
    # batch and fresh group, each graded twice: the fresh group is like the first
    assert [[len(ids) for ids in call[1]] for call in seen.grader.calls] == [LENGTHS, KEPT, LENGTHS[:4], KEPT[:4]]
    kept = KEPT[:8] + KEPT[:4]
    mask = seen.output["completion_mask"]
    assert mask.sum(dim=1).tolist() == kept
    assert seen.output["num_items_in_batch"] == sum(kept)
    assert seen.output["advantages"].tolist() == pytest.approx(ADVANTAGES[:8] + ADVANTAGES[:4], abs=1e-6)
    assert seen.log["leash/cut_share"] == pytest.approx(2 / 16)  # of all 16 generated
    assert seen.log["leash/wasted_share"] == pytest.approx(4 / 16)
    assert list(seen.trainer._batch.scored.kept_lengths) == kept
    extra = seen.trainer._logs["extra"]  # of the last twelve graded
    assert list(extra["seen"]) == list(extra["kept_length"]) == [*KEPT[4:], *KEPT[:4]]


def test_tools_environments_and_ratios_over_whole_completions_are_refused():
    args = SimpleNamespace(
        use_vllm=True, vllm_importance_sampling_correction=True, vllm_importance_sampling_mode="token_truncate"
    )
    fields = {"length_control": DOT(), "tools": None, "environment_factories": None, "args": args}
    check_cuts(SimpleNamespace(**fields))
    for unfit in ({"tools": [print]}, {"environment_factories": {None: object}}):
        with pytest.raises(ValueError, match=r"length_control is 'dot', .* tools"):
            check_cuts(SimpleNamespace(**{**fields, **unfit}))
        check_cuts(SimpleNamespace(**{**fields, **unfit, "length_control": NoControl()}))
    args.vllm_importance_sampling_mode = "sequence_mask"
    with pytest.raises(ValueError, match=r"vllm_importance_sampling_mode is 'sequence_mask', .* 'token_truncate'"):
        check_cuts(SimpleNamespace(**fields))
    args.vllm_importance_sampling_correction = False
    check_cuts(SimpleNamespace(**fields))


def test_completions_of_several_turns_are_refused(make_trainer, tokenizer):
    rollout = make_rollout(tokenizer, LENGTHS)

    def with_mask(prompts, trainer):
        output = rollout(prompts, trainer)
        return {**output, "env_mask": [[1] * len(ids) for ids in output["completion_ids"]]}

    trainer = make_trainer(Grader(), rollout_func=with_mask, **FIELDS)
    with pytest.raises(ValueError, match=r"length_control is 'dot', .* env_mask"):
        trainer.train()
