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


RULE = AdvantageRule()
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
    batches = _batches(method, target_length, max_completion_length, num_generations, columns or {})
    _check_training(method, batches)
    trained = copy.deepcopy(method)
    for rollouts in batches.values():
        _check_score(trained, rollouts)
        trained.observe(rollouts)
        trained.step()


def _batches(
    method: LengthControl,
    target_length: int,
    max_completion_length: int,
    num_generations: int,
    columns: Mapping[str, Sequence[Any]],
) -> dict[str, Rollouts]:
    """Returns batches by what they hold; for the arguments, see [`check_length_control`]."""
    rows = torch.arange(NUM_PROMPTS * num_generations)
    questions = rows // num_generations

    def by_completion(values: Sequence[Any]) -> list[Any]:
        """Gives the prompts these values in turn."""
        return [values[question % len(values)] for question in questions.tolist()]

    target_lengths = (target_length, target_length / 2)
    targets = by_completion([method.target_for(question, target) for question, target in enumerate(target_lengths)])
    lengths = rows * 7919 % (2 * target_length)  # a prime number, so that lengths differ and are in no order
    lengths = lengths.clamp(min=1, max=max_completion_length)
    lengths[0] = max_completion_length
    rewards = (-1.0) ** rows.double()  # 1 and -1 in turn
    mixed = Rollouts(
        task_rewards=rewards,
        lengths=lengths,
        target_lengths=torch.tensor(targets, dtype=torch.float64),
        is_truncated=lengths == max_completion_length,
        questions=questions,
        num_generations=num_generations,
        max_completion_length=max_completion_length,
        columns={name: by_completion(values) for name, values in columns.items()} | {TARGET_COLUMN: targets},
    )
    has_no_reward = (questions == 0) | (rows % 3 == 0)  # a whole prompt, and some completions of the others
    return {
        "right and wrong answers": mixed,
        "right answers only": replace(mixed, task_rewards=rewards.abs()),
        "wrong answers only": replace(mixed, task_rewards=-rewards.abs()),
        "answers of 0 tokens": replace(mixed, lengths=0 * lengths, is_truncated=lengths < 0),  # as without thinking
        "answers of which some have no reward": replace(
            mixed, task_rewards=rewards.masked_fill(has_no_reward, torch.nan)
        ),
        "answers without any reward": replace(mixed, task_rewards=torch.nan * rewards),
    }


def _training(
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
            score = trained.score(rollouts, RULE)
            if evaluates:
                trained.target_for(0, 1.0)
                trained.score(replace(rollouts, task_rewards=-rollouts.task_rewards), RULE)
            trained.observe(rollouts)
            if resumes:  # there is such a checkpoint if mixed precision has skipped the update after `observe`
                state = json.loads(json.dumps(trained.state_dict()))
                trained = copy.deepcopy(method)
                trained.load_state_dict(state)
            trained.step()
            trained.step()  # of a second update on the same completions
            record.append(_as_text([vars(score), trained.statistics(), trained.state_dict()]))
        except Exception as error:
            error.add_note(
                f"in a batch of {case}: let length_control {method.name!r} accept every batch, declare state that "
                "JSON can hold, and pass values of columns that it reads, as in columns={'level': [1, 2]}"
            )
            raise
    return record


def _as_text(value: Any) -> str:
    return json.dumps(value, default=torch.Tensor.tolist)


def _check_training(method: LengthControl, batches: Mapping[str, Rollouts]) -> None:
    """Raises `ValueError` if training changes the batches, or depends on more than them, the initial state and what
    the class declares to read."""

    def trained_on(**changes: Any) -> list[str]:
        return _training(method, {case: replace(rollouts, **changes) for case, rollouts in batches.items()})

    mixed = next(iter(batches.values()))
    before = _as_text([vars(rollouts) for rollouts in batches.values()])
    expected = _training(method, batches)
    if _as_text([vars(rollouts) for rollouts in batches.values()]) != before:
        raise ValueError(f"length_control {method.name!r} changes rollouts in place; work on a clone() of its tensors")
    if _training(method, batches) != expected:
        raise ValueError(
            f"length_control {method.name!r} differs between two instances on the same batches; draw no random "
            "numbers, and declare its state with state_field, not in the class"
        )
    if _training(method, batches, evaluates=True) != expected:
        raise ValueError(
            f"length_control {method.name!r} trains differently after an evaluation; change state only in observe and "
            "step, by the rollouts that observe receives, not in score or target_for"
        )
    if _training(method, batches, resumes=True) != expected:
        raise ValueError(
            f"state of length_control {method.name!r} is not the same after a checkpoint; declare with state_field "
            "what observe and step change"
        )
    if method.target_use == "none" and trained_on(target_lengths=mixed.target_lengths / 3) != expected:
        raise ValueError(
            f"target_use of length_control {method.name!r} is 'none', but it reads rollouts.target_lengths, which are "
            "NaN in a run without a target; set it to 'required' or 'optional'"
        )
    if not method.uses_correctness and trained_on(correctness_rewards=-mixed.task_rewards) != expected:
        raise ValueError(
            f"uses_correctness of length_control {method.name!r} is False, but it reads which answers are correct; "
            "set it to True, since this is not known in every run, or use rollouts.task_rewards"
        )


def _check_score(method: LengthControl, rollouts: Rollouts) -> None:
    """Raises `ValueError` if rewards or advantages are not those that the class promises."""
    score = method.score(rollouts, RULE)
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
    if not method.own_advantages and not _is_same(advantages, RULE(score.shaped, rollouts.num_generations)):
        raise ValueError(
            f"own_advantages of length_control {method.name!r} is False, but its advantages are not those of the "
            "shaped rewards; set it to 'group', 'batch' or True"
        )
    means = rollouts.by_group(advantages).mean(dim=1)
    if method.own_advantages in ("group", "batch") and means.abs().max() > FLOAT32_ERROR:
        raise ValueError(
            f"own_advantages of length_control {method.name!r} is {method.own_advantages!r}, but the mean of a prompt "
            "is not 0; set it to True"
        )
    if method.needs_group != "batch":
        size = rollouts.num_generations if method.needs_group else 1
        if not _is_same(score.shaped, _score_apart(method, rollouts, size).shaped):
            raise ValueError(
                f"needs_group of length_control {method.name!r} is {method.needs_group}, but shaped_rewards depends "
                "on other completions; set it to True if on those of the prompt (see rollouts.by_group), else to "
                "'batch'"
            )
    if method.own_advantages == "group":
        apart = _score_apart(method, rollouts, rollouts.num_generations)
        if not _is_same(advantages, apart.advantages):
            raise ValueError(
                f"own_advantages of length_control {method.name!r} is 'group', but they depend on other prompts; set "
                "it to 'batch', or compare only within a prompt"
            )


def _score_apart(method: LengthControl, rollouts: Rollouts, size: int) -> Score:
    """Returns the score of completions of which only `size` at a time are in a batch."""
    scores = []
    for rows in torch.arange(len(rollouts.lengths)).view(-1, size):
        part = replace(selected(rollouts, rows), num_generations=size)
        scores.append(method.score(part, RULE))
    score: Score = concatenated(scores)
    return score


def _is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.allclose(first.double(), second.double(), atol=FLOAT32_ERROR, equal_nan=True)
