"""Fresh prompts for groups without signal: which come, how many, and which groups they replace. No trainer."""

import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.targets import question_number
from leash_trl.microbatching.batch_fields import joined
from leash_trl.trainer.refill import (
    PromptStream,
    Refill,
    extra_groups,
    groups_per_process,
    local_groups,
    replacements,
    selected,
)
from leash_trl.trainer.rounds import Round


def prompts_of(rows) -> list[str]:
    return [row["prompt"] for row in rows]


def letters(count: int) -> list[dict]:
    return [{"prompt": letter} for letter in "abcdefghijklmnopqrstuvwxyz"[:count]]


def test_the_first_epoch_is_drawn_from_its_end_and_then_from_its_start_by_hand():
    """Batches ab, cd, ef, gh; two replacements each."""
    stream = PromptStream(letters(8), seed=0, is_shuffled=False, batch_size=2)
    # ab, then c to f are ahead when hg are drawn, then ef; now the batches have or had all: from the start
    drawn = ["".join(prompts_of(stream.draw(2, batch=batch))) for batch in range(4)]
    assert drawn == ["hg", "fe", "ab", "cd"]


def test_a_later_epoch_is_drawn_from_where_the_other_visit_is_farther_by_hand():
    """Batches ab, cd, ef, gh again. With ab and cd current, the end is at least as far as the start."""
    stream = PromptStream(letters(8), seed=0, is_shuffled=False, batch_size=2)
    drawn = ["".join(prompts_of(stream.draw(1, batch=4 + batch))) for batch in range(4)]
    # num_ahead, num_behind: 6, 0; 8 - 1 - 4 = 3, 2; 8 - 2 - 6 = 0, 4; and 6 - 1 = 5 behind
    assert drawn == ["h", "g", "a", "b"]


