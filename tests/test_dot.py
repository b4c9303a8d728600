"""DOT: the cut by hand, when it cannot happen, and one batch traced through the trainer."""

import copy
import math
import re
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from cut_run import ADVANTAGES, CUT_ROW, FIELDS, KEPT, LENGTHS, REWARDS, WRONG_ROW, Grader, make_rollout
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.length_control.dot import DOT, largest_score
from leash_trl.length_control.none import NoControl
from leash_trl.length_control.outliers import mean_and_std, robust_scores
from leash_trl.trainer.cut_completions import check_cuts, cut_completions


NAN = float("nan")


@pytest.mark.parametrize(
    ("outlier", "kept"),
    [
        # 11 of 100 and one of 1300: mean 200, std sqrt((11 * 100^2 + 1100^2) / 11) = 346.410; 200 + 3 * 346.410
        # = 1239.230, so T = 1239, and 1300 - 1239 = 61 >= 32
        (1300, 1239),
        # d = 600: mean 150, std sqrt((11 * 50^2 + 550^2) / 11) = 173.205; T = floor(669.615) = 669; 700 - 669 = 31
        (700, 700),
        # d = 612: mean 151, std 612 / sqrt(12) = 176.669; T = floor(681.007) = 681; 712 - 681 = 31
        (712, 712),
        # d = 624: mean 152, std 624 / sqrt(12) = 180.133; T = floor(692.400) = 692; 724 - 692 = 32
        (724, 692),
    ],
)
def test_the_cut_by_hand(make_rollouts, outlier, kept):
    lengths = [100] * 11 + [outlier]
    assert DOT().cut_lengths(make_rollouts([1.0] * 12, lengths)).tolist() == [100] * 11 + [kept]


def test_the_robust_cut_by_hand(make_rollouts):
    # median 115, MAD 10: T = floor(115 + 3 * 14.826) = floor(159.478) = 159
    rollouts = make_rollouts([1.0] * 4, [100, 110, 120, 400])
    assert DOT(robust=True).cut_lengths(rollouts).tolist() == [100, 110, 120, 159]
    # 191 - 159 = 32 is enough, 190 - 159 = 31 is not
    for length, kept in ((191, 159), (190, 190)):
        assert DOT(robust=True).cut_lengths(make_rollouts([1.0] * 4, [100, 110, 120, length]))[3] == kept


def test_only_groups_of_right_answers_are_cut(make_rollouts):
    # G = 4, alpha = 1: mean 20, std 20, T = 40 for lengths 10, 10, 10, 50
    lengths, method = [10, 10, 10, 50], DOT(alpha=1.0, min_excess=8)
    rewards = [*(1, 1, 1, 1), *(1, 1, -1, 1), *(1, 0, 1, 1), *(-1, -1, -1, -1)]
    kept = method.cut_lengths(make_rollouts(rewards, lengths * 4, num_generations=4))
    assert kept.tolist() == [10, 10, 10, 40, *lengths * 3]


def test_unscorable_completions_neither_stop_nor_move_nor_suffer_a_cut(make_rollouts):
    method = DOT(alpha=1.0, min_excess=8)
    for unscorable in (1, 60, 999):
        rollouts = make_rollouts([1, 1, NAN, 1, 1], [10, 10, unscorable, 10, 50])
        assert method.cut_lengths(rollouts).tolist() == [10, 10, unscorable, 10, 40]
    lengths = [10, 10, 10, 50]
    assert method.cut_lengths(make_rollouts([NAN] * 4, lengths)).tolist() == lengths


@pytest.mark.parametrize("robust", [False, True])
# many within 1.5 % of each other, too close for a robust spread
@given(lengths=st.lists(st.integers(990, 1010) | st.integers(1, 4000), min_size=3, max_size=16), alpha=st.floats(0, 3))
def test_what_is_cut_is_an_outlier_and_every_outlier_is_cut(make_rollouts, robust, lengths, alpha):
    """Against the definition, number by number."""
    method = DOT(alpha=alpha, robust=robust)
    kept = method.cut_lengths(make_rollouts([1.0] * len(lengths), lengths)).tolist()
    if robust:
        centre = statistics.median(lengths)
        deviation = statistics.median(abs(n - centre) for n in lengths)
        hardly_spreads = deviation == 0 or deviation < 0.015 * centre
        spread = math.inf if hardly_spreads else 1.4826 * deviation
    else:
        centre, spread = statistics.mean(lengths), statistics.stdev(lengths)
    limit = math.inf if spread == math.inf else math.floor(centre + alpha * spread)
    assert kept == [limit if n - limit >= 32 else n for n in lengths]


