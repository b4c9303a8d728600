"""Fresh prompts for groups without signal: which come, how many, and which groups they replace. No trainer."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import RepeatSampler

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.targets import question_of
from leash_trl.trainer.refill import Refill, extra_groups, kept_groups
from leash_trl.trainer.rounds import Round


def letters(count: int) -> list[dict]:
    return [{"prompt": letter} for letter in "abcdefghijklmnopqrstuvwxyz"[:count]]


def make_refill(rows, batch_size=2, num_generations=4, **changes) -> Refill:
    fields = {"seed": 3, "shuffle_dataset": False, "world_size": 1, "dynamic_sampling_oversample": 8.0, **changes}
    sizes = {"generation_batch_size": batch_size * num_generations, "num_generations": num_generations}
    return Refill(rows, SimpleNamespace(**fields, **sizes))


def draw(refill, count, batch, without=()) -> list[str]:
    """Prompts drawn for a batch."""
    refill.batches = batch
    return [row["prompt"] for row in refill.draw(count, without)]


def test_the_first_epoch_is_drawn_from_its_end_and_then_from_its_start_by_hand():
    """Batches ab, cd, ef, gh; two replacements each."""
    refill = make_refill(letters(8))
    # ab, then c to f are ahead when hg are drawn, then ef; now the batches have or had all: from the start
    assert ["".join(draw(refill, 2, batch)) for batch in range(4)] == ["hg", "fe", "ab", "cd"]


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


@pytest.mark.parametrize("is_shuffled", [True, False])
def test_a_later_epochs_replacements_come_neither_from_the_last_batches_nor_from_the_next(is_shuffled):
    """24 prompts in batches of 2, a replacement for each second one: the other visit is far away."""
    rows, distances = letters(24), []
    refill = make_refill(rows, shuffle_dataset=is_shuffled)
    sampler = RepeatSampler(rows, 1, batch_size=2, shuffle=is_shuffled, seed=3)
    for epoch in range(3):
        place_of = {rows[index]["prompt"]: place for place, index in enumerate(sampler)}
        for index in range(12):
            (drawn,) = draw(refill, 1, 12 * epoch + index)
            if epoch > 0:
                distances.append(abs(place_of[drawn] // 2 - index))
    # from the end: 11 batches away, then 9.5 and so on, down to 4; from the start the same
    assert min(distances) >= 4


def test_an_epochs_incomplete_last_batch_is_drawn_first():
    refill = make_refill(letters(5))
    assert draw(refill, 1, 0) == ["e"]
    assert draw(refill, 1, 2) == ["e"]  # the second epoch: 5 // 2 batches in each


def test_a_data_set_smaller_than_the_batch_still_gives_prompts():
    rows = letters(3)
    assert len(draw(make_refill(rows, 4), 5, 0, {question_of(row) for row in rows})) == 5


def test_the_share_of_groups_with_signal_halves_with_each_batch_by_hand():
    # 3 of 4, then 1 of 2: (3 / 2 + 1) / (4 / 2 + 2) = 0.625; two groups need 2 more, 4 * 0.625 + 0.5 - 0.97 = 2.03
    refill = make_refill(letters(9))
    assert refill.num_extra() == 0  # nothing is known yet
    refill.record(torch.tensor([True, True, True, False]))
    refill.record(torch.tensor([True, False]))
    assert refill.num_extra() == extra_groups(2, 0.625, 16) == 2


def test_the_most_extra_groups_are_a_part_of_each_processs_share_by_hand():
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


def scored_round(make_rollouts, rewards, lengths) -> Round:
    """Groups of two; the batch of the one process holds each completion's length as its token."""
    rollouts = make_rollouts(rewards, lengths, target=12, num_generations=2)
    ids = torch.tensor(lengths).unsqueeze(1)
    score = METHODS["none"]().score(rollouts, AdvantageRule())
    return Round(rollouts=rollouts, score=score, batch={"completion_ids": ids, "advantages": score.advantages})


NO_CONTROL = METHODS["none"]()


def process(index: int, num_processes: int) -> SimpleNamespace:
    """An accelerator that knows no more than its place."""
    return SimpleNamespace(process_index=index, num_processes=num_processes)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_takes_from_its_own_fresh_groups(make_rollouts, rank):
    """Two processes of two groups, and then one: the second groups are dead, and the first process's fresh one."""
    old = scored_round(make_rollouts, [1.0, -1, 1, 1] * 2, [*range(1, 9)])
    fresh = scored_round(make_rollouts, [1.0, 1, -1, 1], [10, 20, 30, 40])
    for round_ in (old, fresh):
        round_.batch = {name: values.tensor_split(2)[rank] for name, values in round_.batch.items()}
    both = old.followed_by(fresh, num_processes=2, pad_token_id=0)
    assert both.rollouts.lengths.tolist() == [1, 2, 3, 4, 10, 20, 5, 6, 7, 8, 30, 40]
    merged = both.refilled(2, NO_CONTROL, AdvantageRule(), process(rank, 2))
    assert merged.rollouts.lengths.tolist() == [1, 2, 3, 4, 5, 6, 30, 40]
    assert merged.score.shaped.tolist() == [1, -1, 1, 1, 1, -1, -1, 1]
    assert merged.has_signal.tolist() == [True, False, True, True]
    assert merged.batch["completion_ids"].flatten().tolist() == ([1, 2, 3, 4], [5, 6, 30, 40])[rank]


def test_what_cannot_be_replaced_row_by_row_is_an_error(make_rollouts):
    round_ = scored_round(make_rollouts, [1.0, -1], [1, 2])
    round_.batch["pixel_values"] = torch.zeros(1)
    with pytest.raises(ValueError, match="pixel_values"):
        round_.refilled(1, NO_CONTROL, AdvantageRule(), process(0, 1))
