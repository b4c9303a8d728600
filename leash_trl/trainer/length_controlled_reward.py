"""`LengthControlledReward`: task rewards and a method as one reward function, for any TRL trainer.

It shapes; `callbacks.LengthControlCallback` says what the run is like, and moves the method. A reward function may be
pickled into another process, so what both sides must know passes through [`SharedState`].
"""

import math
import os
import pickle
import shutil
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from leash_trl.length_control.acting import cannot_act
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import find_method
from leash_trl.length_control.rollouts import Rollouts, Score, weighted_task_rewards
from leash_trl.length_control.statistics import length_statistics, table_columns
from leash_trl.length_control.targets import TARGET_COLUMN, check_target, column_values, rows_with_targets


RULE = AdvantageRule()


@dataclass(frozen=True)
class RunSettings:
    """What the reward must know of a run.

    Args:
        num_generations (`int`), num_generations_eval (`int`): Completions per prompt in training and in evaluation.
        max_completion_length (`float`): Generation limit in tokens; infinite for no limit.
        end_ids (`frozenset[int]`): Tokens that end a completion.
        advantage (`str`): What the trainer makes of rewards: `"centred"` is their distance to the group's mean,
            `"leave_one_out"` that to the mean of the others; `None` divides by a deviation.
    """

    num_generations: int
    num_generations_eval: int
    max_completion_length: float
    end_ids: frozenset[int]
    advantage: str | None = None


@dataclass(frozen=True)
class Scored:
    """Completions of one call, how many dual steps the method had done then, and whether a copy scored them."""

    rollouts: Rollouts
    version: int
    is_from_copy: bool


