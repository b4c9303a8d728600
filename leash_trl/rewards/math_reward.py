r"""The paper's task reward for mathematics: +1 for an equivalent answer, -1 otherwise."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from leash_trl.engines.chat_template import TEMPLATE_FAULTS
from leash_trl.rewards.answer import opens_thinking as starts_thinking
from leash_trl.rewards.grading import grade


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
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if type(value) in (int, float):
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
    r"""The paper's task reward: +1 if the final answer is equivalent to the solution, else -1.

    $$ r(x, y) = +1 \text{ if is\_equivalent}(y, y^*) \text{ else } -1 $$

    Source: Eq. (2) of [LEASH](https://huggingface.co/papers/2512.21540). [`~leash_trl.rewards.grading`] decides
    equivalence: by value if both answers can be read, else by math-verify. math-verify runs in worker processes with a
    hard limit of processor time and memory, so it cannot hang and works in any thread;
    [`~leash_trl.rewards.grader_pool.GraderPool`] states the limits of one comparison and one batch.

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`):
            Completions, as text or as messages. The answer is the last `\boxed{}` after `</think>`, else the last
            `Answer: ...`; see [`~leash_trl.rewards.answer`].
        solution (`list[str | float | None]`):
            Gold answers, as text with or without dollar signs or a box, or as numbers; `None` and NaN are golds that
            cannot be read.
        log_metric (`callable`, *optional*):
            The trainer's function; logs `grader/unscorable_share`, the share of completions left out with the reward
            `None`, because the gold cannot be read or the comparison did not end; a warning says why.
        lenient (`bool`, *optional*, defaults to `False`):
            Whether an answer in an `<answer>` tag, or a bare one such as a trailing number, counts too, as in
            [`lenient_math_reward`].
        opens_thinking (`bool`, *optional*, defaults to `False`):
            Whether the chat template opens `<think>` in the prompt, as those of R1-Distill and Qwen3-Thinking do: then
            a completion without `</think>` is unfinished thinking, and a box in it no answer.
            [`heeding_opened_thinking`] looks at the template for a trainer, as `leash train` does.
        **kwargs:
            Other dataset columns; unused.

    Returns:
        `list[float | None]`: Rewards; `None` for an answer that cannot be scored, so that TRL leaves the sample out.

    Raises:
        `ValueError`: If a gold is of another type, such as a list.
        `RuntimeError`: If no worker process of the grader ever started and each attempt gave up by itself, as when
            math-verify is not installed. Later failures leave samples out.

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
    """[`math_reward`] that also accepts answers in an `<answer>` tag and bare ones.

    Example:
        >>> lenient_math_reward(["So there are 12 of them."], solution=["12"])
        [1.0]
    """
    return math_reward(completions, solution, **{**kwargs, "lenient": True})  # type: ignore[arg-type]


def get_math_reward(lenient: bool = False, opens_thinking: bool = False) -> Callable[..., list[float | None]]:
    """[`math_reward`] with other settings, as a reward function of the same name.

    Example:
        >>> reward = get_math_reward(opens_thinking=True)
        >>> reward(["Maybe \\\\boxed{7}? Wait", "Yes.</think>\\\\boxed{7}"], solution=["7", "7"])
        [-1.0, 1.0]
    """

    reward = functools.partial(math_reward, lenient=lenient, opens_thinking=opens_thinking)
    return functools.update_wrapper(reward, math_reward)  # unlike a function in here, it can be pickled


def heeding_opened_thinking(reward_funcs: Sequence[Any], tokenizer: Any, **chat_template_kwargs: Any) -> list[Any]:
    """The reward functions for a tokenizer: where its chat template opens `<think>` in the prompt, [`math_reward`] and
    [`lenient_math_reward`] become those for which a completion without `</think>` has no answer.

    Args:
        reward_funcs (`Sequence`):
            What a trainer takes; all but the two stay as they are.
        tokenizer (`PreTrainedTokenizerBase` or `ProcessorMixin`):
            The model's. Without a chat template, or with one that refuses a lone question, nothing changes.
        chat_template_kwargs:
            Further values for the template, as for the trainer.

    Returns:
        `list`: Functions to give to the trainer: `reward_funcs=heeding_opened_thinking([math_reward], tokenizer)`.
    """
    question = [{"role": "user", "content": "?"}]
    try:
        prompt = tokenizer.apply_chat_template(
            question, tokenize=False, add_generation_prompt=True, **chat_template_kwargs
        )
    except TEMPLATE_FAULTS:  # there is none, or it wants a system message, or lists for contents
        return list(reward_funcs)
    strict = {
        math_reward: get_math_reward(opens_thinking=True),
        lenient_math_reward: get_math_reward(lenient=True, opens_thinking=True),
    }
    return [strict.get(reward, reward) for reward in reward_funcs] if starts_thinking(prompt) else list(reward_funcs)
