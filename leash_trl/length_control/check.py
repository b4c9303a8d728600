"""`check_length_control`: checks that a method of your own keeps the contract of `LengthControl`.

As stable-baselines3's `check_env` does for an environment, it runs the method and raises an error at the first fault.
Errors of the method and of `LengthControl` itself, such as for a reward of the wrong shape or NaN, are raised
unchanged.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from leash_trl.length_control.advantages import DEFAULT_RULE
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import FLOAT32_ERROR, Rollouts, Score, concatenated, selected
from leash_trl.length_control.targets import TARGET_COLUMN, check_target


NUM_PROMPTS = 3


def check_length_control(
    method: LengthControl,
    target_length: int = 4096,
    max_completion_length: int = 32768,
    num_generations: int = 8,
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Checks that a method keeps the contract of [`LengthControl`], as far as small batches show this.

    The batches have correct and wrong answers, only correct or only wrong ones, answers of 0 tokens, which are also
    equally long, and answers without a reward. Only copies of the method change their state.

    Args:
        method ([`LengthControl`]): An instance, with the hyper-parameters of a run.
        target_length (`int`): Target in tokens, if the method has one.
        max_completion_length (`int`): Generation limit in tokens.
        num_generations (`int`): Completions of each prompt, at least 2.
        columns (`Mapping[str, Sequence]`): Some values of each column of the data set that the method reads.

    Raises:
        `ValueError`: At the first fault; the message names the method, the function or the field, and the remedy.
            Other errors that the method raises pass unchanged.

    Example:
        >>> from leash_trl.length_control.kimi import Kimi
        >>> check_length_control(Kimi(weight=0.2))
    """
    check_target(None if method.target_use == "none" else target_length, method, max_completion_length)
    mixed = _mixed_batch(method, target_length, max_completion_length, num_generations, columns or {})
    batches = _batches_made_of(mixed)
    _check_training(method, batches)
    # Each batch is scored by the state that the batches before it have left, as in training.
    trained = copy.deepcopy(method)
    for rollouts in batches:
        score = trained.score(rollouts, DEFAULT_RULE)
        _check_values(trained, rollouts, score)
        _check_declared_advantages(trained, rollouts, score)
        if method.depends_on != "batch":
            _check_dependence(trained, rollouts, score)
        trained.observe(rollouts)
        trained.step()


def _mixed_batch(
    method: LengthControl,
    target_length: int,
    max_completion_length: int,
    num_generations: int,
    columns: Mapping[str, Sequence[Any]],
) -> Rollouts:
    """Returns a batch of correct and wrong answers; for the arguments, see [`check_length_control`]."""
    rows = torch.arange(NUM_PROMPTS * num_generations)  # one for each completion
    questions = rows // num_generations  # number of its prompt, such as [0, 0, 1, 1, 2, 2]
    # Prompts have one of two targets. A method such as L1 replaces them by targets that it draws by the prompt's
    # number.
    targets = _in_turn([method.target_for(0, target_length), method.target_for(1, target_length / 2)], questions)
    columns_of_rows = {name: _in_turn(values, questions) for name, values in columns.items()}
    lengths = _lengths_around(target_length, rows, max_completion_length)
    return Rollouts(
        task_rewards=(-1.0) ** rows.double(),  # 1 and -1 in turn
        lengths=lengths,
        target_lengths=torch.tensor(targets, dtype=torch.float64),
        is_truncated=lengths == max_completion_length,
        questions=questions,
        num_generations=num_generations,
        max_completion_length=max_completion_length,
        columns=columns_of_rows | {TARGET_COLUMN: targets},  # LEASH may read any of them as `multiplier_per`
    )


def _lengths_around(target_length: int, rows: torch.Tensor, max_completion_length: int) -> torch.Tensor:
    """Returns lengths on both sides of the target, at least one of which is that of a truncated completion."""
    lengths = rows * 7919 % (2 * target_length)  # multiples of a prime number, which are in no order
    lengths = lengths.clamp(min=1, max=max_completion_length)
    lengths[0] = max_completion_length
    return lengths


