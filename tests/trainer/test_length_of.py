"""`length_of: thinking`: what counts as length is the thinking, and everything else the whole completion."""

import pytest
from conftest import log_rows
from gradient_run import scripted_rollout

from leash_trl.errors import TrainingError


# numbers of tokens of thinking and of tokens after it, the end token included, of a group of four: the third does not
# think, the fourth never ends its thinking
GROUP = [(5, 1), (9, 4), (0, 6), (20, 0)]


def second_is_wrong(completion_ids, **kwargs):
    """Rewards of two groups."""
    return [1.0, -1.0, 1.0, 1.0] * 2


@pytest.fixture
def thinking_trainer(make_trainer, tokenizer):
    """Factory of trainers with a target of 6 tokens of thinking, whose groups all have these lengths."""
    start, end, seven = [tokenizer.encode(text)[0] for text in ("<think>", "</think>", "7")]

    def make(group=GROUP, **fields):
        def ids_of(trainer, index, code):
            num_thinking, num_after = group[index % len(group)]
            ids = [start, *[seven] * 23][:num_thinking] + [seven] * num_after
            if num_after:
                ids[-1] = tokenizer.eos_token_id
                if num_thinking:
                    ids[num_thinking - 1] = end
            return ids

        rollout_func = scripted_rollout(tokenizer, ids_of)
        return make_trainer(
            second_is_wrong, rollout_func=rollout_func, length_of="thinking", target_length=6, **fields
        )

    return make


def test_lambda_follows_the_thinking_and_statistics_of_completions_stay_whole(thinking_trainer):
    trainer = thinking_trainer(max_completion_length=20, max_steps=2)
    with pytest.warns(UserWarning, match="length_of"):
        trainer.train()
    first, second = log_rows(trainer)
    assert first["leash/mean_length"] == (5 + 9 + 0 + 20) / 4
    assert first["leash/mean_completion_length"] == (6 + 13 + 6 + 20) / 4
    assert first["completions/mean_length"] == (6 + 13 + 6 + 20) / 4
    assert (first["leash/generated_tokens"], second["leash/generated_tokens"]) == (2 * 45, 4 * 45)
    assert first["leash/truncated_share"] == 1 / 4
    assert second["leash/lambda"] == pytest.approx(0.1 + 0.1 * (34 / 4 / 6 - 1))
    # 0.1 * (20 / 6 - 1) of the fourth; the second one is wrong, and stays on the lower clip
    assert first["leash/paying_share"] == 1 / 3
    assert list(trainer._logs["extra"]["length"])[:4] == [5, 9, 0, 20]


def test_a_run_goes_on_if_completions_were_cut_off_while_they_think(thinking_trainer):
    """Their thinking may have ended later."""
    trainer = thinking_trainer(group=[(24, 0)], max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize(
    "group",
    [
        [(0, 6), (0, 1), (0, 6), (0, 3)],
        [(0, 6), (0, 24), (0, 6), (0, 24)],  # cut off, and never begun
    ],
)
def test_an_end_of_thinking_that_no_completion_of_the_first_batch_has_ends_the_run(group, thinking_trainer):
    trainer = thinking_trainer(group, max_steps=1)
    with pytest.raises(TrainingError, match=r"thinking_end.*'</think>'") as failure:
        trainer.train()
    assert "\n" not in str(failure.value)
    assert trainer.state.global_step == 0
