"""`check_length_control`: says what breaks the contract of `LengthControl` in a method of your own.

As stable-baselines3's `check_env` does for an environment, it runs the method and raises an error at the first fault.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch

from leash_trl.errors import TrainingError
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.edge_cases import MIXED, RIGHT, SOME_WITHOUT_REWARD, WRONG, edge_cases
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts, Score, concatenated, selected
from leash_trl.length_control.statistics import length_statistics
from leash_trl.length_control.targets import TARGET_COLUMN


TOLERANCE = 1e-6  # rounding errors of float32 are no faults
RULES = (AdvantageRule("group"), AdvantageRule("none"))


def check_length_control(
    method: LengthControl,
    target_length: int = 4096,
    max_completion_length: int = 32768,
    num_generations: int = 8,
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Returns nothing if a method keeps the contract of [`LengthControl`], as far as small batches show it.

    The batches have right and wrong answers, only right or only wrong ones, a single prompt, equal lengths, truncated
    answers, answers of 0 tokens, and answers without a reward. The method is copied, and itself stays as it is.

    Args:
        method ([`LengthControl`]): An instance, with the hyper-parameters of a run.
        target_length (`int`): Target in tokens, if the method has one.
        max_completion_length (`int`): Generation limit in tokens.
        num_generations (`int`): Completions of each prompt, at least 2.
        columns (`Mapping[str, Sequence]`): Some values of each column of the data set that the method reads.

    Raises:
        `ValueError`: At the first fault; the message names the method, the hook or the field, and the remedy.

    Example:
        >>> from leash_trl.length_control.kimi import Kimi
        >>> check_length_control(Kimi(weight=0.2))
    """
    if not isinstance(method, LengthControl):
        raise ValueError(f"method is {method!r}, but must be an instance of a subclass of LengthControl")
    has_target = method.target_use != "none"
    method.check(target_length if has_target else None, max_completion_length)
    columns = _needed_columns(method, columns or {})
    cases = edge_cases(method, target_length, max_completion_length, num_generations, columns)
    untrained = copy.deepcopy(method)
    _check_scores(untrained, cases)
    trained = _check_training(untrained, cases)
    _check_scores(trained, cases)
    _check_declarations(untrained, cases[MIXED], target_length)
    _check_evaluation(untrained, cases, target_length)
    _check_saving(untrained, cases)


def _needed_columns(method: LengthControl, columns: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[Any]]:
    """Returns the values of the columns that the method reads, except for the targets, which the batches have."""
    names = method.columns_read()
    if isinstance(names, str):
        raise ValueError(f"columns_read of length_control {method.name!r} returned {names!r}; return a tuple of names")
    needed = {}
    for name in names:
        if name == TARGET_COLUMN:
            continue
        if not columns.get(name):
            raise ValueError(
                f"columns is {columns!r}, but length_control {method.name!r} reads {name!r}; give some of its values, "
                f"such as {{{name!r}: ['low', 'high']}}"
            )
        needed[name] = columns[name]
    method.check_columns(needed)
    return needed


@contextmanager
def _calling(method: LengthControl, hook: str, case: str) -> Iterator[None]:
    """Turns what a hook raises into a message of one line, which names the hook and the batch."""
    try:
        yield
    except TrainingError as error:  # a fault that the base class has noticed
        raise ValueError(f"{error}; here in a batch of {case}") from error
    except Exception as error:
        message = " ".join(str(error).split())
        raise ValueError(
            f"{hook} of length_control {method.name!r} raised {type(error).__name__} ({message}) in a batch of "
            f"{case}; let it accept every batch, with the columns that columns_read names"
        ) from error


def _score(method: LengthControl, rollouts: Rollouts, rule: AdvantageRule, case: str) -> Score:
    with _calling(method, "score", case):
        return method.score(rollouts, rule)


def _update(method: LengthControl, batches: Sequence[Rollouts], case: str) -> None:
    """Does what a trainer does in a policy update: scores batches, shows them to the method, and ends the update."""
    for rollouts in batches:
        _score(method, rollouts, RULES[0], case)
        with _calling(method, "observe", case):
            method.observe(rollouts)
    with _calling(method, "step", case):
        method.step()


