"""Every reference vector of a training-time method is used by a test, or left out for a reason."""

from pathlib import Path

import pytest
from conftest import ROOT

from leash_trl.length_control.dual import projected_ascent, violation


LEFT_OUT = {
    "leash_dual_max_mode": "an option of the release's code alone (leash_type=max), in no script and not in the paper",
    "open_r1_len_reward_chars": "open-r1 measures characters, and its range runs over prompts",
    "dapo_skyrl_variant": "SkyRL's rule makes an overlong wrong answer better than a short wrong one",
    "arora_laser_port_single": "a quirk of LASER's port for single right answers, against the paper's formula",
}
# Offline methods (DAST, O1-Pruner) and decoding strategies (s1, short-m@k, DEER) are not in the file.


def test_every_vector_is_tested_or_left_out_for_a_reason(golden_ids):
    tests = "".join(
        path.read_text() for path in Path(ROOT, "tests").glob("test_*.py") if path.name != "test_golden.py"
    )
    untested = {name for name in golden_ids if f'"{name}"' not in tests and f"golden {name}" not in tests}
    assert untested - {"leash_real_lambda_trajectory"} == LEFT_OUT.keys()


def test_golden_authors_lambda_trajectory(golden):
    vector = golden("leash_real_lambda_trajectory")
    params = vector["params"]
    lam = params["lambda_init"]
    for mean_length, expected in zip(vector["inputs"]["batch_mean_length"], vector["expected"], strict=True):
        overshoot = violation([mean_length], [params["target_length"]])
        lam = projected_ascent(lam, overshoot, params["lambda_lr"], params["lambda_min"], params["lambda_max"])
        assert lam == pytest.approx(expected, abs=1e-8)
