r"""The paper's task reward for mathematics: +1 for an equivalent answer, -1 otherwise."""

import functools
import os
import re

from leash_trl.rewards.answer import final_answer
from leash_trl.rewards.grader_pool import GraderPool


INTEGER = re.compile(r"[+-]?\d{1,300}")  # Python refuses to read much longer ones


def _text(completion: str | list[dict]) -> str:
    """What the model said, in either of TRL's forms; a tool's output is not the model's answer."""
    if isinstance(completion, str):
        return completion
    return "\n".join(_message_text(message) for message in completion if message["role"] == "assistant")


def _message_text(message: dict) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(block.get("text") or "" for block in content)


@functools.cache
def _pool() -> GraderPool:
    return GraderPool()


if hasattr(os, "register_at_fork"):
    # the threads of a pool do not live on in a forked process, as `Dataset.map(num_proc=...)` makes
    os.register_at_fork(after_in_child=_pool.cache_clear)


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
        `list[float | None]`: Rewards; `None` where an answer meets a gold that cannot be parsed, so that the sample is
        left out.

    Raises:
        `RuntimeError`: If the grader's worker processes cannot start.

    Example:
        >>> math_reward(["<think>...</think>It is \\boxed{07}.", "It is 7."], solution=["7", "7"])
        [1.0, -1.0]
    """
    answers = [final_answer(_text(completion)) for completion in completions]
    cases = [
        None if answer is None else (_without_dollars(answer), _without_dollars(final_answer(gold) or gold))
        for answer, gold in zip(answers, solution, strict=True)
    ]
    verdicts = iter(_verdicts([case for case in cases if case is not None]))
    return [_reward(False if case is None else next(verdicts)) for case in cases]


def _verdicts(cases: list[tuple[str, str]]) -> list[bool | None]:
    quick = [_quick_verdict(*case) for case in cases]
    unsettled = [case for case, verdict in zip(cases, quick, strict=True) if verdict is None]
    slow = iter(_pool().verdicts(unsettled) if unsettled else [])
    return [next(slow) if verdict is None else verdict for verdict in quick]


def _reward(verdict: bool | None) -> float | None:
    return None if verdict is None else (1.0 if verdict else -1.0)


def _without_dollars(answer: str) -> str:
    return answer.strip().strip("$").strip()
