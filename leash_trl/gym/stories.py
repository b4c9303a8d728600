"""Rewrites the gym's sums as short stories in plain English, for pretrained language models: "Nora has 14 shells. She
finds 5 more. Then she gives 3 to Sam. How many shells does Nora have now?"
"""

import random
import zlib

from leash_trl.gym.task import Problem


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


class Story:
    """A sum as a story. A hash of the sum selects people, things and events, so that a sum always has the same
    story: a `person` has `things`."""

    def __init__(self, problem: Problem) -> None:
        # Unlike Python's hash of text, this one is the same in every process.
        rng = random.Random(zlib.crc32(problem.question.encode()))
        self.problem = problem
        self.person, friend = rng.sample(sorted(PRONOUN_BY_PERSON), 2)
        self.things = rng.choice(THINGS)
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
        things = self.things.removesuffix("s") if number == 1 else self.things
        # Each sentence begins with a space and has no period, such as " She finds 5 more".
        changes = "".join(f"{sentence}." for sentence in self.sentences)
        return f"{self.person} has {number} {things}.{changes} How many {self.things} does {self.person} have now?"

    @property
    def sentences(self) -> list[str]:
        """Returns one sentence for each change, without its period."""
        pronoun = PRONOUN_BY_PERSON[self.person]
        first, *others = self._changes
        sentences = [f" {pronoun.capitalize()} {first}"]
        for change in others:
            sentences.append(f" Then {pronoun} {change}")
        return sentences
