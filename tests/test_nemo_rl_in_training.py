"""NeMo-RL's length rewards: its own test vectors, by hand, and what its band must never do."""

import pytest
import torch

from leash_trl.length_control.nemo_rl import NemoRL


NAN = float("nan")
BAND = {"a": 10, "b": 20, "f": 0.5}


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), equal_nan=True)


# Of NeMo-RL's tests/unit/utils/test_length_penalty.py, where lengths are those of thinking and answer together.
NEMO_RL = {
    # TestBandMultiplier and TestProfileBandGlobalDefaults
    "band": ({"profile_band": BAND}, [1] * 6, [5, 10, 15, 20, 25, 10_000], [1, 1, 0.75, 0.5, 0.5, 0.5]),
    "band, wrong": ({"profile_band": BAND}, [0, 1], [20, 20], [0, 0.5]),
    # TestGroupRelativeLengthScaling
    "min-max, two": ({"group_total_length_penalty_coeff": 0.1}, [1, 1], [10, 30], [1.05, 0.95]),
    "min-max, three": ({"group_total_length_penalty_coeff": 0.1}, [1, 1, 1], [10, 20, 30], [1.05, 1.0, 0.95]),
    "min-max, equal": ({"group_total_length_penalty_coeff": 0.1}, [1, 1], [10, 10], [1, 1]),
    "min-max, wrong": ({"group_total_length_penalty_coeff": 0.1}, [1, 0, 1], [10, 2000, 30], [1.05, 0, 0.95]),
    # TestReviewFixes
    "longest": ({"longest_total_penalty": 0.2}, [1, 1], [10, 20], [1, 0.8]),
    "as in its YAML": ({"profile_band": {"total": BAND}}, [1, 1], [15, 20], [0.75, 0.5]),
    "off": ({"profile_band": BAND, "profile_band_total": False}, [1, 1], [30, 10], [1, 1]),
}


def gate(**kwargs):
    return NemoRL(
        profile_band={"a": 20, "b": 40, "f": 0.5},
        profile_band_total=False,
        group_total_length_penalty_coeff=0.1,
        group_length_penalty_profile_gate=True,
        **{f"group_length_penalty_profile_gate_{key}": value for key, value in kwargs.items()},
    )


def test_bands_of_rows_are_checked_before_training(make_trainer, problems):
    fields = {
        "length_control": "nemo_rl",
        "lambda_lr": None,
        "target_length": None,
        "length_control_kwargs": {"profile_band_column": "profile_band"},
        "max_steps": 1,
    }
    with pytest.raises(ValueError, match="names the column 'profile_band', but the data set has"):
        make_trainer(dataset=problems, **fields)
    bands = [{"total": {"a": 4.0, "b": 8.0 if index != 3 else 4.0, "f": 0.5}} for index in range(len(problems))]
    dataset = problems.add_column("profile_band", bands)
    with pytest.raises(ValueError, match=r"row 3 of the data set, column profile_band: .* b is 4.0, but b must be ab"):
        make_trainer(dataset=dataset, **fields)
    empty = problems.add_column("profile_band", [None] * len(problems))
    with pytest.warns(UserWarning, match="profile_band_column is 'profile_band', but no row has a band"):
        make_trainer(dataset=empty, **fields)


def test_in_a_run_each_completion_is_paid_by_the_band_of_its_row(make_trainer, problems):
    bands = [{"a": 1 + index % 3, "b": 12, "f": None} for index in range(len(problems))]
    trainer = make_trainer(
        length_control="nemo_rl",
        lambda_lr=None,
        target_length=None,
        length_control_kwargs={
            "profile_band_column": "profile_band",
            "profile_band": {"a": 2, "b": 12, "f": 0.25},
        },
        dataset=problems.add_column("profile_band", bands),
        per_device_train_batch_size=16,
        max_steps=2,
    )
    seen, observe = [], trainer.length_control.observe
    trainer.length_control.observe = lambda rollouts: (seen.append(rollouts), observe(rollouts))
    trainer.train()
    for rollouts in seen:
        shaped = trainer.length_control.shape(rollouts).tolist()
        rows = rollouts.columns["profile_band"]
        assert len({row["a"] for row in rows}) > 1
        for reward, length, is_correct, row in zip(
            shaped, rollouts.lengths.tolist(), rollouts.is_correct.tolist(), rows, strict=True
        ):
            share = min(max((length - row["a"]) / (12 - row["a"]), 0), 1)
            assert reward == pytest.approx((1 - 0.75 * share) * is_correct)


SIGNS = {
    "total_bonus": 0.1,
    "longest_total_penalty": 0.1,
    "group_total_length_penalty_coeff": 0.1,
    "pass_rate_length_penalty_weight": 0.1,
    "total_zmad_penalty": 0.1,
}
