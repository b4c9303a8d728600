"""Sums told as stories: what they ask, what their traces say, and the benchmark that they make."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import SHORTCUTS, TraceStyle, story_trace

from leash_trl.data.problems import load_problems
from leash_trl.gym.stories import PRONOUN_BY_PERSON, STORY_LEVELS, THINGS, Story
from leash_trl.gym.task import sample_problem
from leash_trl.rewards import math_reward


STORIES = st.builds(
    lambda seed, level: Story(sample_problem(random.Random(seed), level)), st.integers(), st.sampled_from(STORY_LEVELS)
)
FULL = TraceStyle(brevity=0.0, recheck_brevity=0.0, recheck_weights=(0.0, 0.0, 1.0), slip_rate=0.0, closer_rate=1.0)
GAINS = {"finds", "buys", "gets", "wins", "takes"}
LOSSES = {"loses", "sells", "gives", "breaks", "throws"}


def answer_of_a_reader(question):
    """The answer of somebody who reads the story word by word."""
    start, *changes, _ = question.split(". ")  # the last sentence is the question
    total = int(re.search(r"has (\d+) ", start)[1])
    for change in changes:
        words = set(change.split())
        amount = int(re.search(r"\d+", change)[0])
        if GAINS & words:
            assert not LOSSES & words
            total += amount
        else:
            assert LOSSES & words
            total -= amount
    return total


def questions_of(name):
    return [messages[0]["content"] for messages in load_problems(name)["prompt"]]


@given(STORIES, st.integers(), st.sampled_from([FULL, SHORTCUTS]))
def test_a_trace_without_slips_is_right_in_all_it_says(story, seed, style):
    trace = story_trace(story, style, random.Random(seed))
    for before, sign, amount, total in re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", trace):
        assert int(before) + int(sign + amount) == int(total)
    assert trace.endswith(f"The answer is \\boxed{{{story.problem.answer}}}.")
    assert "mistake" not in trace
    if style is FULL:  # every step in every pass
        assert trace.count("so that makes") == 3 * story.problem.level
        assert trace.count(f"Start with {story.problem.terms[0]}") == 2
    assert math_reward([trace], [str(story.problem.answer)]) == [1.0]


@pytest.mark.parametrize("name", ["gym", "gym_stories"])
def test_the_held_out_problems_are_a_benchmark(name):
    questions = questions_of(name)
    held_out = questions_of(f"{name}_test")
    assert len(questions) == len(set(questions)) == 3072
    assert len(held_out) == len(set(held_out)) == 512
    assert not set(questions) & set(held_out)


def test_stories_ask_for_their_sum():
    answers = [str(answer_of_a_reader(question)) for question in questions_of("gym_stories")]
    assert answers == load_problems("gym_stories")["solution"][:]


def test_stories_have_all_words_and_levels():
    text = " ".join(questions_of("gym_stories"))
    for word in (*PRONOUN_BY_PERSON, *THINGS, *GAINS, *LOSSES):
        assert word in text
    assert set(load_problems("gym_stories")["level"]) == set(STORY_LEVELS)


def test_one_thing_is_singular():
    text = " ".join(questions_of("gym_stories"))
    assert re.search(r"has 1 \w+", text)
    assert not re.search(r"has 1 \w+s\b", text)
