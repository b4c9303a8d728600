"""`check_length_control`: says what breaks the contract of `LengthControl` in a method of your own.

As stable-baselines3's `check_env` does for an environment, it runs the method and raises an error at the first fault.
What `LengthControl` itself refuses in training, such as a reward of the wrong shape or NaN, is raised as it is there.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import FLOAT32_ERROR, Rollouts, Score, concatenated, selected
from leash_trl.length_control.targets import TARGET_COLUMN, check_target


DEFAULT_RULE = AdvantageRule()  # advantages as LeashGRPOTrainer normalizes them by default
NUM_PROMPTS = 3


def check_length_control(
    method: LengthControl,
    target_length: int = 4096,
    max_completion_length: int = 32768,
    num_generations: int = 8,
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Returns nothing if a method keeps the contract of [`LengthControl`], as far as small batches show it.

    The batches have right and wrong answers, only right or only wrong ones, answers of 0 tokens, which are also
    equally long, and answers without a reward. The method is copied, and itself stays as it is.

    Args:
        method ([`LengthControl`]): An instance, with the hyper-parameters of a run.
        target_length (`int`): Target in tokens, if the method has one.
        max_completion_length (`int`): Generation limit in tokens.
        num_generations (`int`): Completions of each prompt, at least 2.
        columns (`Mapping[str, Sequence]`): Some values of each column of the data set that the method reads.

    Raises:
        `ValueError`: At the first fault; the message names the method, the hook or the field, and the remedy. An error
            of the method itself is raised with a note that says what the batch holds.

    Example:
        >>> from leash_trl.length_control.kimi import Kimi
        >>> check_length_control(Kimi(weight=0.2))
    """
    check_target(None if method.target_use == "none" else target_length, method, max_completion_length)
    # by what they hold, such as {"right answers only": Rollouts(...)}
    batches = _batches_by_case(method, target_length, max_completion_length, num_generations, columns or {})
    _check_training(method, batches)
    # Each batch is scored by the state that the batches before it have left, as in training.
    trained = copy.deepcopy(method)
    for rollouts in batches.values():
        _check_score(trained, rollouts)
        trained.observe(rollouts)
        trained.step()


def _batches_by_case(
    method: LengthControl,
    target_length: int,
    max_completion_length: int,
    num_generations: int,
    columns: Mapping[str, Sequence[Any]],
) -> dict[str, Rollouts]:
    """Returns batches by what they hold; for the arguments, see [`check_length_control`]."""
    rows = torch.arange(NUM_PROMPTS * num_generations)  # one for each completion
    questions = rows // num_generations  # number of its prompt, such as [0, 0, 1, 1, 2, 2]

    def by_completion(values: Sequence[Any]) -> list[Any]:
        """Gives the prompts these values in turn, and returns for each completion that of its prompt."""
        return [values[question % len(values)] for question in questions.tolist()]

    # Prompts have one of two targets. A method such as L1 replaces them by targets that it draws by the prompt's
    # number.
    target_lengths = (target_length, target_length / 2)
    targets = by_completion([method.target_for(question, target) for question, target in enumerate(target_lengths)])
    # Multiples of a prime number, modulo twice the target, are in no order and lie on both sides of the target.
    lengths = rows * 7919 % (2 * target_length)
    lengths = lengths.clamp(min=1, max=max_completion_length)
    lengths[0] = max_completion_length  # at least one completion is truncated
    rewards = (-1.0) ** rows.double()  # 1 and -1 in turn
    mixed = Rollouts(
        task_rewards=rewards,
        lengths=lengths,
        target_lengths=torch.tensor(targets, dtype=torch.float64),
        is_truncated=lengths == max_completion_length,
        questions=questions,
        num_generations=num_generations,
        max_completion_length=max_completion_length,
        # the columns that the caller passes, and that of the targets, which LEASH reads with `multiplier_per`
        columns={name: by_completion(values) for name, values in columns.items()} | {TARGET_COLUMN: targets},
    )
    has_no_reward = (questions == 0) | (rows % 3 == 0)  # a whole prompt, and some completions of the others
    return {
        "right and wrong answers": mixed,
        "right answers only": replace(mixed, task_rewards=rewards.abs()),
        "wrong answers only": replace(mixed, task_rewards=-rewards.abs()),
        # with `length_of: thinking`, an answer without thinking has a length of 0; none of them is truncated
        "answers of 0 tokens": replace(mixed, lengths=0 * lengths, is_truncated=lengths < 0),
        "answers of which some have no reward": replace(
            mixed, task_rewards=rewards.masked_fill(has_no_reward, torch.nan)
        ),
        "answers without any reward": replace(mixed, task_rewards=torch.nan * rewards),
    }


def _training_record(
    method: LengthControl, batches: Mapping[str, Rollouts], evaluates: bool = False, resumes: bool = False
) -> list[str]:
    """Trains a copy of the method on these batches and returns its score, its statistics and its new state for each,
    as text that can be compared exactly.

    With `evaluates`, it also scores a batch of an evaluation before each update; with `resumes`, each update is that
    of a run resumed from a checkpoint.
    """
    trained = copy.deepcopy(method)
    record = []
    for case, rollouts in batches.items():
        try:
            score = trained.score(rollouts, DEFAULT_RULE)
            if evaluates:
                # An evaluation reads targets and scores other completions, but calls neither `observe` nor `step`.
                trained.target_for(0, 1.0)
                trained.score(replace(rollouts, task_rewards=-rollouts.task_rewards), DEFAULT_RULE)
            trained.observe(rollouts)
            if resumes:
                # What a new process knows is a fresh method and the saved state. A checkpoint lies between `observe`
                # and `step` if mixed precision has skipped the update.
                state = json.loads(json.dumps(trained.state_dict()))
                trained = copy.deepcopy(method)
                trained.load_state_dict(state)
            trained.step()
            # A second update may reuse the completions of the first one, and then calls `step` without `observe`.
            trained.step()
            record.append(_as_text([vars(score), trained.statistics(), trained.state_dict()]))
        except Exception as error:
            error.add_note(
                f"in a batch of {case}: let length_control {method.name!r} accept every batch, declare state that "
                "JSON can hold, and pass values of columns that it reads, as in columns={'level': [1, 2]}"
            )
            raise
    return record


