"""Fresh prompts for groups without signal: which come, and which groups they replace. No trainer."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import RepeatSampler

from leash_trl.data.questions import question_of
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.methods import METHODS
from leash_trl.trainer.dynamic_sampling import DynamicSampling, kept_groups, refilled
from leash_trl.trainer.generation_batch import GenerationBatch


def letters(count):
    return [{"prompt": letter} for letter in "abcdefghijklmnopqrstuvwxyz"[:count]]


def make_sampling(rows, prompts_in_batch=2, **changes):
    fields = {"seed": 3, "shuffle_dataset": False, **changes}
    sizes = {"generation_batch_size": prompts_in_batch * 4, "num_generations": 4}
    return DynamicSampling(rows, SimpleNamespace(**fields, **sizes))


def drawn_for(sampling, batch, count, without=()):
    """The letters drawn for a batch, of which so many were done before."""
    sampling.batches = batch
    return "".join(row["prompt"] for row in sampling.draw(count, without))


def test_the_first_epoch_is_drawn_from_its_end_and_then_from_its_start_by_hand():
    """Batches ab, cd, ef, gh."""
    sampling = make_sampling(letters(8))
    assert drawn_for(sampling, batch=0, count=2) == "hg"
    assert drawn_for(sampling, batch=1, count=3) == "fea"  # only e and f were left after the batch
    assert drawn_for(sampling, batch=2, count=1) == "b"
    assert drawn_for(sampling, batch=3, count=2) == "cd"


def test_a_later_epoch_is_drawn_from_the_side_where_more_is_left_by_hand():
    """Batches ab, cd, ef, gh again."""
    sampling = make_sampling(letters(8))
    assert drawn_for(sampling, batch=4, count=1) == "h"  # 6 in the future, 0 in the past
    assert drawn_for(sampling, batch=5, count=1) == "g"  # 4 - 1 = 3, and 2
    assert drawn_for(sampling, batch=6, count=1) == "a"  # 2 - 2 = 0, and 4
    assert drawn_for(sampling, batch=7, count=1) == "b"  # 0, and 6 - 1 = 5


@given(
    st.integers(0, 5),
    st.integers(1, 6),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.booleans(),
)
def test_the_first_epochs_replacements_are_new_until_all_prompts_are_used(seed, size, counts, is_shuffled):
    rows = letters(26)
    sampling = make_sampling(rows, size, seed=seed, shuffle_dataset=is_shuffled)
    order = list(RepeatSampler(rows, 1, shuffle=is_shuffled, seed=seed))
    used = set()
    for batch, count in enumerate(counts[: 26 // size]):
        current = {rows[index]["prompt"] for index in order[batch * size : (batch + 1) * size]}
        used |= current
        drawn = drawn_for(sampling, batch, count, without={question_of({"prompt": prompt}) for prompt in current})
        assert len(set(drawn)) == count
        assert not set(drawn) & current
        assert len(set(drawn) - used) == min(count, 26 - len(used))
        used |= set(drawn)


def test_prompts_of_an_incomplete_last_batch_are_drawn_first():
    sampling = make_sampling(letters(5))
    assert drawn_for(sampling, batch=0, count=1) == "e"
    assert drawn_for(sampling, batch=2, count=1) == "e"  # the second epoch: 5 // 2 batches in each


def test_prompts_repeat_where_the_data_set_is_smaller_than_a_batch():
    rows = letters(3)
    sampling = make_sampling(rows, prompts_in_batch=4)
    questions = {question_of(row) for row in rows}
    assert len(drawn_for(sampling, batch=0, count=5, without=questions)) == 5


@given(st.lists(st.booleans(), min_size=4), st.integers(1, 4))
def test_every_dead_group_that_a_live_one_can_replace_is_replaced(is_alive, count):
    kept = kept_groups(is_alive, count)
    assert len(set(kept)) == len(kept) == count
    for position, group in enumerate(kept):
        assert group == position or (group >= count and not is_alive[position])
    assert sum(is_alive[group] for group in kept) == min(count, sum(is_alive))


def test_what_cannot_be_replaced_row_by_row_is_an_error(make_rollouts):
    rollouts = make_rollouts([1.0, -1], [1, 2], target=12, num_generations=2)
    score = METHODS["none"]().score(rollouts, AdvantageRule())
    generation = GenerationBatch(rollouts=rollouts, score=score, batch={"pixel_values": torch.zeros(1)})
    with pytest.raises(ValueError, match="pixel_values"):
        refilled(generation, generation, score=None, accelerator=None, pad_token_id=0)