@given(
    st.integers(0, 5),
    st.integers(1, 6),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.booleans(),
)
def test_the_first_epochs_replacements_are_new_until_all_prompts_are_used(seed, batch_size, counts, is_shuffled):
    rows = letters(26)
    stream = PromptStream(rows, seed, is_shuffled, batch_size)
    order = list(RepeatSampler(rows, 1, shuffle=is_shuffled, seed=seed))
    seen: list[str] = []
    for batch, count in enumerate(counts[: 26 // batch_size]):
        current = [rows[place]["prompt"] for place in order[batch * batch_size : (batch + 1) * batch_size]]
        seen += [prompt for prompt in current if prompt not in seen]
        drawn = prompts_of(stream.draw(count, {question_number(prompt) for prompt in current}, batch))
        assert len(set(drawn)) == count
        assert not set(drawn) & set(current)
        new = [prompt for prompt in drawn if prompt not in seen]
        assert len(new) == min(count, 26 - len(seen))
        seen += new


@pytest.mark.parametrize("is_shuffled", [True, False])
def test_a_later_epochs_replacements_come_neither_from_the_last_batches_nor_from_the_next(is_shuffled):
    """24 prompts in batches of 2, a replacement for each second one: the other visit is far away."""
    rows, distances = letters(24), []
    stream = PromptStream(rows, 3, is_shuffled, batch_size=2)
    sampler = RepeatSampler(rows, 1, batch_size=2, shuffle=is_shuffled, seed=3)
    for epoch in range(3):
        place_of = {rows[index]["prompt"]: place for place, index in enumerate(sampler)}
        for index in range(12):
            (drawn,) = prompts_of(stream.draw(1, batch=12 * epoch + index))
            if epoch > 0:
                distances.append(abs(place_of[drawn] // 2 - index))
    # from the end: 11 batches away, then 9.5 and so on, down to 4; from the start the same
    assert min(distances) >= 4


def test_an_epochs_incomplete_last_batch_is_drawn_first():
    stream = PromptStream(letters(5), seed=0, is_shuffled=False, batch_size=2)
    assert prompts_of(stream.draw(1, batch=0)) == ["e"]
    assert prompts_of(stream.draw(1, batch=2)) == ["e"]  # the second epoch: 5 // 2 batches in each


def test_a_data_set_smaller_than_the_batch_still_gives_prompts():
    rows = [{"prompt": str(number)} for number in range(3)]
    assert len(PromptStream(rows, seed=0).draw(5, {question_number(row["prompt"]) for row in rows})) == 5


def settings(**changes) -> SimpleNamespace:
    known = {"generation_batch_size": 8, "num_generations": 4, "seed": 3, "shuffle_dataset": True, "world_size": 1}
    return SimpleNamespace(**{**known, "dynamic_sampling_oversample": 8.0, **changes})


def test_the_state_survives_json():
    refill, resumed = Refill(letters(9), settings()), Refill(letters(9), settings())
    for _ in range(6):
        refill.stream.draw(2, batch=refill.num_batches)
        refill.record(torch.tensor([True, False, False]))
    resumed.load_state_dict(json.loads(json.dumps(refill.state_dict())))
    assert resumed.state_dict() == refill.state_dict()
    assert resumed.num_extra() == refill.num_extra() > 0
    assert resumed.stream.draw(2, batch=resumed.num_batches) == refill.stream.draw(2, batch=6)


def test_the_share_of_groups_with_signal_halves_with_each_batch_by_hand():
    # 3 of 4, then 1 of 2: (3 / 2 + 1) / (4 / 2 + 2) = 0.625; two groups need 2 more, 4 * 0.625 + 0.5 - 0.97 = 2.03
    refill = Refill(letters(9), settings())
    assert refill.num_extra() == 0  # nothing is known yet
    refill.record(torch.tensor([True, True, True, False]))
    refill.record(torch.tensor([True, False]))
    assert refill.num_extra() == extra_groups(2, 0.625, 16) == 2


def test_the_most_extra_groups_are_a_part_of_each_processs_share_by_hand():
    # 12 groups in two processes: 0.3 * 6 = 1.8, and not half of 0.3 * 12 = 3.6
    fields = {"generation_batch_size": 48, "world_size": 2, "dynamic_sampling_oversample": 0.3}
    refill = Refill(letters(9), settings(**fields))
    refill.record(torch.tensor([False] * 12))
    assert refill.num_extra() == 2


def test_extra_groups_by_hand():
    # 4 groups and m = 1 / 2: 4.5 - 1.41 = 3.09 for E = 4, 5.5 - 1.58 = 3.92 for E = 6, 6 - 1.66 = 4.34 for E = 7
    assert extra_groups(4, 0.5, most=9) == 7
    assert extra_groups(4, 0.5, most=2) == 2
    assert extra_groups(32, 1.0, most=8) == extra_groups(32, 0.999, most=8) == 0


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_drawn_groups_suffice_in_five_of_six_batches(share):
    """Groups drawn from the very probability, 2,000 batches of 16."""
    draws = torch.rand(2000, 16 + extra_groups(16, share, most=1000), generator=torch.Generator().manual_seed(0))
    assert ((draws < share).sum(dim=1) >= 16).double().mean().item() == pytest.approx(0.84, abs=0.06)


@given(
    st.lists(st.booleans(), min_size=6, max_size=6), st.sampled_from([1, 2, 3]), st.lists(st.booleans(), min_size=6)
)
def test_every_dead_group_a_process_can_replace_is_replaced_by_its_own(alive, processes, fresh_alive):
    has_signal = torch.tensor(alive)
    share = groups_per_process(has_signal, processes)
    fresh = torch.tensor((fresh_alive * 6)[: share * processes], dtype=torch.bool)
    sources = replacements(has_signal, fresh, processes)
    per_process = 6 // processes
    for process in range(processes):
        own = range(process * per_process, (process + 1) * per_process)
        own_fresh = {6 + f for f in range(process * share, (process + 1) * share) if fresh[f]}
        used = [sources[g] for g in own if sources[g] != g]
        assert set(used) <= own_fresh
        assert len(set(used)) == len(used) == min(len(own_fresh), sum(not alive[g] for g in own))
        assert all(sources[g] == g for g in own if alive[g])
        # what a process takes from its own two batches is what `sources` says about all of them
        old_groups = [f"{g}" for g in own]
        fresh_groups = [f"{6 + f}" for f in range(process * share, (process + 1) * share)]
        groups = local_groups(sources, len(fresh), process, processes)
        assert [(old_groups + fresh_groups)[group] for group in groups] == [str(sources[g]) for g in own]


EOS, WORD = 2, 7


def test_tool_output_has_no_length_and_an_end_token_is_no_truncation():
    completions = [[WORD, WORD, WORD, EOS], [WORD, WORD]]
    plain, with_tools = Round(), Round()
    plain.generated([[1], [1]], completions, None, {EOS}, 8)
    with_tools.generated([[1], [1]], completions, [[1, 0, 0, 1], [1, 1]], {EOS}, 8)
    assert (plain.lengths, plain.is_truncated, plain.generation_limit) == ([4, 2], [False, True], 8)
    assert with_tools.lengths == [2, 2]


def scored_round(make_rollouts, rewards, lengths) -> Round:
    """Groups of two; the batch of the one process holds each completion's length as its token."""
    rollouts = make_rollouts(rewards, lengths, target=12, num_generations=2)
    ids = torch.tensor(lengths).unsqueeze(1)
    score = METHODS["none"]().score(rollouts, AdvantageRule())
    return Round(rollouts=rollouts, score=score, batch={"completion_ids": ids, "advantages": score.advantages})


def test_a_live_fresh_group_takes_the_place_of_a_dead_one_in_batch_rollouts_and_score(make_rollouts):
    """The second group is dead; the second fresh one alive."""
    old = scored_round(make_rollouts, [1.0, -1, 1, 1, -1, 1], [1, 2, 3, 4, 5, 6])
    fresh = scored_round(make_rollouts, [-1.0, -1, -1, 1], [10, 20, 30, 40])
    merged = old.refilled(fresh, METHODS["none"](), AdvantageRule(), 0, 1, pad_token_id=0)
    assert merged.rollouts.lengths.tolist() == [1, 2, 30, 40, 5, 6]
    assert merged.score.shaped.tolist() == [1, -1, -1, 1, -1, 1]
    assert merged.batch["completion_ids"].flatten().tolist() == [1, 2, 30, 40, 5, 6]
    assert merged.has_signal.tolist() == [True, True, True]


def test_extra_groups_are_split_off_each_processs_share(make_rollouts):
    """Two processes of two groups and an extra one each; this is the first."""
    both = scored_round(make_rollouts, [1.0, -1] * 6, [*range(1, 13)])
    both.batch = {name: values[:6] for name, values in both.batch.items()}
    batch, extra = both.split(1, num_processes=2)
    assert batch.rollouts.lengths.tolist() == [1, 2, 3, 4, 7, 8, 9, 10]
    assert extra.rollouts.lengths.tolist() == [5, 6, 11, 12]
    assert batch.batch["completion_ids"].flatten().tolist() == [1, 2, 3, 4]
    assert extra.batch["completion_ids"].flatten().tolist() == [5, 6]


def test_importance_ratios_keep_their_weight_when_a_longer_batch_joins():
    """TRL's VESPO multiplies the ratios of all columns, so that padding must be neutral."""
    ratios = torch.tensor([[0.9, 1.2]])
    advantages, logs, mask = torch.tensor([[1.0]]), torch.tensor([[0.1, -0.2]]), torch.tensor([[1, 1]])
    alone = GRPOTrainer.get_gamma_weights(advantages, logs, mask, ratios)
    fresh = {"importance_sampling_ratio": torch.tensor([[1.1, 0.8, 1.0, 1.3]])}
    merged = joined([{"importance_sampling_ratio": ratios}, fresh], pad_token_id=0)
    wider = [torch.nn.functional.pad(values, (0, 2)) for values in (logs, mask)]
    weight = GRPOTrainer.get_gamma_weights(advantages, *wider, merged["importance_sampling_ratio"][:1])
    torch.testing.assert_close(weight, alone)


def test_what_cannot_be_replaced_row_by_row_is_an_error():
    with pytest.raises(ValueError, match="pixel_values"):
        selected({"pixel_values": torch.zeros(1)}, torch.tensor([0]))