class SharedState:
    """A temporary folder in which copies of a reward, in other processes, follow the one that owns the method.

    The owner writes the method's `state`; copies write what they `scored`. Every file appears as a whole, so that
    nobody reads half of one. The folder goes with the object that made it, at the end of its process at the latest.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="length_control_"))
        self._seen = (0, 0)
        weakref.finalize(self, _remove, self.folder, os.getpid())

    def news(self) -> Any:
        """The state if it was replaced since the last call, else `None`."""
        file = (self.folder / "state").stat()
        if self._seen == (file.st_mtime_ns, file.st_ino):
            return None
        self._seen = (file.st_mtime_ns, file.st_ino)
        return pickle.loads((self.folder / "state").read_bytes())

    def take(self) -> list[Scored]:
        """What copies have written since the last call, in the order in which they did."""
        files = sorted(self.folder.glob("scored-*"))
        taken = [pickle.loads(file.read_bytes()) for file in files]
        for file in files:
            file.unlink()
        return taken

    def write(self, name: str, content: Any) -> None:
        """Writes a file, over the one of this name."""
        part = self.folder / f"part-{os.getpid()}"
        part.write_bytes(pickle.dumps(content))
        part.replace(self.folder / name)


def _remove(folder: Path, owner: int) -> None:
    """Removes a folder in which another process may still be writing; a fork of its owner leaves it."""
    if os.getpid() == owner:
        shutil.rmtree(folder.rename(f"{folder}.gone"), ignore_errors=True)


class LengthControlledReward:
    """Task rewards with a method's length control, as one reward function for GRPO, RLOO and asynchronous GRPO of TRL.

    The trainer needs [`~leash_trl.LengthControlCallback`] too, which moves the method, and no other reward function.
    Rewards are those of [`~leash_trl.LeashGRPOTrainer`]; advantages are the trainer's, with its epsilon. A method with
    advantages of its own gives them as rewards where the trainer divides by no deviation: GRPO with `scale_rewards:
    none`, and RLOO. Lengths count `completion_ids`, which in GRPO and RLOO hold the output of tools.

    Args:
        reward_funcs (`Callable` or `list[Callable]`): Functions that TRL could call; no reward models, no async
            functions. All other arguments of the trainer reach them, `trainer_state`, `log_metric`, `log_extra` and
            `environments` included.
        method ([`~leash_trl.LengthControl`] or `str`): The method, or its name for one with its own defaults.
        target_length (`int`): Target in tokens; a column `target_length` of the data set overrides it per prompt.
        weights (`list[float]`): Weights of the functions, dimensionless, by default 1.

    Raises:
        `ValueError`: If there is not one weight for each function.

    Example:
        ```python
        reward = LengthControlledReward(math_reward, "leash", target_length=4096)
        trainer = RLOOTrainer(model, reward_funcs=reward, callbacks=[LengthControlCallback(reward)], ...)
        ```
    """

    def __init__(
        self,
        reward_funcs: Callable[..., Any] | Sequence[Callable[..., Any]],
        method: LengthControl | str,
        target_length: int | None = None,
        weights: Sequence[float] | None = None,
    ):
        self.reward_funcs = [reward_funcs] if callable(reward_funcs) else reward_funcs
        self.method = find_method(method)() if isinstance(method, str) else method
        self.target_length = target_length
        self.weights = torch.tensor(weights or [1.0] * len(self.reward_funcs))
        self.settings: RunSettings | None = None
        self.version = 0
        self.__name__ = f"{self.method.name}_reward"  # in TRL's log
        self._scored: list[Scored] = []
        self._shared: SharedState | None = None
        self._is_copy = False
        if len(self.weights) != len(self.reward_funcs):
            raise ValueError(f"weights are {weights}, but must be one for each of {len(self.reward_funcs)} functions")

    def begin(self, settings: RunSettings, num_processes: int) -> None:
        """Takes the settings of a run; warns if the method cannot act, or only in part.

        Raises:
            `ValueError`: If rewards cannot tell this trainer what the method does, or the target does not fit.
        """
        if settings == self.settings:
            return
        self.settings, limit = settings, settings.max_completion_length
        if (reason := unfit(self.method, settings.advantage, num_processes)) is not None:
            raise ValueError(f"{self.method.name} {reason}; or train with LeashGRPOTrainer")
        check_target(self.target_length, self.method, limit, settings.num_generations)
        problem = cannot_act(self.method, self.target_length, limit, settings.num_generations)
        if self.method.prompt_suffix(1.0, limit) or self.method.generation_cap(1.0) is not None:
            problem = (
                f"{self.method.name} also writes into prompts or cuts generation, which a reward function cannot: say "
                "its budget in your prompts and in max_completion_length, or train with LeashGRPOTrainer"
            )
        if problem is not None:
            warnings.warn(problem, stacklevel=2)
        self.publish(self.version)

    def publish(self, version: int) -> None:
        """Shows copies the method's state after `version` dual steps."""
        self.version = version
        if self._shared is not None:
            self._shared.write("state", (version, self.method.state_dict(), self.settings))

    def take(self) -> list[Scored]:
        """What was scored since the last call, here and by copies."""
        scored, self._scored = self._scored, []
        return scored if self._shared is None else scored + self._shared.take()

    def __getstate__(self) -> dict[str, Any]:
        if self._shared is None:
            self._shared = SharedState()
            self.publish(self.version)
        return {**vars(self), "_scored": [], "_is_copy": True}

    def __call__(self, prompts, completions, completion_ids, **columns) -> list[float | None]:
        """Rewards, one per completion; `None` where no function gave one.

        Raises:
            `ValueError`: If the trainer has no [`~leash_trl.LengthControlCallback`], or the method needs whole groups
                and the call has none.
        """
        if self._is_copy and self._shared and (news := self._shared.news()) is not None:
            self.version, state, self.settings = news
            self.method.load_state_dict(state)
        if self.settings is None:
            raise ValueError("callbacks has no LengthControlCallback(reward), so the method would never move; add it")
        given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
        rewards = [function(**given) for function in self.reward_funcs]
        rollouts = self._rollouts(given, rewards, self.settings)
        score = self.method.score(rollouts, RULE)
        scored = Scored(rollouts, self.version, self._is_copy)
        if self._is_copy and self._shared:
            self._shared.write(f"scored-{time.time_ns()}-{os.getpid()}", scored)
        else:
            self._scored.append(scored)
        if log_metric := columns.get("log_metric"):
            for key, value in logged(self.method, rollouts, score, self.version).items():
                log_metric(key, value)
            for function, values in zip(self.reward_funcs, rewards, strict=True):
                if known := [value for value in values if value is not None]:
                    log_metric(f"rewards/{getattr(function, '__name__', type(function).__name__)}", fmean(known))
        if log_extra := columns.get("log_extra"):
            for name, values in table_columns(rollouts, score).items():
                log_extra(name, values.tolist())
        returned = score.shaped
        if self.method.own_advantages:
            returned = advantages_as_rewards(score, rollouts, self.settings.advantage == "leave_one_out")
        return [None if math.isnan(reward) else reward for reward in returned.tolist()]

    def _rollouts(self, given: dict[str, Any], rewards: list[list[float | None]], settings: RunSettings) -> Rollouts:
        names = {"images", "image", TARGET_COLUMN, *self.method.columns_read()} & given.keys()
        columns = {"prompt": given["prompts"], **{name: given[name] for name in names}}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        limit = settings.max_completion_length
        _, questions, targets = rows_with_targets(rows, self.method, None, self.target_length, limit)
        table = [[math.nan if reward is None else reward for reward in row] for row in rewards]
        return Rollouts(
            task_rewards=weighted_task_rewards(torch.tensor(table, dtype=torch.float64).T, self.weights),
            lengths=torch.tensor([len(ids) for ids in given["completion_ids"]]),
            target_lengths=torch.tensor(targets, dtype=torch.float64),
            is_truncated=torch.tensor([not {*ids[-1:]} & settings.end_ids for ids in given["completion_ids"]]),
            questions=torch.tensor(questions),
            num_generations=self._group_size(questions, settings),
            max_completion_length=limit,
            columns=column_values(rows, self.method.columns_read(), self.target_length),
        )

    def _group_size(self, questions: list[int], settings: RunSettings) -> int:
        for size in (settings.num_generations, settings.num_generations_eval):
            groups = [questions[start : start + size] for start in range(0, len(questions), size)]
            if all(group == [group[0]] * size for group in groups):
                return size
        if self.method.needs_group or self.method.own_advantages:
            raise ValueError(
                f"{self.method.name} needs whole groups, but a call has parts of some; set per_device_eval_batch_size "
                f"to a multiple of num_generations={settings.num_generations}, or of num_generations_eval"
            )
        return 1


