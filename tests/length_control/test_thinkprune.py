"""ThinkPrune: what is graded is the text up to the limit, and the limit falls by stages."""

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.thinkprune import ThinkPrune


def cut_and_grade(method, make_rollouts, answer_ends, lengths, correct):
    """Shaped rewards after generation stopped at the method's limit and the grader saw the text up to there."""
    cap = method.generation_cap(None)
    seen = [right and end is not None and end <= cap for end, right in zip(answer_ends, correct, strict=True)]
    batch = make_rollouts(
        [float(right) for right in seen],
        [min(length, cap) for length in lengths],
        truncated=[length > cap for length in lengths],
        limit=cap,
    )
    return method.shape(batch).tolist()


def test_right_answer_that_was_cut_earns_1_and_wrong_ones_0_at_any_length(make_rollouts):
    batch = make_rollouts(
        [1.0, -1.0, -1.0, 1.0, float("nan"), 1.0],
        [4000, 9, 4000, 50, 60, 70],
        truncated=[True, False, True, False, False, False],
        num_generations=3,
    )
    rewards = ThinkPrune().shape(batch)
    assert rewards[[0, 1, 2, 3, 5]].tolist() == [1, 0, 0, 1, 1]
    assert rewards[4].isnan()
    assert ThinkPrune().score(batch, AdvantageRule()).penalty[[0, 1, 2, 3, 5]].tolist() == [0] * 5


def test_limit_and_prompt_follow_the_stages():
    method = ThinkPrune(stages={"2": "2000", "0": "4000"})  # as JSON and the command line have them
    seen = []
    for _ in range(4):
        seen.append((method.generation_cap(None), method.prompt_suffix(None), method.statistics()["generation_cap"]))
        method.step()
    early, late = [(n, f" The output should be within {n} tokens.", float(n)) for n in (4000, 2000)]
    assert seen == [early, early, late, late]
    assert ThinkPrune(suffix="").prompt_suffix(512.0) == ""


def test_default_stages_begin_at_4000_and_fall_to_3000_after_180_steps():
    method = ThinkPrune()
    for _ in range(179):
        method.step()
    assert method.generation_cap(None) == 4000
    method.step()
    assert method.generation_cap(None) == 3000


def test_defaults_are_not_shared_between_methods():
    ThinkPrune().stages[0] = 1
    assert ThinkPrune().stages == {0: 4000, 180: 3000}