def _saved(method: LengthControl) -> str:
    """Returns the state of a method as a checkpoint has it; raises `ValueError` if a checkpoint cannot hold it."""
    try:
        return json.dumps(method.state_dict())
    except TypeError as error:
        raise ValueError(
            f"state of length_control {method.name!r} cannot be saved ({error}); use numbers, texts, lists, mappings"
        ) from error


def _same(first: Any, second: Any) -> bool:
    """Returns whether two values are equal, tensors up to rounding; NaN equals NaN."""
    if isinstance(first, torch.Tensor):
        return torch.allclose(first.double(), second.double(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    return bool(first == second)


def _same_scores(first: Score, second: Score) -> bool:
    return all(_same(getattr(first, part.name), getattr(second, part.name)) for part in fields(Score))


def _check_scores(method: LengthControl, cases: Mapping[str, Rollouts]) -> None:
    """Raises `ValueError` if rewards or advantages of the method in its current state are not what a trainer needs."""
    for case, rollouts in cases.items():
        for rule in RULES:
            seen = copy.deepcopy(rollouts)
            score = _score(method, seen, rule, case)
            _check_unchanged(method, rollouts, seen)
            _check_values(method, score, rollouts, case)
            _check_advantages(method, score, rollouts, rule, case)
            if not _same_scores(score, _score(method, rollouts, rule, case)):
                raise ValueError(
                    f"score of length_control {method.name!r} differs between two calls on the same batch; draw no "
                    "random numbers, and change state only in observe and step"
                )
    for case in (MIXED, SOME_WITHOUT_REWARD):
        for rule in RULES:
            _check_independence(method, cases[case], rule, case)
        _check_single_completions(method, cases[case], case)


def _check_unchanged(method: LengthControl, rollouts: Rollouts, seen: Rollouts) -> None:
    for part in fields(Rollouts):
        if not _same(getattr(rollouts, part.name), getattr(seen, part.name)):
            raise ValueError(
                f"score of length_control {method.name!r} changed rollouts.{part.name} in place; work on a clone()"
            )


def _check_values(method: LengthControl, score: Any, rollouts: Rollouts, case: str) -> None:
    """Raises `ValueError` if a score has not one number for each completion that has a reward."""
    if not isinstance(score, Score):
        raise ValueError(f"score of length_control {method.name!r} returned a {type(score).__name__}; return a Score")
    shape = tuple(rollouts.lengths.shape)
    for part in fields(Score):
        values = getattr(score, part.name)
        if not isinstance(values, torch.Tensor) or tuple(values.shape) != shape or not values.is_floating_point():
            raise ValueError(
                f"{part.name} in the score of length_control {method.name!r} has the type {type(values).__name__} and "
                f"the shape {getattr(values, 'shape', None)}; let it be a tensor of floats of shape {shape}"
            )
    has_reward = rollouts.is_scorable
    for name in ("base", "shaped", "penalty"):
        if not getattr(score, name)[has_reward].isfinite().all():
            raise ValueError(
                f"{name} in the score of length_control {method.name!r} is not finite in a batch of {case}; return a "
                "finite number for each completion that has a reward"
            )
    for name in ("base", "shaped"):
        if not getattr(score, name)[~has_reward].isnan().all():
            raise ValueError(
                f"{name} in the score of length_control {method.name!r} is a number where a completion has no reward, "
                f"in a batch of {case}; leave NaN there"
            )


def _check_advantages(method: LengthControl, score: Score, rollouts: Rollouts, rule: AdvantageRule, case: str) -> None:
    """Raises `ValueError` if advantages are not those that the class promises."""
    advantages = score.advantages
    if not advantages.isfinite().all() or (advantages[~rollouts.is_scorable] != 0).any():
        raise ValueError(
            f"advantages of length_control {method.name!r} are not finite, or not 0 where a completion has no reward, "
            f"in a batch of {case}; mask them, as with nan_to_num(nan=0.0)"
        )
    if not method.own_advantages and not _same(advantages, rule(score.shaped, rollouts.num_generations)):
        raise ValueError(
            f"own_advantages of length_control {method.name!r} is False, but its advantages are not those of the "
            "shaped rewards; set it to 'group', 'batch' or True"
        )
    means = rollouts.by_group(advantages).mean(dim=1)
    farthest = means.abs().max().item()
    if method.own_advantages in ("group", "batch") and farthest > TOLERANCE:
        raise ValueError(
            f"own_advantages of length_control {method.name!r} is {method.own_advantages!r}, but the mean of a prompt "
            f"is {farthest:.3g} away from 0; set it to True"
        )


def _check_independence(method: LengthControl, rollouts: Rollouts, rule: AdvantageRule, case: str) -> None:
    """Raises `ValueError` if other prompts of a batch have an effect that the class does not declare."""
    rows_PG = rollouts.by_group(torch.arange(len(rollouts.lengths)))
    together = _score(method, rollouts, rule, case)
    reversed_rows = rows_PG.flip(dims=[0]).flatten()  # the completions of a prompt stay in their order
    of_reversed = _score(method, selected(rollouts, reversed_rows), rule, case)
    if not _same_scores(of_reversed, selected(together, reversed_rows)):
        raise ValueError(
            f"score of length_control {method.name!r} depends on the order of the prompts; compare completions with "
            "rollouts.by_group, which has one row for each prompt"
        )
    if method.needs_group == "batch":
        return
    alone = concatenated([_score(method, selected(rollouts, rows), rule, case) for rows in rows_PG])
    if not _same(together.shaped, alone.shaped):
        raise ValueError(
            f"shaped_rewards of length_control {method.name!r} depends on the other prompts of a batch; compare only "
            "within a prompt, with rollouts.by_group, or set needs_group to 'batch'"
        )
    if method.own_advantages == "group" and not _same(together.advantages, alone.advantages):
        raise ValueError(
            f"own_advantages of length_control {method.name!r} is 'group', but the other prompts of a batch have an "
            "effect on them; compare only within a prompt, or set it to 'batch'"
        )


def _check_single_completions(method: LengthControl, rollouts: Rollouts, case: str) -> None:
    """Raises `ValueError` if the other completions of a prompt have an effect that the class does not declare."""
    if method.needs_group:
        return
    shaped_alone = []
    with _calling(method, "shaped_rewards", f"{case}, each alone"):
        for row in range(len(rollouts.lengths)):
            completion = replace(selected(rollouts, torch.tensor([row])), num_generations=1)
            shaped_alone.append(method.shaped_rewards(completion))
    if not _same(torch.cat(shaped_alone), method.shaped_rewards(rollouts)):
        raise ValueError(
            f"shaped_rewards of length_control {method.name!r} depends on the other completions of a prompt, but "
            "needs_group is False; set it to True"
        )


def _check_training(method: LengthControl, cases: Mapping[str, Rollouts]) -> LengthControl:
    """Returns a copy of the method after some updates.

    Raises:
        `ValueError`: If an update fails, changes other instances, or leaves what cannot be logged.
    """
    before = _next_update(method, cases[MIXED])
    trained = copy.deepcopy(method)
    for case, rollouts in cases.items():
        _update(trained, [rollouts], case)
        _update(trained, [], f"{case}, used for a second update")
    _update(trained, [cases[MIXED], cases[RIGHT]], "right and wrong answers, and of another in the same update")
    if _next_update(method, cases[MIXED]) != before:
        raise ValueError(
            f"state of length_control {method.name!r} changes when another instance is trained; create it with "
            "state_field, not in the class"
        )
    for name, value in trained.statistics().items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(
                f"statistics of length_control {method.name!r} has {value!r} for {name!r}; return Python numbers, NaN "
                "for what is not known"
            )
    return trained


def _check_declarations(method: LengthControl, rollouts: Rollouts, target_length: int) -> None:
    """Raises `ValueError` if the method reads correctness or targets that its class says it does not need."""
    expected = _next_update(method, rollouts)
    flipped = replace(rollouts, correctness_rewards=-rollouts.task_rewards)
    if not method.uses_correctness and _next_update(method, flipped) != expected:
        raise ValueError(
            f"uses_correctness of length_control {method.name!r} is False, but it reads which answers are correct; "
            "set it to True, since this is not known in every run, or use rollouts.task_rewards"
        )
    with_target = replace(rollouts, target_lengths=torch.full_like(rollouts.target_lengths, target_length))
    if method.target_use == "none" and _next_update(method, with_target) != expected:
        raise ValueError(
            f"target_use of length_control {method.name!r} is 'none', but it reads rollouts.target_lengths, which are "
            "NaN in a run without a target; set it to 'required' or 'optional'"
        )


def _next_update(method: LengthControl, rollouts: Rollouts) -> list[str]:
    """Returns what a method does in an update on a batch, as texts to compare exactly: its log and its scores before
    the update, and its state after it."""
    twin = copy.deepcopy(method)
    score = _score(twin, rollouts, RULES[0], MIXED)
    scores = [getattr(score, part.name).tolist() for part in fields(Score)]
    statistics = twin.statistics()
    _update(twin, [rollouts], MIXED)
    return [str(statistics), str(scores), _saved(twin)]


def _check_evaluation(method: LengthControl, cases: Mapping[str, Rollouts], target_length: int) -> None:
    """Raises `ValueError` if what evaluation calls changes the state, or what training does next."""
    evaluated = copy.deepcopy(method)
    rollouts = cases[WRONG]
    score = _score(method, rollouts, RULES[0], WRONG)
    limit = rollouts.max_completion_length
    hooks: dict[str, Callable[[], Any]] = {
        "target_for": lambda: evaluated.target_for(0, target_length),
        "prompt_suffix": lambda: evaluated.prompt_suffix(target_length, limit),
        "generation_cap": lambda: evaluated.generation_cap(target_length),
        "score": lambda: evaluated.score(rollouts, RULES[0]),
        "statistics": lambda: length_statistics(evaluated, rollouts, score),
    }
    for hook, call in hooks.items():
        before = _saved(evaluated)
        with _calling(method, hook, WRONG):
            call()
        if _saved(evaluated) != before:
            raise ValueError(
                f"{hook} of length_control {method.name!r} changes its state, also in evaluation; change it only in "
                "observe and step"
            )
    plain = copy.deepcopy(method)
    interrupted = copy.deepcopy(method)
    for instance in (plain, interrupted):
        _score(instance, cases[MIXED], RULES[0], MIXED)
    _score(interrupted, rollouts, RULES[0], WRONG)  # evaluation comes between a batch and its update
    for instance in (plain, interrupted):
        instance.observe(cases[MIXED])
        instance.step()
    if _next_update(interrupted, cases[MIXED]) != _next_update(plain, cases[MIXED]):
        raise ValueError(
            f"score of length_control {method.name!r} leaves something behind that the update uses, also in "
            "evaluation; take it from the rollouts that observe receives"
        )


def _check_saving(method: LengthControl, cases: Mapping[str, Rollouts]) -> None:
    """Raises `ValueError` if a restored method does not go on as the saved one does."""
    trained = copy.deepcopy(method)
    _update(trained, [cases[MIXED]], MIXED)
    trained.observe(cases[RIGHT])  # mixed precision skips the update that should follow
    for moment in ("before step", "after step"):
        restored = copy.deepcopy(method)
        restored.load_state_dict(json.loads(_saved(trained)))
        if _next_update(restored, cases[MIXED]) != _next_update(trained, cases[MIXED]):
            differing = []
            for name, value in vars(trained).items():
                if repr(value) != repr(vars(restored).get(name)):
                    differing.append(name)
            raise ValueError(
                f"state of length_control {method.name!r} was saved {moment}, but after it is restored, "
                f"{', '.join(differing)} differs; declare with state_field what observe and step change"
            )
        trained.step()
