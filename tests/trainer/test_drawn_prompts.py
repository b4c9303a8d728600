"""Fresh prompts for groups without signal: which come, how many, and which groups they replace. No trainer."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import RepeatSampler

from leash_trl.data.questions import question_of
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.methods import METHODS
from leash_trl.trainer.dynamic_sampling import DynamicSampling, extra_groups, kept_groups
from leash_trl.trainer.generation_batch import GenerationBatch


def letters(count: int) -> list[dict]:
    return [{"prompt": letter} for letter in "abcdefghijklmnopqrstuvwxyz"[:count]]


def make_refill(rows, batch_size=2, num_generations=4, **changes) -> DynamicSampling:
    fields = {"seed": 3, "shuffle_dataset": False, "world_size": 1, "dynamic_sampling_oversample": 8.0, **changes}
    sizes = {"generation_batch_size": batch_size * num_generations, "num_generations": num_generations}
    return DynamicSampling(rows, SimpleNamespace(**fields, **sizes))


def draw(refill, count, batch, without=()) -> list[str]:
    """Prompts drawn for a batch."""
    refill.batches = batch
    return [row["prompt"] for row in refill.draw(count, without)]


def test_the_first_epoch_is_drawn_from_its_end_and_then_from_its_start_by_hand():
    """Batches ab, cd, ef, gh."""
    refill = make_refill(letters(8))
    # ab, then c to f are ahead when hg are drawn, then ef; now the batches have or had all: from the start
    assert ["".join(draw(refill, count, batch)) for batch, count in enumerate([2, 3, 1, 2])] == [
        "hg",
        "fea",
        "b",
        "cd",
    ]


def test_a_later_epoch_is_drawn_from_where_the_other_visit_is_farther_by_hand():
    """Batches ab, cd, ef, gh again. With ab and cd current, the end is at least as far as the start."""
    refill = make_refill(letters(8))
    # num_ahead, num_behind: 6, 0; 8 - 1 - 4 = 3, 2; 8 - 2 - 6 = 0, 4; and 6 - 1 = 5 behind
    assert ["".join(draw(refill, 1, 4 + batch)) for batch in range(4)] == ["h", "g", "a", "b"]


@given(st.integers(0, 5), st.integers(1, 6), st.lists(st.integers(0, 9), min_size=1, max_size=12), st.booleans())
def test_the_first_epochs_replacements_are_new_until_all_prompts_are_used(seed, batch_size, counts, is_shuffled):
    rows = letters(26)
    refill = make_refill(rows, batch_size, seed=seed, shuffle_dataset=is_shuffled)
    order = list(RepeatSampler(rows, 1, shuffle=is_shuffled, seed=seed))
    seen: list[str] = []
    for batch, count in enumerate(counts[: 26 // batch_size]):
        current = [rows[place]["prompt"] for place in order[batch * batch_size : (batch + 1) * batch_size]]
        seen += [prompt for prompt in current if prompt not in seen]
        drawn = draw(refill, count, batch, {question_of({"prompt": prompt}) for prompt in current})
        assert len(set(drawn)) == count
        assert not set(drawn) & set(current)
        new = [prompt for prompt in drawn if prompt not in seen]
        assert len(new) == min(count, 26 - len(seen))
        seen += new


def test_an_incomplete_last_batch_is_drawn_first_and_a_data_set_smaller_than_a_batch_too():
    refill = make_refill(letters(5))
    assert draw(refill, 1, 0) == ["e"]
    assert draw(refill, 1, 2) == ["e"]  # the second epoch: 5 // 2 batches in each
    rows = letters(3)
    assert len(draw(make_refill(rows, 4), 5, 0, {question_of(row) for row in rows})) == 5


def test_the_share_of_groups_with_signal_halves_with_each_batch_by_hand():
    # 3 of 4, then 1 of 2: (3 / 2 + 1) / (4 / 2 + 2) = 0.625; two groups need 2 more, 4 * 0.625 + 0.5 - 0.97 = 2.03
    refill = make_refill(letters(9))
    assert refill.num_extra() == 0  # nothing is known yet
    refill.record(torch.tensor([True, True, True, False]))
    refill.record(torch.tensor([True, False]))
    assert refill.num_extra() == extra_groups(2, 0.625, 16) == 2
    # 12 groups in two processes: 0.3 * 6 = 1.8, and not half of 0.3 * 12 = 3.6
    refill = make_refill(letters(9), batch_size=12, world_size=2, dynamic_sampling_oversample=0.3)
    refill.record(torch.tensor([False] * 12))
    assert refill.num_extra() == 2


def test_extra_groups_by_hand():
    # 4 groups and m = 1 / 2: 4.5 - 1.41 = 3.09 for E = 4, 5.5 - 1.58 = 3.92 for E = 6, 6 - 1.66 = 4.34 for E = 7
    assert extra_groups(4, 0.5, most=9) == 7
    assert extra_groups(4, 0.5, most=2) == 2
    assert extra_groups(32, 1.0, most=8) == extra_groups(32, 0.999, most=8) == 0


@given(st.lists(st.booleans(), min_size=4), st.integers(1, 4))
def test_every_dead_group_that_a_live_one_can_replace_is_replaced(is_alive, count):
    kept = kept_groups(is_alive, count)
    assert len({*kept}) == len(kept) == count
    assert all(group in (place, *range(count, len(is_alive))) for place, group in enumerate(kept))
    assert all(kept[place] == place for place in range(count) if is_alive[place])
    assert sum(is_alive[group] for group in kept) == min(count, sum(is_alive))


def test_what_cannot_be_replaced_row_by_row_is_an_error(make_rollouts):
    rollouts, method = make_rollouts([1.0, -1], [1, 2], target=12, num_generations=2), METHODS["none"]()
    score = method.score(rollouts, AdvantageRule())
    generation = GenerationBatch(rollouts=rollouts, score=score, batch={"pixel_values": torch.zeros(1)})
    with pytest.raises(ValueError, match="pixel_values"):
        generation.refilled(1, method, AdvantageRule(), SimpleNamespace(process_index=0, num_processes=1))
