r"""The paper's task reward for mathematics: +1 for an equivalent answer, -1 otherwise."""

import functools
import logging
import re

from leash_trl.rewards.answer import final_answer
from leash_trl.rewards.grader_pool import GraderPool


logger = logging.getLogger(__name__)

INTEGER = re.compile(r"[+-]?\d{1,300}")  # Python refuses to read much longer ones


def _text(completion: str | list[dict[str, str]]) -> str:
    """Text of a completion in either of TRL's forms."""
    return completion if isinstance(completion, str) else "".join(m["content"] or "" for m in completion)


@functools.cache
def _pool() -> GraderPool:
    return GraderPool()


def _quick_verdict(answer: str, gold: str) -> bool | None:
    """Verdict where no algebra is needed: equal strings, or two integers; `None` elsewhere."""
    if answer == gold:
        return True
    if INTEGER.fullmatch(answer) and INTEGER.fullmatch(gold):
        return int(answer) == int(gold)
    return None


def math_reward(completions: list, solution: list[str], **kwargs: object) -> list[float | None]:
    r"""The paper's task reward: +1 where the final answer is equivalent to the solution, -1 where it is not.

    $$ r(x, y) = +1 \text{ if is\_equivalent}(y, y^*) \text{ else } -1 $$

    Source: Eq. (2) of [LEASH](https://huggingface.co/papers/2512.21540). Equivalence is math-verify's, run in worker
    processes with a hard time limit, so it cannot hang and works off the main thread.

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`):
            Completions, as text or as messages. The answer is the last `\boxed{}` after `</think>`, else the last line
            `Answer: ...`; see [`~leash_trl.rewards.answer.final_answer`].
        solution (`list[str]`):
            Gold answers, with or without dollar signs or a box.
        **kwargs:
            Other dataset columns; unused.

    Returns:
        `list[float | None]`: Rewards; `None` where the gold answer cannot be parsed, so that the sample is left out.

    Example:
        >>> math_reward(["<think>...</think>It is \\boxed{07}.", "It is 7."], solution=["7", "7"])
        [1.0, -1.0]
    """
    answers = [final_answer(_text(completion)) for completion in completions]
    golds = [_bare_gold(gold) for gold in solution]
    verdicts = [
        False if answer is None else _quick_verdict(answer, gold) for answer, gold in zip(answers, golds, strict=True)
    ]
    unsettled = [index for index, verdict in enumerate(verdicts) if verdict is None]
    slow = _pool().verdicts([(answers[index] or "", golds[index]) for index in unsettled]) if unsettled else []
    for index, verdict in zip(unsettled, slow, strict=True):
        verdicts[index] = verdict
    return [None if verdict is None else (1.0 if verdict else -1.0) for verdict in verdicts]


def _bare_gold(gold: str) -> str:
    """A gold answer without the box or the dollar signs some data sets put around it."""
    return (final_answer(gold) or gold).strip().strip("$").strip()
