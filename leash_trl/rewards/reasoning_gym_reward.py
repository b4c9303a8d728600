"""The reward of reasoning-gym's tasks, which score the answers to their problems themselves."""

from collections.abc import Sequence

from leash_trl.completions.thinking import DEFAULT_MARKERS, ThinkingMarkers, markers_of_completions
from leash_trl.reasoning_gym_tasks import procedural_dataset
from leash_trl.rewards.grader.answer import ANSWER_MARK, TAG, boxes, completion_text


def reasoning_gym_reward(
    completions: list,
    reasoning_gym: Sequence[str],
    thinking_markers: ThinkingMarkers | Sequence[ThinkingMarkers] = DEFAULT_MARKERS,
    **kwargs: object,
) -> list[float]:
    """Returns +1 for each completion that its task scores with 1, and `score - 1` for the others. Their score, in
    [0, 1), may be above 0 for an incorrect answer; so only correct answers have a positive reward.

    The answer is the last `<answer>` tag after the thinking, else the last box, else what follows the last `Answer:`,
    and the task gets it as it was written. A completion without an answer, or with one that the task cannot parse, is
    wrong. Some tasks, such as `countdown`, evaluate answers as Python code, without a time limit.

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`): Texts or messages.
        reasoning_gym (`Sequence[str]`): Number and settings of each problem, as
            [`~leash_trl.data.reasoning_gym.load_reasoning_gym`] writes them.
        thinking_markers ([`~leash_trl.completions.thinking.ThinkingMarkers`]): As for
            [`~leash_trl.rewards.math_reward`].
    """
    rewards = []
    all_markers = markers_of_completions(thinking_markers, len(completions))
    for completion, reference, markers in zip(completions, reasoning_gym, all_markers, strict=True):
        visible_text = markers.visible_text(completion_text(completion))
        answer = _answer(visible_text)
        index, _, settings = reference.partition(" ")
        dataset = procedural_dataset(settings)
        try:
            score = dataset.score_answer(answer, dataset[int(index)])
        except Exception:  # the task cannot parse the answer
            score = 0.0
        rewards.append(1.0 if score >= 1.0 else score - 1.0)
    return rewards


def _answer(text: str) -> str | None:
    """Returns the answer as it was written: in the last `<answer>` tag, else in the last box, else after the last
    `Answer:`; `None` if there is none."""
    if tagged_answers := TAG.findall(text):
        return tagged_answers[-1].strip()
    if boxes_of_text := boxes(text):
        last_box = boxes_of_text[-1]
        content = text[last_box.content_start : last_box.end]  # without the closing brace
        return content.strip()
    *before, after = ANSWER_MARK.split(text)
    return after.strip("* \t\r\n") if before else None
