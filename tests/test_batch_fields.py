"""Trimming, picking and scattering, by hand."""

import pytest
import torch

from leash_trl import batch_fields


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Two rows: prompts of 1 and 2 tokens in 4 columns, completions of 3 and 1 tokens in 5."""
    return {
        "prompt_ids": torch.tensor([[0, 0, 0, 7], [0, 0, 8, 9]]),
        "prompt_mask": torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]]),
        "completion_ids": torch.tensor([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]),
        "old_per_token_logps": torch.tensor([[-1.0, -2.0, -3.0, 0.0, 0.0], [-4.0, 0.0, 0.0, 0.0, 0.0]]),
        "importance_sampling_ratio": torch.tensor([[0.5], [2.0]]),
        "advantages": torch.tensor([0.0, 1.0]),
        "num_items_in_batch": torch.tensor(4),
    }


def test_columns_beyond_the_widths_are_cut_off(batch):
    cut = {name: batch_fields.cut(name, values, 2, 3) for name, values in batch.items()}
    assert cut["prompt_ids"].tolist() == [[0, 7], [8, 9]]
    assert cut["prompt_mask"].tolist() == [[0, 1], [1, 1]]
    assert cut["completion_ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert cut["old_per_token_logps"].tolist() == [[-1.0, -2.0, -3.0], [-4.0, 0.0, 0.0]]
    assert cut["importance_sampling_ratio"].tolist() == [[0.5], [2.0]]
    assert cut["advantages"].tolist() == [0.0, 1.0]
    assert cut["num_items_in_batch"] == 4


def test_wider_than_the_field_is_the_field(batch):
    assert torch.equal(batch_fields.cut("prompt_ids", batch["prompt_ids"], 8, 8), batch["prompt_ids"])


def test_a_masked_completion_keeps_one_column():
    assert batch_fields.fitting_width([0, 0]) == 1
    assert batch_fields.fitting_width([0], multiple_of=8) == 8


def test_facts_of_rows(batch):
    assert batch_fields.row_facts(batch).tolist() == [[1, 3, 3, 0], [2, 1, 1, 1]]
    batch["tool_mask"] = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    assert batch_fields.row_facts(batch).tolist() == [[1, 3, 2, 0], [2, 1, 1, 1]]


def test_joining_undoes_a_split(batch):
    parts = [
        {name: values if name == "num_items_in_batch" else values[[row]] for name, values in batch.items()}
        for row in (0, 1)
    ]
    joined = batch_fields.joined(parts)
    assert joined.keys() == batch.keys()
    assert all(torch.equal(joined[name], batch[name]) for name in batch)


def test_scattered_rows_return_to_their_places():
    parts = [[2, 0], [1]]
    values = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0]])]
    assert batch_fields.scattered(values, parts, 3).tolist() == [[3.0, 4.0, 0.0], [5.0, 0.0, 0.0], [1.0, 2.0, 0.0]]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (None, False),
        ({}, False),
        ({"rope_type": "default"}, True),
        ({"rope_type": "yarn", "factor": 4.0}, True),
        ({"rope_type": "dynamic"}, False),
        ({"rope_type": "longrope"}, False),
        ({"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}, True),
        ({"full_attention": {"rope_type": "dynamic"}, "sliding_attention": {"rope_type": "default"}}, False),
    ],
)
def test_only_positions_that_are_differences_ignore_the_left_edge(parameters, expected):
    assert batch_fields.ignores_left_edge(parameters) is expected
