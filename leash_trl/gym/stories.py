"""Rewrites the gym's sums as short stories in plain English, for pretrained language models.

    Nora has 14 shells. She finds 5 more. Then she gives 3 to Sam. How many shells does Nora have now?

Each step of a solution is written in one of the gym's four styles:

    full:  " Then she gives 3 to Sam, so that makes 19 - 3 = 16."
    short: " 19 - 3 = 16."
    terse: " Now 16."
    skip:  no text, so the next total includes two changes
"""

import random
import zlib
from collections.abc import Iterator

from leash_trl.gym.task import Problem, Split, TraceStyle, Wording, problems, solution_trace


STORY_LEVELS = (1, 2, 3)
PEOPLE = {
    "Nora": "she", "Sam": "he", "Lily": "she", "Ben": "he", "Maria": "she", "Omar": "he", "Emma": "she", "David": "he",
    "Anna": "she", "Tom": "he", "Sara": "she", "Leo": "he", "Alice": "she", "Jack": "he", "Mia": "she", "Paul": "he",
}  # fmt: skip
THINGS = (
    "shells", "coins", "books", "apples", "cards", "stamps", "pens", "balls", "stones", "eggs", "buttons", "stickers",
    "tickets", "flowers", "keys", "candles",
)  # fmt: skip
GAINS = ("finds {} more", "buys {} more", "gets {} from {}", "wins {} more", "takes {} from {}")
LOSSES = ("loses {}", "sells {}", "gives {} to {}", "breaks {}", "throws {} away")
OPENINGS = ("", "Let me think step by step.", "Let me work this out step by step.")
RECHECKS = (" Wait, let me check that. Start with {}.", " Let me check it once more. Start with {}.")


class Story:
    """A sum as a story. A hash of the sum selects people, things and events, so the same sum gives the same story."""

    def __init__(self, problem: Problem) -> None:
        rng = random.Random(zlib.crc32(problem.question.encode()))
        self.problem = problem
        self._person, friend = rng.sample(sorted(PEOPLE), 2)
        self._things = rng.choice(THINGS)
        self._changes = [
            rng.choice(GAINS if term > 0 else LOSSES).format(abs(term), friend) for term in problem.terms[1:]
        ]

    @property
    def question(self) -> str:
        """Returns the story and its question."""
        changes = "".join(f"{sentence}." for sentence in self._sentences)
        number = self.problem.terms[0]
        start = f"{self._person} has {number} {self._things[:-1] if number == 1 else self._things}."
        return f"{start}{changes} How many {self._things} does {self._person} have now?"

    @property
    def _sentences(self) -> list[str]:
        """Returns one sentence for each change, without its period."""
        pronoun = PEOPLE[self._person]
        first, *others = self._changes
        return [f" {pronoun.capitalize()} {first}", *(f" Then {pronoun} {change}" for change in others)]

    def _wordings(self, sentence: str, term: int) -> tuple[str, ...]:
        equation = f"{{before}} {'+' if term > 0 else '-'} {abs(term)} = {{total}}"
        return f"{sentence}, so that makes {equation}.", f" {equation}.", " Now {total}.", ""

    def trace(self, style: TraceStyle, rng: random.Random) -> str:
        """Returns a worked solution, as in [`~leash_trl.gym.task.solution_trace`], with the answer in a sentence."""
        start = self.problem.terms[0]
        wording = Wording(
            steps=tuple(map(self._wordings, self._sentences, self.problem.terms[1:])),
            rechecks=tuple(opener.format(start) for opener in RECHECKS),
            confirmation=" Yes, that makes {}.",
            repair=" No, I made a mistake before. That makes {}.",
            closer=f" So {self._person} has {{}} {self._things} now.",
            ending=" The answer is \\boxed{{{}}}.",
            opening=rng.choice(OPENINGS),
        )
        return solution_trace(self.problem, style, rng, wording).strip()


def stories(seed: int, split: Split) -> Iterator[Story]:
    """Yields an endless stream of stories of one split, with levels drawn uniformly from 1 to 3."""
    return map(Story, problems(seed, STORY_LEVELS, split))