def _as_text(value: Any) -> str:
    """Returns a value that holds numbers and tensors as JSON, whose numbers have all their digits."""
    return json.dumps(value, default=torch.Tensor.tolist)


def _check_training(method: LengthControl, batches: Mapping[str, Rollouts]) -> None:
    """Raises `ValueError` if training changes the batches, or depends on more than them, the initial state and what
    the class declares to read."""

    def record_with(**changes: Any) -> list[str]:
        """Trains on the same batches, in which these fields of `Rollouts` have other values."""
        changed_batches = {case: replace(rollouts, **changes) for case, rollouts in batches.items()}
        return _training_record(method, changed_batches)

    mixed = next(iter(batches.values()))  # the first batch has both right and wrong answers
    # A record has the score, the statistics and the new state for each batch, as text. Two records are therefore equal
    # only if two trainings are the same to the last bit.
    batches_before = _as_text([vars(rollouts) for rollouts in batches.values()])
    expected = _training_record(method, batches)
    if _as_text([vars(rollouts) for rollouts in batches.values()]) != batches_before:
        raise ValueError(f"length_control {method.name!r} changes rollouts in place; work on a clone() of its tensors")
    if _training_record(method, batches) != expected:
        raise ValueError(
            f"length_control {method.name!r} differs between two instances on the same batches; draw no random "
            "numbers, and declare its state with state_field, not in the class"
        )
    if _training_record(method, batches, evaluates=True) != expected:
        raise ValueError(
            f"length_control {method.name!r} trains differently after an evaluation; change state only in observe and "
            "step, by the rollouts that observe receives, not in score or target_for"
        )
    if _training_record(method, batches, resumes=True) != expected:
        raise ValueError(
            f"state of length_control {method.name!r} is not the same after a checkpoint; declare with state_field "
            "what observe and step change"
        )
    # A method that declares not to use a fact must train in the same way if this fact is another one: here the
    # targets, and then which answers are correct.
    if method.target_use == "none" and record_with(target_lengths=mixed.target_lengths / 3) != expected:
        raise ValueError(
            f"target_use of length_control {method.name!r} is 'none', but it reads rollouts.target_lengths, which are "
            "NaN in a run without a target; set it to 'required' or 'optional'"
        )
    if not method.needs_correctness() and record_with(correctness_rewards=-mixed.task_rewards) != expected:
        raise ValueError(
            f"needs_correctness of length_control {method.name!r} returned None, but it reads which answers are "
            "correct; let it return what needs this, which is not known in every run, or use rollouts.task_rewards"
        )


def _check_score(method: LengthControl, rollouts: Rollouts) -> None:
    """Raises `ValueError` if rewards or advantages are not those that the class promises."""
    score = method.score(rollouts, DEFAULT_RULE)  # tensors of shape (N,)
    advantages = score.advantages
    has_reward = rollouts.is_scorable
    if not score.shaped[~has_reward].isnan().all():
        raise ValueError(
            f"shaped_rewards of length_control {method.name!r} returned a number for a completion that has no reward; "
            "leave NaN there"
        )
    is_finite = advantages.shape == has_reward.shape and advantages.isfinite().all()
    if not is_finite or advantages[~has_reward].any():
        raise ValueError(
            f"advantages of length_control {method.name!r} are not {len(has_reward)} finite numbers, with 0 where a "
            "completion has no reward; mask them, as with nan_to_num(nan=0.0)"
        )
    # `own_advantages` is False if GRPO's rule computes the advantages from the shaped rewards.
    if not method.own_advantages and not _is_same(advantages, DEFAULT_RULE(score.shaped, rollouts.num_generations)):
        raise ValueError(
            f"own_advantages of length_control {method.name!r} is False, but its advantages are not those of the "
            "shaped rewards; set it to True"
        )
    means = rollouts.by_group(advantages).mean(dim=1)
    if method.advantages_have_mean_zero and means.abs().max() > FLOAT32_ERROR:
        raise ValueError(
            f"advantages_have_mean_zero of length_control {method.name!r} is True, but the mean of a prompt is not 0; "
            "set it to False"
        )
    if method.depends_on == "batch":
        return
    # Without the completions on which a completion does not depend, its score must be the same.
    part_size = rollouts.num_generations if method.depends_on == "prompt" else 1
    score_in_parts = _score_in_parts(method, rollouts, part_size)
    if not _is_same(score.shaped, score_in_parts.shaped):
        raise ValueError(
            f"depends_on of length_control {method.name!r} is {method.depends_on!r}, but shaped_rewards depends on "
            "other completions; set it to 'prompt' if on those of the prompt (see rollouts.by_group), else to 'batch'"
        )
    if method.own_advantages and not _is_same(advantages, score_in_parts.advantages):
        raise ValueError(
            f"depends_on of length_control {method.name!r} is {method.depends_on!r}, but advantages depend on other "
            "completions; set it to 'prompt' if on those of the prompt, else to 'batch'"
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
