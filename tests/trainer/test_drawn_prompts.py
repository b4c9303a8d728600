"""Fresh prompts for groups without signal: which come, and which groups they replace. No trainer."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_rollouts import toy_rollouts
from trl.trainer.utils import RepeatSampler

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.methods import METHODS
from leash_trl.trainer.dynamic_sampling import DynamicSampling, kept_groups
from leash_trl.trainer.generation_batch import GenerationBatch
from leash_trl.trainer.questions import question_hash


def letters(count):
    return [{"prompt": letter} for letter in "abcdefghijklmnopqrstuvwxyz"[:count]]


def make_sampling(rows, seed=3, is_shuffled=False):
    args = SimpleNamespace(seed=seed, shuffle_dataset=is_shuffled)
    return DynamicSampling(rows, args, accelerator=None, pad_token_id=0, generate=None, score=None)


def drawn(sampling, count, without=()):
    """The letters of the next draws."""
    return "".join(row["prompt"] for row in sampling.draw_rows(count, without))


def test_prompts_are_drawn_from_the_end_to_the_start_and_from_the_end_again():
    sampling = make_sampling(letters(4))
    assert [drawn(sampling, count=3), drawn(sampling, count=3)] == ["dcb", "adc"]


@given(
    st.integers(0, 5),
    st.integers(1, 6),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.booleans(),
)
def test_the_first_epochs_replacements_are_new_until_all_prompts_are_used(seed, size, counts, is_shuffled):
    rows = letters(26)
    sampling = make_sampling(rows, seed, is_shuffled)
    order = list(RepeatSampler(rows, 1, shuffle=is_shuffled, seed=seed))
    used = set()
    for batch, count in enumerate(counts[: 26 // size]):
        current = {rows[index]["prompt"] for index in order[batch * size : (batch + 1) * size]}
        used |= current
        prompts = drawn(sampling, count, without={question_hash({"prompt": prompt}) for prompt in current})
        assert len(set(prompts)) == count
        assert not set(prompts) & current
        assert len(set(prompts) - used) == min(count, 26 - len(used))
        used |= set(prompts)


def test_prompts_repeat_where_the_data_set_is_smaller_than_a_batch():
    rows = letters(3)
    questions = {question_hash(row) for row in rows}
    assert len(drawn(make_sampling(rows), count=5, without=questions)) == 5


@given(st.lists(st.booleans(), min_size=4), st.integers(1, 4))
def test_every_dead_group_that_a_live_one_can_replace_is_replaced(is_alive, count):
    has_signal = torch.tensor([is_alive])
    kept = kept_groups(has_signal[:, :count], has_signal[:, count:])[0].tolist()
    assert len(set(kept)) == len(kept) == count
    for position, group in enumerate(kept):
        assert group == position or (group >= count and not is_alive[position])
    assert sum(is_alive[group] for group in kept) == min(count, sum(is_alive))


def test_what_cannot_be_replaced_row_by_row_is_an_error():
    rollouts = toy_rollouts([1.0, -1], [1, 2], target=12, num_generations=2)
    score = METHODS["none"]().score(rollouts, AdvantageRule())
    generation = GenerationBatch(rollouts, score, trl_batch={"pixel_values": torch.zeros(1)})
    with pytest.raises(ValueError, match="pixel_values"):
        make_sampling(letters(1)).refilled(generation, generation)
