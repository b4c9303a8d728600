"""Sums told as stories: what they ask, what their traces say, and the benchmark that they make."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.data.problems import load_problems
from leash_trl.gym.stories import PEOPLE, STORY_LEVELS, THINGS, Story
from leash_trl.gym.task import SHORTCUTS, TraceStyle, sample_problem
from leash_trl.rewards import math_reward


STORIES = st.builds(
    lambda seed, level: Story(sample_problem(random.Random(seed), level)), st.integers(), st.sampled_from(STORY_LEVELS)
)
FULL = TraceStyle(brevity=0.0, recheck_brevity=0.0, recheck_weights=(0.0, 0.0, 1.0), slip_rate=0.0, closer_rate=1.0)
GAINS = {"finds", "buys", "gets", "wins", "takes"}
LOSSES = {"loses", "sells", "gives", "breaks", "throws"}


def reader_says(question):
    """The answer of somebody who reads the story word by word."""
    start, *changes = question.split(". ")[:-1]
    total = int(re.search(r"has (\d+) ", start)[1])
    for change in changes:
        is_gain = bool(GAINS & {*change.split()})
        assert is_gain != bool(LOSSES & {*change.split()})
        total += int(re.search(r"\d+", change)[0]) * (1 if is_gain else -1)
    return total


@given(STORIES, st.integers(), st.sampled_from([FULL, SHORTCUTS]))
def test_a_trace_without_slips_is_right_in_all_it_says(story, seed, style):
    trace = story.trace(style, random.Random(seed))
    equations = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", trace)
    assert all(int(a) + int(sign + b) == int(total) for a, sign, b, total in equations)
    assert trace.endswith(f"The answer is \\boxed{{{story.problem.answer}}}.")
    assert "mistake" not in trace
    if style is FULL:  # every step in every pass
        assert trace.count("so that makes") == 3 * story.problem.level
        assert trace.count(f"Start with {story.problem.terms[0]}") == 2
    assert math_reward([trace], [str(story.problem.answer)]) == [1.0]


@pytest.mark.parametrize("name", ["gym", "gym_stories"])
def test_the_held_out_problems_are_a_benchmark(name):
    questions = [[row[0]["content"] for row in load_problems(part)["prompt"]] for part in (name, f"{name}_test")]
    assert [*map(len, questions)] == [len({*asked}) for asked in questions] == [3072, 512]
    assert not {*questions[0]} & {*questions[1]}


def test_stories_ask_for_their_sum_and_tell_it_in_every_word():
    rows = load_problems("gym_stories")
    questions = [row[0]["content"] for row in rows["prompt"]]
    assert [str(reader_says(question)) for question in questions] == rows["solution"][:]
    text = " ".join(questions)
    assert all(word in text for word in (*PEOPLE, *THINGS, *GAINS, *LOSSES))
    assert not re.search(r"has 1 \w+s\b", text)  # one thing is singular
    assert {*rows["level"]} == {*STORY_LEVELS}
