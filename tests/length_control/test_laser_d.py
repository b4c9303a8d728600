"""LASER-D and LASER-DE: golden vectors, and when and from what the targets are chosen."""

from leash_trl.length_control.laser import LaserD, LaserDE


def window_batch(make_rollouts):
    """An easy prompt, a medium and a hard one, three completions each."""
    return make_rollouts(
        [1, 1, 1, 1, 1, 0, 0, 0, 0], [150, 250, 350, 240, 440, 640, 500, 700, 900], target=100.0, num_generations=3
    )


def test_targets_before_the_first_choice_are_those_of_the_batch_itself(make_rollouts):
    method = LaserD(interval=100, upper_bound=600)
    batch = window_batch(make_rollouts)
    # |C_d| = 1, 1, 2 of 3: monitored, the first is easy and half of it lies under 300 (2 of 3); the second is medium
    # and the third hard, both need every response under 600, so both fall back on the longest, 900.
    # Shaped, the second (2/3) is easy as well.
    assert method.limits(batch).tolist() == [300.0] * 6 + [900.0] * 3
    assert method.shape(batch).tolist() == [1.5, 1.5, 1.0, 1.5, 1.0, -0.5, -0.5, -0.5, -0.5]
    assert method.targets == []
    assert method.statistics() == {}


def test_window_chooses_every_refresh_steps_and_starts_anew(make_rollouts):
    method = LaserD(interval=100, upper_bound=1000, refresh_steps=2)
    for _ in range(2):
        assert method.targets == []
        method.observe(window_batch(make_rollouts))
        method.step()
    assert method.targets == [900, 700, 300]
    assert method.statistics() == {"target_hard": 900.0, "target_medium": 700.0, "target_easy": 300.0}
    assert method.state_dict()["window"] == [[], [], []]
    method.observe(make_rollouts([1, 1, 1], [10, 20, 30], target=100.0))
    method.step()
    assert method.targets == [900, 700, 300]
    method.step()
    assert method.targets == [None, None, 100]
    assert method.statistics() == {"target_easy": 100.0}


def test_window_stays_due_until_something_was_observed(make_rollouts):
    method = LaserD(interval=100, upper_bound=1000, refresh_steps=1)
    method.step()
    assert method.targets == []
    method.observe(window_batch(make_rollouts))
    method.step()
    assert method.targets == [900, 700, 300]


def test_window_pools_batches_and_takes_the_lowest_target(make_rollouts):
    method = LaserD(interval=100, upper_bound=1000, refresh_steps=1)
    method.observe(make_rollouts([1, 1, 1], [50, 350, 360], target=[300.0, 250.0, 250.0]))
    method.observe(make_rollouts([1, 1, 1], [55, 351, 361], target=400.0))
    method.step()
    # easy, |C_d| = 2: the first candidate of 250, 350, 450, ... with half of the six responses under it
    assert method.targets == [None, None, 350]


def test_fallback_is_the_longest_response_of_the_batch_at_hand(make_rollouts):
    method = LaserDE()
    method.targets = [None, 40, 40]
    batch = make_rollouts([0, 0, 0, 1, 1, 1], [90, 70, 60, 95, 30, 40], target=100.0, num_generations=3)
    assert method.limits(batch).tolist() == [95] * 3 + [40] * 3
    assert method.shape(batch).tolist() == [-0.5, -0.5, -0.5, 1.0, 1.5, 1.5]


def test_the_release_rounds_to_longer_targets(make_rollouts):
    # of K = 2, an easy prompt has two right answers rounded up and one rounded down: half or all must be under
    batch = make_rollouts([1, 1, 1, 1], [100, 200, 300, 400], target=100.0, num_generations=2)
    paper, release = (
        LaserD(rounding=rounding, interval=100, upper_bound=1000).limits(batch)[0].item()
        for rounding in ("paper", "release")
    )
    assert (paper, release) == (200, 400)


def test_its_settings_are_the_papers():
    method = LaserD()
    assert (method.refresh_steps, method.interval, method.upper_bound) == (20, 1024, 16384)
    assert (method.expected_correct, method.rounding) == (1, "paper")