def logged(method: LengthControl, rollouts: Rollouts, score: Score, version: int) -> dict[str, float]:
    """What is known of some completions, by the keys of [`~leash_trl.LeashGRPOTrainer`]'s log, and `version`, the dual
    steps that the method had done."""
    statistics = {**length_statistics(method, rollouts, score), "version": float(version)}
    return {f"leash/{key}": value for key, value in statistics.items() if not math.isnan(value)}


def advantages_as_rewards(score: Score, rollouts: Rollouts, is_leave_one_out: bool) -> torch.Tensor:
    """`torch.Tensor` of shape `(N,)`: Rewards from which a trainer that subtracts a mean gets the method's advantages,
    whose own mean is 0; NaN where unscorable."""
    known_PG = rollouts.by_group(~torch.isnan(score.shaped))
    rewards_PG = rollouts.by_group(score.advantages).where(known_PG, torch.nan)
    if is_leave_one_out:  # the distance to the mean of the others is n / (n - 1) times that to the mean of all
        count_P1 = known_PG.sum(dim=1, keepdim=True)
        rewards_PG = rewards_PG * (count_P1 - 1) / count_P1
    return rewards_PG.flatten()


def unfit(method: LengthControl, advantage: str | None, num_processes: int) -> str | None:
    """Why the rewards of a method cannot tell a trainer what it does; `None` if they can.

    Args:
        method ([`~leash_trl.LengthControl`]): The method.
        advantage (`str`): What the trainer makes of rewards, as in [`RunSettings`].
        num_processes (`int`): Processes that train, each of which sees its own completions.
    """
    if method.own_advantages is True:
        return "has advantages whose mean over a prompt is not 0, which a trainer makes of any rewards"
    if method.own_advantages and advantage is None:
        return "has advantages of its own: set scale_rewards='none' in GRPO, normalize_advantages=False in RLOO"
    if method.own_advantages == "batch" and num_processes > 1:
        return f"standardises advantages over all {num_processes} processes, of which a reward function sees one"
    return None