def _in_turn(values: Sequence[Any], questions: torch.Tensor) -> list[Any]:
    """Returns the value of the prompt of each completion, if the prompts have these values in turn."""
    return [values[question % len(values)] for question in questions.tolist()]


def _batches_made_of(mixed: Rollouts) -> list[Rollouts]:
    """Returns a batch of correct and wrong answers, and other batches made of it, which are edge cases."""
    rewards = mixed.task_rewards
    rows = torch.arange(len(rewards))
    has_no_reward = (mixed.questions == 0) | (rows % 3 == 0)  # a whole prompt, and some completions of the others
    return [
        mixed,
        replace(mixed, task_rewards=rewards.abs()),  # correct answers only
        replace(mixed, task_rewards=-rewards.abs()),  # wrong answers only
        # with `length_of: thinking`, an answer without thinking has a length of 0; here, none is truncated
        replace(mixed, lengths=0 * mixed.lengths, is_truncated=mixed.lengths < 0),
        replace(mixed, task_rewards=rewards.masked_fill(has_no_reward, torch.nan)),
        replace(mixed, task_rewards=torch.nan * rewards),
    ]


def _training_record(
    method: LengthControl, batches: Sequence[Rollouts], evaluates: bool = False, resumes: bool = False
) -> list[str]:
    """Trains a copy of the method on these batches and returns its score, its statistics and its new state for each,
    as text: two records are equal only if two trainings are the same to the last bit.

    With `evaluates`, it also scores a batch of an evaluation before each update; with `resumes`, each update is that
    of a run resumed from a checkpoint.
    """
    trained = copy.deepcopy(method)
    record = []
    for rollouts in batches:
        score = trained.score(rollouts, DEFAULT_RULE)
        if evaluates:
            _evaluate(trained, rollouts)
        trained.observe(rollouts)
        # A checkpoint lies between `observe` and `step` if mixed precision has skipped the update.
        if resumes:
            trained = _resumed(method, trained.state_dict())
        trained.step()
        # A second update may reuse the completions of the first one, and then calls `step` without `observe`.
        trained.step()
        record.append(_as_text([vars(score), trained.statistics(), trained.state_dict()]))
    return record


def _evaluate(method: LengthControl, rollouts: Rollouts) -> None:
    """Reads targets and scores completions, as an evaluation does, which calls neither `observe` nor `step`."""
    method.target_for(0, 1.0)
    method.score(replace(rollouts, task_rewards=-rollouts.task_rewards), DEFAULT_RULE)


def _resumed(method: LengthControl, state: Mapping[str, Any]) -> LengthControl:
    """Returns what a new process knows: a fresh method with the saved state, which is JSON in a checkpoint."""
    resumed = copy.deepcopy(method)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    return resumed


def _as_text(value: Any) -> str:
    """Returns a value that holds numbers and tensors as JSON, whose numbers have all their digits."""
    return json.dumps(value, default=torch.Tensor.tolist)


def _check_training(method: LengthControl, batches: Sequence[Rollouts]) -> None:
    """Raises `ValueError` if training changes the batches, or if it depends on anything but the batches, the initial
    state and what the class declares to read."""
    batches_before = _as_text([vars(rollouts) for rollouts in batches])
    record = _training_record(method, batches)
    if _as_text([vars(rollouts) for rollouts in batches]) != batches_before:
        raise ValueError(f"length_control {method.name!r} changes rollouts in place; work on a clone() of its tensors")
    _check_same_again(method, batches, record)
    _check_declared_inputs(method, batches, record)


def _check_same_again(method: LengthControl, batches: Sequence[Rollouts], record: list[str]) -> None:
    """Raises `ValueError` if training on the same batches does not have the same record if it is resumed from
    checkpoints, or if evaluations come in between."""
    if _training_record(method, batches, resumes=True) != record:
        raise ValueError(
            f"state of length_control {method.name!r} is not the same after a checkpoint; declare with state_field, "
            "not in the class, what observe and step change, and draw no random numbers"
        )
    if _training_record(method, batches, evaluates=True) != record:
        raise ValueError(
            f"length_control {method.name!r} trains differently after an evaluation; change state only in observe and "
            "step, by the rollouts that observe receives, not in score or target_for"
        )


