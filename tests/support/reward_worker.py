"""The side of asynchronous GRPO that scores: a process of its own, which gets copies of the reward functions once."""

copies = []


def keep(reward_funcs):
    copies.extend(reward_funcs)


def score(number, columns):
    """The rewards of the function of that number."""
    return copies[number](**columns)
