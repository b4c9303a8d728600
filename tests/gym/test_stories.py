"""Sums told as stories: what they ask, what their traces say, and the benchmark that they make."""

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from leash_trl.data.problems import load_problems
from leash_trl.gym.stories import PEOPLE, STORY_LEVELS, THINGS, Story, stories
from leash_trl.gym.task import SHORTCUTS, Problem, TraceStyle, sample_problem
from leash_trl.rewards import math_reward


STORIES = st.builds(
    lambda seed, level: Story(sample_problem(random.Random(seed), level)), st.integers(), st.sampled_from(STORY_LEVELS)
)
FULL = TraceStyle(brevity=0.0, recheck_brevity=0.0, recheck_weights=(0.0, 0.0, 1.0), slip_rate=0.0, closer_rate=1.0)
GAIN_WORDS = {"finds", "buys", "gets", "wins", "takes"}
LOSS_WORDS = {"loses", "sells", "gives", "breaks", "throws"}


def reader_says(question):
    """The answer of somebody who reads the story word by word."""
    start, *changes = question.split(". ")[:-1]
    total = int(re.search(r"has (\d+) ", start)[1])
    for change in changes:
        number = int(re.search(r"\d+", change)[0])
        words = set(change.split())
        assert bool(words & GAIN_WORDS) != bool(words & LOSS_WORDS)
        total += number if words & GAIN_WORDS else -number
    return total


@given(STORIES)
def test_a_story_asks_for_its_sum(story):
    assert reader_says(story.question) == story.problem.answer


@given(STORIES, st.integers(), st.sampled_from([FULL, SHORTCUTS]))
def test_a_trace_without_slips_is_right_in_all_it_says(story, seed, style):
    trace = story.trace(style, random.Random(seed))
    equations = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", trace)
    assert all(int(a) + int(sign + b) == int(total) for a, sign, b, total in equations)
    assert trace.endswith(f"The answer is \\boxed{{{story.problem.answer}}}.")
    assert "mistake" not in trace
    assert math_reward([trace], [str(story.problem.answer)]) == [1.0]


@given(STORIES, st.integers())
def test_a_full_trace_takes_every_step_in_every_pass(story, seed):
    trace = story.trace(FULL, random.Random(seed))
    assert len(re.findall("so that makes", trace)) == 3 * story.problem.level
    assert len(re.findall(f"Start with {story.problem.terms[0]}", trace)) == 2


def test_stories_differ_in_people_things_and_changes():
    questions = " ".join(story.question for story, _ in zip(stories(0, "train"), range(500), strict=False))
    assert all(word in questions for word in (*PEOPLE, *THINGS, *GAIN_WORDS, *LOSS_WORDS))


def test_one_thing_is_singular():
    start = Story(Problem((1, 5))).question.partition(".")[0]
    assert re.search(r"has 1 \w+$", start)
    assert not start.endswith("s")


def test_the_held_out_stories_are_a_benchmark():
    train, test = (load_problems(name) for name in ("gym_stories", "gym_stories_test"))
    questions = [{row[0]["content"] for row in data["prompt"]} for data in (train, test)]
    assert [len(asked) for asked in questions] == [len(train), len(test)] == [3072, 512]
    assert not questions[0] & questions[1]
    assert set(test["level"]) == set(STORY_LEVELS)
    assert [str(reader_says(row["prompt"][0]["content"])) for row in test] == test["solution"]
