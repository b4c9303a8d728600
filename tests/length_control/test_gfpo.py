"""GFPO: golden vectors, who is kept and what quartiles do to it."""

import pytest

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.gfpo import GFPO, MAX_GROUPS, WARMUP_GROUPS


NAN = float("nan")


def run(method, batch, scale="group", epsilon=0.0):
    return method.score(batch, AdvantageRule(scale, epsilon)).advantages


def two_groups(make_rollouts):
    return make_rollouts([1, 0.5, -1, 0, 1, NAN, -1, 1], [40, 10, 20, 30, 25, 1, 50, 100], num_generations=4)


def test_each_group_keeps_its_own_and_never_an_unscorable_completion(make_rollouts):
    batch = two_groups(make_rollouts)
    assert GFPO(num_kept=2).kept(batch).tolist() == [False, True, True, False, True, False, True, False]
    # rewards per token 0.025, 0.05, -0.05, 0; 0.04, none, -0.02, 0.01
    by_efficiency = GFPO(num_kept=2, metric="token_efficiency").kept(batch).tolist()
    assert by_efficiency == [True, True, False, False, True, False, False, True]
    assert GFPO(num_kept=4).kept(batch).tolist() == [True] * 5 + [False] + [True] * 2


def test_advantages_on_every_scale_by_hand(make_rollouts):
    batch, method = two_groups(make_rollouts), GFPO(num_kept=2)
    # kept rewards 0.5, -1 (mean -0.25) and 1, -1 (mean 0)
    centred = [0, 0.75, -0.75, 0, 1, 0, -1, 0]
    assert run(method, batch, "none").tolist() == centred
    assert run(method, batch, "group").tolist() == [0, 1, -1, 0, 1, 0, -1, 0]
    # all four: mean -0.125, variance (0.390625 + 0.765625 + 1.265625 + 0.765625) / 4 = 0.796875
    assert run(method, batch, "batch").tolist() == pytest.approx([value / 0.796875**0.5 for value in centred])
    assert run(method, batch, "group", epsilon=0.25).tolist() == [0, 0.75, -0.75, 0, 0.8, 0, -0.8, 0]


@pytest.mark.parametrize(("size", "kept"), [(2, 2), (3, 2), (8, 4), (16, 8), (24, 8)])
def test_half_of_a_group_is_kept_by_default_from_2_to_8(make_rollouts, size, kept):
    assert GFPO().kept(make_rollouts([1.0] * size, list(range(1, size + 1)))).tolist() == [True] * kept + [False] * (
        size - kept
    )


def seen(make_rollouts, groups, **kwargs):
    """A method that has seen groups of four with mean rewards 0, 0.25, 0.5, 0.75, 0, ..."""
    method = GFPO(adaptive=True, **kwargs)
    rewards = [float(i < g % 4) for g in range(groups) for i in range(4)]
    method.observe(make_rollouts(rewards, [1] * len(rewards), num_generations=4))
    return method


def test_easy_prompts_keep_fewer_once_the_warm_up_is_over(make_rollouts):
    rewards = [0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1]
    batch = make_rollouts(rewards, list(range(1, 13)), num_generations=4)
    early, late = (seen(make_rollouts, groups, num_kept=4) for groups in (WARMUP_GROUPS - 1, WARMUP_GROUPS))
    assert early.kept(batch).sum() == 12
    assert early.statistics() == {}
    # sixteen each of four means: the quartiles by linear interpolation
    assert late.statistics() == pytest.approx({"reward_q25": 0.1875, "reward_q50": 0.375, "reward_q75": 0.5625})
    assert late.kept(batch).view(3, 4).sum(dim=1).tolist() == [4, 3, 2]
    assert seen(make_rollouts, WARMUP_GROUPS, num_kept=2).kept(batch).sum() == 6


def test_unscorable_groups_and_plain_gfpo_leave_no_trace(make_rollouts):
    method, plain = GFPO(adaptive=True), GFPO()
    batch = make_rollouts([NAN, NAN, NAN, 0.5], [1] * 4, num_generations=2)
    method.observe(batch)
    plain.observe(batch)
    assert method.state_dict() == {"group_means": [0.5]}
    assert plain.state_dict() == {"group_means": []}


def test_memory_is_bounded(make_rollouts):
    method = GFPO(adaptive=True)
    for start in (0, MAX_GROUPS):
        method.observe(
            make_rollouts([float(start + i) for i in range(MAX_GROUPS)], [1] * MAX_GROUPS, num_generations=1)
        )
    assert method.state_dict()["group_means"][0] == MAX_GROUPS
    assert len(method.state_dict()["group_means"]) == MAX_GROUPS


def test_the_advantage_is_where_a_wrong_answer_feels_its_length(make_rollouts):
    score = GFPO().score(make_rollouts([1, -1, -1, 1], [40, 20, 190, 60]), AdvantageRule())
    assert (score.advantages != 0).tolist() == [True, True, False, False]
