"""Writes prompts of reasoning-gym's chain_sum with completions that over-think, for `trl sft`.

    python recipes/reasoning_gym/traces.py runs/chain_sum/traces.jsonl

A completion adds one term at a time, checks its result up to twice, and makes slips, which some checks find.
The problems have another seed than those of training and evaluation, but short sums repeat: 33 of the 582 problems of
the evaluation are among them.
"""

import json
import random
import re
import sys
from pathlib import Path

from reasoning_gym.factory import create_dataset

from leash_trl.data import BOXED_SUFFIX, as_conversation


NUM_TRACES = 960
SEED = 10**6  # of the first problem; those of training begin at 0, those of evaluation at 2**31
SLIP_RATE = 0.04  # per sum
NUM_CHECKS = (0, 1, 2)
CHECK_WEIGHTS = (0.2, 0.4, 0.4)
OPENINGS = ("Let me work this out step by step.", "Let me add one number at a time.", "I go from left to right.")
CHECKS = ("Wait, let me check that.", "Let me check it once more.", "To be sure, I add it all again.")


def pass_over(terms: list[int], rng: random.Random) -> tuple[str, int]:
    """Returns the text of one pass over the terms, and its result, which a slip may have changed."""
    total = terms[0]
    sentences = [f"Start with {total}."]
    for term in terms[1:]:
        slip = rng.choice((-10, -1, 1, 10)) if rng.random() < SLIP_RATE else 0
        result = total + term + slip
        sign = "+" if term >= 0 else "-"
        sentences.append(f"{total} {sign} {abs(term)} = {result}.")
        total = result
    return " ".join(sentences), total


def trace(expression: str, rng: random.Random) -> str:
    """Returns a completion for an expression such as `55 + 98 - 93`."""
    terms = [int(term.replace(" ", "")) for term in re.findall(r"[+-]? ?\d+", expression)]
    text, result = pass_over(terms, rng)
    parts = [rng.choice(OPENINGS), text]
    (num_checks,) = rng.choices(NUM_CHECKS, CHECK_WEIGHTS)
    for _ in range(num_checks):
        text, checked = pass_over(terms, rng)
        parts += [rng.choice(CHECKS), text]
        parts.append(f"Yes, that makes {checked}." if checked == result else f"No, it is {checked}.")
        result = checked
    parts.append(rf"The answer is \boxed{{{result}}}.")
    return " ".join(parts)


def main(path: Path) -> None:
    """Writes one JSON object a line, in TRL's conversational prompt-completion type."""
    rng = random.Random(SEED)
    entries = create_dataset(
        "chain_sum", min_terms=2, max_terms=4, min_digits=1, max_digits=2, size=NUM_TRACES, seed=SEED
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for entry in entries:
            prompt = as_conversation({"prompt": entry["question"]}, suffix=BOXED_SUFFIX)["prompt"]
            completion = [{"role": "assistant", "content": trace(entry["metadata"]["expression"], rng)}]
            file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