def _check_declared_inputs(method: LengthControl, batches: Sequence[Rollouts], record: list[str]) -> None:
    """Raises `ValueError` if the method uses targets or correctness, but declares that it does not. With other
    targets, or other correct answers, the method must then train in the same way."""
    other_targets = [replace(rollouts, target_lengths=rollouts.target_lengths / 3) for rollouts in batches]
    if method.target_use == "none" and _training_record(method, other_targets) != record:
        raise ValueError(
            f"target_use of length_control {method.name!r} is 'none', but the method reads "
            "rollouts.target_lengths, which are NaN in a run without a target; set target_use to 'required' or "
            "'optional'"
        )
    other_correctness = -batches[0].task_rewards  # the first batch has both correct and wrong answers
    other_verdicts = [replace(rollouts, correctness_rewards=other_correctness) for rollouts in batches]
    if not method.needs_correctness() and _training_record(method, other_verdicts) != record:
        raise ValueError(
            f"needs_correctness of length_control {method.name!r} returned None, but the method reads which answers "
            "are correct, which is not known in every run; return what needs this, or use rollouts.task_rewards"
        )


def _check_values(method: LengthControl, rollouts: Rollouts, score: Score) -> None:
    """Raises `ValueError` if a completion without a reward has a shaped reward or an advantage, or if some advantage
    is no number."""
    has_reward_N = rollouts.is_scorable
    if not score.shaped[~has_reward_N].isnan().all():
        raise ValueError(
            f"shaped_rewards of length_control {method.name!r} returned a number for a completion that has no reward; "
            "leave NaN there"
        )
    are_finite = score.advantages.shape == has_reward_N.shape and score.advantages.isfinite().all()
    if not are_finite or score.advantages[~has_reward_N].any():
        raise ValueError(
            f"advantages of length_control {method.name!r} are not {len(has_reward_N)} finite numbers, with 0 where a "
            "completion has no reward; mask them, as with nan_to_num(nan=0.0)"
        )


def _check_declared_advantages(method: LengthControl, rollouts: Rollouts, score: Score) -> None:
    """Raises `ValueError` if `advantages_have_mean_zero` is declared, but not true."""
    means_P = rollouts.by_group(score.advantages).mean(dim=1)
    if method.advantages_have_mean_zero and means_P.abs().max() > FLOAT32_ERROR:
        raise ValueError(
            f"advantages_have_mean_zero of length_control {method.name!r} is True, but the mean of a prompt is not 0; "
            "set it to False"
        )


def _check_dependence(method: LengthControl, rollouts: Rollouts, score: Score) -> None:
    """Raises `ValueError` if the score of a completion changes without the completions on which, as `depends_on`
    declares, it does not depend."""
    part_size = rollouts.num_generations if method.depends_on == "prompt" else 1
    score_in_parts = _score_in_parts(method, rollouts, part_size)
    are_same = _is_same(score.shaped, score_in_parts.shaped)
    if method.own_advantages:  # GRPO's rule always compares the completions of a prompt
        are_same &= _is_same(score.advantages, score_in_parts.advantages)
    if not are_same:
        raise ValueError(
            f"depends_on of length_control {method.name!r} is {method.depends_on!r}, but shaped_rewards or advantages "
            "depend on other completions; set it to 'prompt' if on those of the prompt (see rollouts.by_group), else "
            "to 'batch'"
        )


def _score_in_parts(method: LengthControl, rollouts: Rollouts, part_size: int) -> Score:
    """Returns the score of the completions if the method sees only `part_size` of them at a time."""
    scores = []
    for rows in torch.arange(len(rollouts.lengths)).view(-1, part_size):
        # a batch of a single group: the completions of a prompt, or only one of them
        part = replace(selected(rollouts, rows), num_generations=part_size)
        scores.append(method.score(part, DEFAULT_RULE))
    score: Score = concatenated(scores)
    return score


def _is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.allclose(first.double(), second.double(), atol=FLOAT32_ERROR, equal_nan=True)
