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

from leash_trl.gym.task import Problem, TraceStyle, Wording, solution_trace


STORY_LEVELS = (1, 2, 3)
PRONOUN_BY_PERSON = {
    "Nora": "she",
    "Sam": "he",
    "Lily": "she",
    "Ben": "he",
    "Maria": "she",
    "Omar": "he",
    "Emma": "she",
    "David": "he",
    "Anna": "she",
    "Tom": "he",
    "Sara": "she",
    "Leo": "he",
    "Alice": "she",
    "Jack": "he",
    "Mia": "she",
    "Paul": "he",
}
THINGS = (
    "shells",
    "coins",
    "books",
    "apples",
    "cards",
    "stamps",
    "pens",
    "balls",
    "stones",
    "eggs",
    "buttons",
    "stickers",
    "tickets",
    "flowers",
    "keys",
    "candles",
)
# Events that change the number of things. The first field is the amount, the second one, if any, the name of a friend.
GAINS = ("finds {} more", "buys {} more", "gets {} from {}", "wins {} more", "takes {} from {}")
LOSSES = ("loses {}", "sells {}", "gives {} to {}", "breaks {}", "throws {} away")
OPENINGS = ("", "Let me think step by step.", "Let me work this out step by step.")
RECHECKS = (" Wait, let me check that. Start with {}.", " Let me check it once more. Start with {}.")


class Story:
    """A sum as a story. A hash of the sum selects people, things and events, so that a sum always has the same
    story."""

    def __init__(self, problem: Problem) -> None:
        # Unlike Python's hash of text, this one is the same in every process.
        rng = random.Random(zlib.crc32(problem.question.encode()))
        self.problem = problem
        self._person, friend = rng.sample(sorted(PRONOUN_BY_PERSON), 2)
        self._things = rng.choice(THINGS)
        # The first term is the number of things at the start; every other term becomes a change, "gives 3 to Sam".
        self._changes = []
        for term in problem.terms[1:]:
            change = rng.choice(GAINS if term > 0 else LOSSES)
            # Changes without a field for the friend ignore the second argument.
            self._changes.append(change.format(abs(term), friend))

    @property
    def question(self) -> str:
        """Returns the story and its question."""
        number = self.problem.terms[0]
        things = self._things.removesuffix("s") if number == 1 else self._things
        # Each sentence begins with a space and has no period, such as " She finds 5 more".
        changes = "".join(f"{sentence}." for sentence in self._sentences)
        return f"{self._person} has {number} {things}.{changes} How many {self._things} does {self._person} have now?"

    @property
    def _sentences(self) -> list[str]:
        """Returns one sentence for each change, without its period."""
        pronoun = PRONOUN_BY_PERSON[self._person]
        first, *others = self._changes
        sentences = [f" {pronoun.capitalize()} {first}"]
        for change in others:
            sentences.append(f" Then {pronoun} {change}")
        return sentences

    def _step_texts(self, sentence: str, term: int) -> tuple[str, ...]:
        """Returns the texts of one step in the four styles, with the format fields `before` and `total`."""
        # Such as "{before} - 3 = {total}": the totals stay fields, since they depend on the errors of the trace.
        sign = "+" if term > 0 else "-"
        equation = f"{{before}} {sign} {abs(term)} = {{total}}"
        full = f"{sentence}, so that makes {equation}."
        short = f" {equation}."
        terse = " Now {total}."
        return full, short, terse, ""

    def trace(self, style: TraceStyle, rng: random.Random) -> str:
        """Returns a worked solution, as in [`~leash_trl.gym.task.solution_trace`], with the answer in a sentence."""
        # Such as 14 things at the start, and the changes 5 and -3.
        start, *changes = self.problem.terms
        steps = []
        for sentence, term in zip(self._sentences, changes, strict=True):
            steps.append(self._step_texts(sentence, term))
        wording = Wording(
            steps=tuple(steps),
            rechecks=tuple(recheck.format(start) for recheck in RECHECKS),
            confirmation=" Yes, that makes {}.",
            repair=" No, I made a mistake before. That makes {}.",
            # Like the other texts, both have a field for the total: " So Nora has {} shells now." is the closer, and
            # "\\boxed{{{}}}" becomes "\\boxed{16}", because double braces stand for braces.
            closer=f" So {self._person} has {{}} {self._things} now.",
            ending=" The answer is \\boxed{{{}}}.",
            opening=rng.choice(OPENINGS),
        )
        # Every step begins with a space, and so does a trace without an opening.
        return solution_trace(self.problem, style, rng, wording).strip()
