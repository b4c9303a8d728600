"""The cosine reward: reference vectors and by hand."""

import torch

from leash_trl.length_control.cosine import Cosine


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


def test_golden_paper(golden, make_rollouts):
    vector = golden("cosine_demystify")
    params, inputs = vector["params"], vector["inputs"]
    rollouts = make_rollouts(inputs["correct"], inputs["length"], limit=params["max_len"])
    close(Cosine().shape(rollouts), vector["expected"])
    close(
        Cosine(max_length=params["max_len"]).shape(make_rollouts(inputs["correct"], inputs["length"])),
        vector["expected"],
    )


def test_golden_ms_swift_by_the_fields_that_the_docstring_names(golden, make_rollouts):
    vector = golden("cosine_ms_swift")
    method = Cosine(correct_at_zero=1, correct_at_max=0.5, wrong_at_zero=-0.5, wrong_at_max=0, exceeded=None)
    inputs = vector["inputs"]
    rollouts = make_rollouts(inputs["correct"], inputs["length"], limit=vector["params"]["max_len"])
    close(method.shape(rollouts), vector["expected"])


def test_golden_open_r1_up_to_the_greatest_length_where_its_wave_comes_back_up(golden, make_rollouts):
    vector = golden("cosine_open_r1_function_defaults")
    params, inputs = vector["params"], vector["inputs"]
    method = Cosine(
        correct_at_zero=params["max_value_correct"],
        correct_at_max=params["min_value_correct"],
        wrong_at_zero=params["min_value_wrong"],
        wrong_at_max=params["max_value_wrong"],
        exceeded=None,
    )
    shaped = method.shape(make_rollouts(inputs["correct"], inputs["length"], limit=params["max_len"]))
    is_within = torch.tensor(inputs["length"]) <= params["max_len"]
    close(shaped[is_within], torch.tensor(vector["expected"])[is_within].tolist())
    assert shaped[~is_within].tolist() == [params["min_value_correct"]]  # open-r1 has 1.0


def test_golden_open_r1_script_defaults_where_short_wrong_answers_are_best(golden, make_rollouts):
    vector = golden("cosine_open_r1_script_defaults")
    params, inputs = vector["params"], vector["inputs"]
    method = Cosine(
        wrong_at_zero=params["min_value_wrong"], wrong_at_max=params["max_value_wrong"], exceeded=None, max_length=1000
    )
    assert params["max_len"] == 1000
    close(method.shape(make_rollouts(inputs["correct"], inputs["length"])), vector["expected"])


def test_by_hand_two_groups(make_rollouts):
    # halfway: cos(pi / 2) = 0, the mean of both ends; 84 + 16 reaches 100
    rollouts = make_rollouts([1, -1, 1, 0], [50, 50, 0, 84], num_generations=2, limit=100)
    close(Cosine().shape(rollouts), [1.5, -5.0, 2.0, -10.0])
    close(Cosine().base_rewards(rollouts), [2.0, -10.0, 2.0, -10.0])


def test_the_limit_costs_right_answers_as_much(make_rollouts):
    rollouts = make_rollouts([1, 1], [83, 84], limit=100)
    below, at = Cosine().shape(rollouts).tolist()
    assert below > 1
    assert at == -10


def test_unscorable_stays_so_beyond_the_limit(make_rollouts):
    assert Cosine().shape(make_rollouts([float("nan")], [100], limit=100)).isnan().all()
