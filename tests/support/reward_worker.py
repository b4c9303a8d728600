"""The side of asynchronous GRPO that scores: a process of its own, which gets copies of the reward functions once."""

import contextlib
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection


def serve(connection: Connection, rewards: Sequence[Callable[..., list[float]]]) -> None:
    """Scores what comes with the function of that number, until the other end is closed."""
    with contextlib.suppress(EOFError):
        while True:
            number, columns = connection.recv()
            connection.send(rewards[number](**columns))
