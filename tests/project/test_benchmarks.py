"""Speed of grading, as ratios in one run; `make bench`. Not part of the default suite."""

import itertools
import json
import random
import time

import pytest
from math_verify import parse, verify

from leash_trl.rewards import grading


@pytest.mark.benchmark
@pytest.mark.parametrize("num_generations", [8, 1])
def test_grading_against_direct_calls_of_math_verify(shared_data, num_generations):
    """512 completions of 30,000 characters, half right and half with another's answer; same verdicts."""
    rng = random.Random(num_generations)
    texts, *sources = (
        [json.loads(line) for line in (shared_data / f"{name}.jsonl").open(encoding="utf-8")]
        for name in ("traces", "aime24", "math500")
    )
    rows = [*itertools.chain(*sources)]
    text = "".join(row["completion"].replace("\\boxed", "").replace("think>", "") for row in texts)
    golds = [str(row["answer"]) for row in rng.sample(rows, 512 // num_generations) for _ in range(num_generations)]
    starts = [rng.randrange(len(text) - 30_000) for _ in golds]
    answers = [gold if rng.random() < 0.5 else rng.choice(golds) for gold in golds]
    completions = [
        f"{text[start : start + 30_000]}</think>\n\\boxed{{{answer}}}"
        for start, answer in zip(starts, answers, strict=True)
    ]
    grading.grade(completions[:1], golds[:1])  # starts the worker processes
    times = [time.perf_counter()]
    ours = [bool(one.is_correct) for one in grading.grade(completions, golds)]
    times.append(time.perf_counter())
    direct = [verify(parse(f"${gold}$"), parse(text)) for gold, text in zip(golds, completions, strict=True)]
    times.append(time.perf_counter())
    ours_s, direct_s = (end - start for start, end in itertools.pairwise(times))
    print(f"\n512 completions, groups of {num_generations}: direct {direct_s:.2f} s, ours {ours_s:.2f} s")
    assert ours == direct
    assert 0.4 < sum(direct) / len(direct) < 0.65
    assert ours_s < direct_s