@given(st.lists(st.integers(1, 30_000), min_size=2, max_size=40))
def test_no_z_score_exceeds_the_bound(values):
    means, stds = mean_and_std(torch.tensor([values]))
    scores = ((torch.tensor(values) - means) / stds).nan_to_num(0.0)
    assert scores.max() <= largest_score(len(values), False) * (1 + 1e-9)
    if len(values) == 2:
        assert robust_scores(torch.tensor([values])).max() <= largest_score(2, True) + 1e-12


def test_the_bound_is_reached_by_a_lone_outlier():
    for n in (2, 4, 10, 11, 32):
        values = [1.0] * (n - 1) + [500.0]
        score = (500.0 - statistics.mean(values)) / statistics.stdev(values)
        assert largest_score(n, False) == pytest.approx(score)
        population = (500.0 - statistics.mean(values)) / statistics.pstdev(values)
        assert math.sqrt(n - 1) == pytest.approx(population)
    assert largest_score(10, False) < 3.0 < largest_score(11, False)


@pytest.mark.parametrize("num_generations", [2, 8, 10])
def test_a_cut_that_can_never_happen_is_refused(num_generations):
    with pytest.raises(
        ValueError, match=rf"alpha is 3.0, .* num_generations={num_generations} .* to 11 or more, or robust, or lower"
    ):
        DOT().check(None, 8192, num_generations)


@given(st.floats(0, 50))
def test_the_group_that_the_message_names_is_the_smallest_that_is_cut(alpha):
    with pytest.raises(ValueError, match="num_generations to") as refused:
        DOT(alpha=alpha).check(None, math.inf, 1)
    least = int(re.search(r"num_generations to (\d+)", str(refused.value))[1])
    DOT(alpha=alpha).check(None, math.inf, least)
    assert least == 2 or alpha >= largest_score(least - 1, False) - 1e-9


def test_a_cut_that_can_happen_is_allowed():
    DOT().check(None, 8192, 11)
    DOT().check(None, math.inf, 11)
    DOT(alpha=1.0).check(None, 8192, 4)
    DOT(robust=True).check(None, 8192, 3)
    with pytest.raises(ValueError, match=r"alpha is 3.0, .* 0\.674 .* num_generations to 3 or more, or lower alpha"):
        DOT(robust=True).check(None, 8192, 2)


def test_an_excess_that_the_limit_does_not_leave_room_for_is_refused(make_rollouts):
    # one of d + 1 tokens, eleven of 1: above the cut lie d * (1 - 1/12 - 3 / sqrt(12)) = 0.050641 d, and the cut is
    # rounded down: 31 < 0.050641 d needs d >= 613
    with pytest.raises(
        ValueError, match=r"min_excess is 32, .* max_completion_length=613 .* lower min_excess or alpha"
    ):
        DOT().check(None, 613, 12)
    DOT().check(None, 614, 12)
    for limit, is_cut in ((613, False), (614, True)):
        kept = DOT().cut_lengths(make_rollouts([1.0] * 12, [1] * 11 + [limit]))
        assert bool(kept[-1] < limit) is is_cut
    with pytest.raises(ValueError, match="min_excess is 32"):
        DOT(robust=True).check(None, 32, 12)


def test_rewards_are_the_task_rewards(make_rollouts):
    rollouts = make_rollouts([1.0, 0.25, NAN, -1.0], [10, 20, 30, 40])
    assert torch.equal(DOT().shape(rollouts).nan_to_num(7.0), rollouts.task_rewards.nan_to_num(7.0))
    assert DOT().penalty(rollouts).nansum() == 0


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
