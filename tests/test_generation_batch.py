"""`GenerationBatch`: what each step of the trainer adds, by hand."""

import torch
from accelerate import Accelerator

from leash_trl.length_control.rollouts import ScoredRollouts
from leash_trl.trainer import dynamic_sampling
from leash_trl.trainer.generation_batch import GenerationBatch


EOS, WORD = 2, 7


def test_tool_output_has_no_length_and_an_end_token_is_no_truncation():
    batch = GenerationBatch([5, 6], [12.0, 12.0])
    completions = [[WORD, WORD, WORD, EOS], [WORD, WORD]]
    plain = batch.generated(completions, None, {EOS}, 8)
    assert (plain.lengths, plain.is_truncated, plain.generation_limit) == ([4, 2], [False, True], 8)
    assert batch.generated(completions, [[1, 0, 0, 1], [1, 1]], {EOS}, 8).lengths == [2, 2]
    assert batch.lengths == ()


def test_rollouts_keep_the_order_of_the_completions():
    batch = GenerationBatch([5, 6], [12.0, 13.0], [4, 2], [False, True], 8)
    rollouts = batch.rollouts(Accelerator(cpu=True), torch.tensor([1.0, -1.0]), None, 1)
    assert rollouts.lengths.tolist() == [4, 2]
    assert rollouts.is_truncated.tolist() == [False, True]
    assert rollouts.questions.tolist() == [5, 6]
    assert rollouts.target_lengths.tolist() == [12.0, 13.0]
    assert (rollouts.num_generations, rollouts.max_completion_length) == (1, 8)


def test_a_replaced_group_brings_its_own_rewards_in_the_place_of_the_dead_one(make_rollouts):
    """The rewards must end in the rows of the completions that earned them, as the batch itself is merged."""

    def batch(lengths):
        rollouts = make_rollouts([1.0] * len(lengths), lengths, target=12, num_generations=2)
        values = rollouts.lengths.double()
        return GenerationBatch((), (), generation_limit=8, scored=ScoredRollouts(rollouts, values, values, values))

    old, fresh = batch([1, 2, 3, 4, 5, 6]), batch([10, 20, 30, 40])
    sources = [0, 4, 2]  # P is 3: the second group is the second fresh one
    merged = old.with_replaced(fresh, sources)
    assert merged.scored.shaped_rewards.tolist() == [1, 2, 30, 40, 5, 6]
    assert merged.scored.rollouts.lengths.tolist() == [1, 2, 30, 40, 5, 6]
    ids = {"completion_ids": torch.tensor([[1], [2], [3], [4], [5], [6]])}
    fresh_ids = {"completion_ids": torch.tensor([[10], [20], [30], [40]])}
    rows = dynamic_sampling.local_rows(sources, 3, 2, process=0, num_processes=1, num_generations=2)
    assert dynamic_sampling.merged_batch(ids, fresh_ids, rows, 0)["completion_ids"].flatten().tolist() == [
        *(1, 2, 30, 40, 5, 6)
    ]
    assert merged.advantages.numel() == 0  # those of the old batch would be another's
