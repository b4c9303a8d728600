"""The reward of reasoning-gym's tasks, which score the answers to their problems themselves."""

from collections.abc import Sequence

from leash_trl.completions.thinking import DEFAULT_MARKERS, ThinkingMarkers, markers_of_completions
from leash_trl.reasoning_gym_tasks import procedural_dataset
from leash_trl.rewards.grader.answer import ANSWER_MARK, TAGGED_ANSWER, completion_text, find_boxes


def reasoning_gym_reward(
    completions: list,
    reasoning_gym: Sequence[str],
    thinking_markers: ThinkingMarkers | Sequence[ThinkingMarkers] = DEFAULT_MARKERS,
    **kwargs: object,
) -> list[float]:
    """Returns +1 for each completion that its task scores with 1, and `score - 1` for the others. A task may give a
    wrong answer a score in (0, 1); since 1 is subtracted, only correct answers have a positive reward.

    The answer is the last `<answer>` tag after the thinking, else the last box, else what follows the last `Answer:`,
    and the task gets this answer as it was written. A completion without an answer, or with one that the task cannot
    parse, is wrong. Some tasks, such as `countdown`, evaluate answers as Python code, without a time limit.

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`): Texts or messages.
        reasoning_gym (`Sequence[str]`): Number and settings of each problem, as
            [`~leash_trl.data.reasoning_gym.load_reasoning_gym`] writes them.
        thinking_markers ([`~leash_trl.completions.thinking.ThinkingMarkers`]): As for
            [`~leash_trl.rewards.math_reward`].

    Raises:
        `ImportError`: If reasoning-gym is not installed.
        `ValueError`: If the problems of a task differ between processes.
    """
    rewards = []
    all_markers = markers_of_completions(thinking_markers, len(completions))
    for completion, reference, markers in zip(completions, reasoning_gym, all_markers, strict=True):
        # The text after the thinking; it is empty if the completion never ends its thinking.
        visible_text = markers.visible_text(completion_text(completion))
        answer = _answer_as_written(visible_text)
        # The reference names the problem by its number, such as 12 {"task": "countdown", "seed": 0}.
        index, _, settings = reference.partition(" ")
        dataset = procedural_dataset(settings)
        try:
            score = dataset.score_answer(answer, dataset[int(index)])
        # Tasks raise errors of any type for an answer that they cannot parse.
        except Exception:
            score = 0.0
        # A task may score a wrong answer above 0, say 0.1 for its form, which becomes a reward of -0.9.
        rewards.append(1.0 if score >= 1.0 else score - 1.0)
    return rewards


def _answer_as_written(text: str) -> str | None:
    """Returns the answer as it was written: in the last `<answer>` tag, else in the last box, else after the last
    `Answer:`; `None` if there is none."""
    # Such as ["12", "34"] of "<answer>12</answer> no, <answer>34</answer>".
    if tagged_answers := TAGGED_ANSWER.findall(text):
        return tagged_answers[-1].strip()
    if boxes_of_text := find_boxes(text):
        last_box = boxes_of_text[-1]
        # The end is the index of the closing brace, which is left out.
        content = text[last_box.content_start : last_box.content_end]
        return content.strip()
    # The mark is "Answer:", which may be bold, so the asterisks of "**Answer: 34**" are stripped as well.
    *before_last_mark, after_last_mark = ANSWER_MARK.split(text)
    return after_last_mark.strip("* \t\r\n") if before_last_mark else None
