r"""The paper's task reward for mathematics: +1 for an equivalent answer, -1 otherwise."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from leash_trl.model_facts import question_prompt
from leash_trl.rewards.grader.answer import opens_thinking as starts_thinking
from leash_trl.rewards.grader.grading import grade


def _text(completion: str | list[dict]) -> str:
    """The model's text in either of TRL's forms; tool output is not part of it."""
    if isinstance(completion, str):
        return completion
    contents = [message.get("content") or "" for message in completion if message["role"] == "assistant"]
    blocks = [[{"text": content}] if isinstance(content, str) else content for content in contents]
    return "\n".join("".join(block.get("text") or "" for block in message) for message in blocks)


def _gold(index: int, solution: Any) -> str:
    """A gold answer as text; if there is none, empty text, which cannot be compared with any answer."""
    value: Any = solution.item() if getattr(solution, "ndim", None) == 0 else solution  # numpy's and torch's scalars
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str) or type(value) in (int, float):
        return str(value)
    raise ValueError(
        f"solution of completion {index} is {value!r:.200}, but must be text or a number; make it one answer a row "
        "with datasets' map"
    )


def math_reward(
    completions: list,
    solution: list[str | float | None],
    log_metric: Callable[[str, float], None] | None = None,
    lenient: bool = False,
    opens_thinking: bool = False,
    **kwargs: object,
) -> list[float | None]:
    r"""The paper's task reward: +1 if the final answer is equivalent to the solution, -1 if not, `None` if unscorable.

    Source: Eq. (2) of [LEASH](https://huggingface.co/papers/2512.21540). [`~leash_trl.rewards.grader.grading`] decides
    equivalence: by value if both answers can be read, else by math-verify, whose limits
    [`~leash_trl.rewards.grader.pool.GraderPool`] states, so that it cannot hang and works in any thread. TRL leaves a
    sample without a reward out.

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`): Texts or messages. The answer is the last `\boxed{}`
            after `</think>`, else the last `Answer: ...`.
        solution (`list[str | float | None]`): Gold answers, with or without dollar signs or a box; `None` and NaN are
            golds that cannot be read.
        log_metric (`callable`): The trainer's function; logs `grader/unscorable_share`, the share of completions
            without a reward.
        lenient (`bool`): Whether an answer in an `<answer>` tag, or a bare one such as a trailing number, counts too.
        opens_thinking (`bool`): Whether the chat template opens `<think>` in the prompt, as that of R1-Distill does:
            then a completion without `</think>` has no answer. [`heeding_opened_thinking`] looks at the template for a
            trainer.

    Raises:
        `ValueError`: If a gold is of another type, such as a list.
        `RuntimeError`: If no worker of the grader ever started, as without math-verify.

    Example:
        >>> math_reward(["<think>...</think>It is \\boxed{07}.", "It is 7."], solution=["7", "7"])
        [1.0, -1.0]
    """
    golds = [_gold(index, gold) for index, gold in enumerate(solution)]
    grades = grade([_text(completion) for completion in completions], golds, lenient, opens_thinking)
    if log_metric is not None and grades:
        log_metric("grader/unscorable_share", sum(grade.is_correct is None for grade in grades) / len(grades))
    return [None if grade.is_correct is None else 2.0 * grade.is_correct - 1.0 for grade in grades]


def lenient_math_reward(completions: list, solution: list[str | float | None], **kwargs: object) -> list[float | None]:
    """[`math_reward`] that also accepts answers in an `<answer>` tag and bare ones, as in "So it is 12."."""
    return math_reward(completions, solution, **{**kwargs, "lenient": True})  # type: ignore[arg-type]


def get_math_reward(lenient: bool = False, opens_thinking: bool = False) -> Callable[..., list[float | None]]:
    """[`math_reward`] with other settings, as a reward function of the same name that can be pickled."""
    reward = functools.partial(math_reward, lenient=lenient, opens_thinking=opens_thinking)
    return functools.update_wrapper(reward, math_reward)


def heeding_opened_thinking(reward_funcs: Sequence[Any], tokenizer: Any, **chat_template_kwargs: Any) -> list[Any]:
    """A trainer's reward functions, where [`math_reward`] and [`lenient_math_reward`] heed what the template opens.

    If the chat template of the tokenizer, a processor too, opens `<think>` in the prompt, a completion without
    `</think>` has no answer. Without a template, or with one that refuses a lone question, nothing changes.
    """
    is_opened = starts_thinking(question_prompt(tokenizer, **chat_template_kwargs))
    strict = {
        math_reward: get_math_reward(opens_thinking=True),
        lenient_math_reward: get_math_reward(lenient=True, opens_thinking=True),
    }
    return [strict.get(reward, reward) for reward in reward_funcs] if is_opened else list(reward_funcs)
