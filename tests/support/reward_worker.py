"""The side of asynchronous GRPO that scores: a process of its own, which gets copies of the reward functions once."""

import contextlib


def serve(connection, rewards):
    """Scores what comes with the function of that number, until the other end is closed."""
    with contextlib.suppress(EOFError):
        while True:
            number, columns = connection.recv()
            connection.send(rewards[number](**columns))
