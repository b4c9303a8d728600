"""ThinkPrune: what is graded is the text up to the limit, and the limit falls by stages."""

import math

from leash_trl.length_control.thinkprune import ThinkPrune


def test_limit_and_prompt_follow_the_stages():
    method = ThinkPrune(stages={"2": "2000", "0": "4000"})  # as JSON and the command line have them
    seen = []
    for _ in range(4):
        seen.append(
            (method.generation_cap(None), method.prompt_suffix(None, math.inf), method.statistics()["generation_cap"])
        )
        method.step()
    early, late = [(n, f" The output should be within {n} tokens.", float(n)) for n in (4000, 2000)]
    assert seen == [early, early, late, late]
    assert ThinkPrune(suffix="").prompt_suffix(512.0, math.inf) == ""
    assert ThinkPrune().prompt_suffix(None, 512) == " The output should be within 512 tokens."


def test_default_stages_begin_at_4000_and_fall_to_3000_after_180_steps():
    method = ThinkPrune()
    for _ in range(179):
        method.step()
    assert method.generation_cap(None) == 4000
    method.step()
    assert method.generation_cap(None) == 3000
