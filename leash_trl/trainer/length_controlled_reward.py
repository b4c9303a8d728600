"""`LengthControlledReward`: task rewards and a method as one reward function, for any TRL trainer.

It shapes; `callbacks.LengthControlCallback` says what the run is like, and moves the method. A reward function may be
pickled into another process, so what both sides must know passes through [`SharedState`].
"""

import dataclasses
import json
import math
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import find_method
from leash_trl.length_control.rollouts import Rollouts, Score, weighted_task_rewards
from leash_trl.length_control.statistics import length_statistics, table_columns
from leash_trl.length_control.targets import TARGET_COLUMN, column_values, own_target, question_of


RULE = AdvantageRule()
# what a scored call holds of each completion
ROW_TYPES = {
    "task_rewards": torch.float64,
    "lengths": torch.int64,
    "target_lengths": torch.float64,
    "is_truncated": torch.bool,
    "questions": torch.int64,
}
Scored = dict[str, Any]  # one scored call, in types of JSON


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """What the reward must know of the run.

    Args:
        num_generations (`int`), num_generations_eval (`int`):
            Completions per prompt, in training and in evaluation.
        max_completion_length (`float`):
            Generation limit in tokens; infinite for no limit.
        end_ids (`list[int]`):
            Tokens that end a completion.
        advantage (`str`, *optional*):
            What the trainer makes of rewards: `"centred"` is their distance to the group's mean, `"leave_one_out"`
            that to the mean of the others; `None` divides by a deviation.
    """

    num_generations: int
    num_generations_eval: int
    max_completion_length: float
    end_ids: list[int]
    advantage: Literal["centred", "leave_one_out"] | None = None


class SharedState:
    """A temporary folder through which copies of a reward in other processes follow the one that owns the method.

    The owner replaces `state.json` as a whole, so that no copy reads half of it; copies append lines to
    `scored.jsonl`. Who made the folder removes it when it is done; a pickled copy does not.
    """

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="length_control_")
        self._seen = self._read = 0
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def publish(self, content: dict[str, Any]) -> None:
        """Replaces the state."""
        part = Path(self.folder, "state.json.part")
        part.write_text(json.dumps(content), encoding="utf-8")
        os.replace(part, Path(self.folder, "state.json"))

    def news(self) -> dict[str, Any] | None:
        """The state if it has been replaced since the last call."""
        path = Path(self.folder, "state.json")
        if (stamp := path.stat().st_mtime_ns) == self._seen:
            return None
        self._seen = stamp
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content

    def append(self, scored: Scored) -> None:
        """Tells the owner of a scored call."""
        with open(Path(self.folder, "scored.jsonl"), "ab") as file:
            file.write(json.dumps(scored).encode() + b"\n")

    def take(self) -> list[Scored]:
        """What copies have scored since the last call; a line that is still being written waits."""
        path = Path(self.folder, "scored.jsonl")
        if not path.exists():
            return []
        with open(path, "rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        self._read += sum(map(len, whole))
        return [json.loads(line) for line in whole]


class LengthControlledReward:
    """Task rewards with a method's length control, as one reward function for GRPO, RLOO and asynchronous GRPO of TRL.

    The trainer needs [`~leash_trl.LengthControlCallback`] too, which moves the method, and no other reward function.
    Rewards are those of [`~leash_trl.LeashGRPOTrainer`]; advantages are the trainer's, with its epsilon. A method with
    advantages of its own gives them as rewards where the trainer divides by no deviation: GRPO with `scale_rewards:
    none`, and RLOO. Lengths count `completion_ids`, which in GRPO and RLOO hold the output of tools.

    Args:
        reward_funcs (`Callable` or `list[Callable]`):
            Functions that TRL could call; no reward models, no async functions. All other arguments of the trainer
            reach them, `trainer_state`, `log_metric`, `log_extra` and `environments` included.
        method ([`~leash_trl.LengthControl`] or `str`):
            The method, or its name for one with its own defaults.
        target_length (`int`, *optional*):
            Target in tokens; a column `target_length` of the data set overrides it per prompt.
        weights (`list[float]`, *optional*):
            Weights of the functions, dimensionless, by default 1.

    Raises:
        `ValueError`: If the method needs a target and has none, or cannot be told by rewards.

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
        self.reward_funcs = [reward_funcs] if callable(reward_funcs) else list(reward_funcs)
        self.weights = list(weights or [1.0] * len(self.reward_funcs))
        self.method = find_method(method)() if isinstance(method, str) else method
        self.target_length = target_length
        self.settings: RunSettings | None = None
        self.version = 0
        self._scored: list[Scored] = []
        self._shared: SharedState | None = None
        self._is_copy = False
        self.__name__ = f"{self.method.name}_reward"  # in TRL's log
        if target_length is None and self.method.target_use == "required":
            raise ValueError(f"target_length is None, but {self.method.name} needs a target in tokens, such as 4096")
        refuse_untold(self.method)
        if self.method.prompt_suffix(1.0) or self.method.generation_cap(1.0) is not None:
            warnings.warn(
                f"{self.method.name} also writes into prompts or cuts generation, which a reward function cannot: put "
                "its budget into your prompts and max_completion_length, or train with LeashGRPOTrainer",
                stacklevel=2,
            )

    def begin(self, settings: RunSettings, num_processes: int) -> None:
        """Takes the settings of a run, or raises `ValueError` if its trainer cannot carry the method."""
        if self.method.own_advantages:
            refuse_own_advantages(self.method, settings.advantage, num_processes)
        self.method.check(self.target_length, settings.max_completion_length, settings.num_generations)
        self.settings = settings
        self.publish(self.version)

    def publish(self, version: int) -> None:
        """Shows copies the method's state after `version` dual steps."""
        self.version = version
        if self._shared is not None:
            settings = None if self.settings is None else dataclasses.asdict(self.settings)
            self._shared.publish({"version": version, "state": self.method.state_dict(), "settings": settings})

    def take(self) -> list[Scored]:
        """What was scored since the last call, here and by copies."""
        scored, self._scored = self._scored, []
        return scored if self._shared is None else scored + self._shared.take()

    def __getstate__(self) -> dict[str, Any]:
        if self._shared is None:
            self._shared = SharedState()
            self.publish(self.version)
        return {**vars(self), "_scored": [], "_is_copy": True}

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        **columns: Any,
    ) -> list[float | None]:
        """Rewards for the trainer, one per completion; `None` where no function gave one.

        Raises:
            `ValueError`: If the trainer has no [`~leash_trl.LengthControlCallback`], or the method needs whole groups
                and the call has none.
        """
        if self._is_copy:
            self._follow_owner()
        if self.settings is None:
            raise ValueError("callbacks has no LengthControlCallback(reward), so lambda would never move; add it")
        rewards = [
            function(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
            for function in self.reward_funcs
        ]
        rollouts = self._rollouts(prompts, completion_ids, rewards, columns)
        score = self.method.score(rollouts, RULE)
        self._note(rollouts)
        if "log_metric" in columns:
            for key, value in logged(self.method, rollouts, score, self.version).items():
                columns["log_metric"](key, value)
        if "log_extra" in columns:
            for name, values in table_columns(rollouts, score).items():
                columns["log_extra"](name, values.tolist())
        returned = score.shaped
        if self.method.own_advantages:
            returned = _rewards_for(score, rollouts.num_generations, self.settings.advantage == "leave_one_out")
        return [None if math.isnan(value) else value for value in returned.tolist()]

    def _follow_owner(self) -> None:
        if self._shared is not None and (news := self._shared.news()) is not None:
            self.method.load_state_dict(news["state"])
            self.version = news["version"]
            self.settings = None if news["settings"] is None else RunSettings(**news["settings"])

    def _rollouts(
        self,
        prompts: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        rewards: Sequence[Sequence[float | None]],
        columns: dict[str, Any],
    ) -> Rollouts:
        assert self.settings is not None
        names = {"images", "image", TARGET_COLUMN, *self.method.columns_read()} & columns.keys()
        rows = [{"prompt": prompt, **{n: columns[n][i] for n in names}} for i, prompt in enumerate(prompts)]
        questions = [question_of(row) for row in rows]
        targets = [
            own_target(row) or self.method.target_for(question, self.target_length)
            for row, question in zip(rows, questions, strict=True)
        ]
        by_function = [[math.nan if reward is None else reward for reward in row] for row in rewards]
        return Rollouts(
            task_rewards=weighted_task_rewards(
                torch.tensor(by_function, dtype=torch.float64).T, torch.tensor(self.weights)
            ),
            lengths=torch.tensor([len(ids) for ids in completion_ids]),
            target_lengths=torch.tensor(
                [math.nan if target is None else target for target in targets], dtype=torch.float64
            ),
            is_truncated=torch.tensor([not ids or ids[-1] not in self.settings.end_ids for ids in completion_ids]),
            questions=torch.tensor(questions),
            num_generations=self._group_size(questions),
            max_completion_length=self.settings.max_completion_length,
            columns=column_values(rows, self.method.columns_read(), self.target_length),
        )

    def _group_size(self, questions: list[int]) -> int:
        """Completions per prompt in this call; 1 where groups are split, which only some methods mind."""
        assert self.settings is not None
        for size in (self.settings.num_generations, self.settings.num_generations_eval):
            groups = [questions[start : start + size] for start in range(0, len(questions), size)]
            if all(group == [group[0]] * size for group in groups):
                return size
        if self.method.needs_group or self.method.own_advantages:
            raise ValueError(
                f"{self.method.name} needs whole groups of num_generations={self.settings.num_generations} in each "
                f"call, but one has {len(questions)} completions; set per_device_eval_batch_size to a multiple"
            )
        return 1

    def _note(self, rollouts: Rollouts) -> None:
        scored = {
            "version": self.version,
            "is_from_copy": self._is_copy,
            **{name: getattr(rollouts, name).tolist() for name in ROW_TYPES},
            "num_generations": rollouts.num_generations,
            "max_completion_length": rollouts.max_completion_length,
            "columns": dict(rollouts.columns),
        }
        if self._is_copy and self._shared is not None:
            self._shared.append(scored)
        else:
            self._scored.append(scored)


def pooled(parts: Sequence[Scored]) -> Rollouts:
    """The completions of several scored calls as one batch."""

    def joined(rows: Sequence[list[Any]]) -> list[Any]:
        return [value for row in rows for value in row]

    return Rollouts(
        **{name: torch.tensor(joined([part[name] for part in parts]), dtype=kind) for name, kind in ROW_TYPES.items()},
        num_generations=min(part["num_generations"] for part in parts),
        max_completion_length=parts[0]["max_completion_length"],
        columns={name: joined([part["columns"][name] for part in parts]) for name in parts[0]["columns"]},
    )


def logged(method: LengthControl, rollouts: Rollouts, score: Score, version: int) -> dict[str, float]:
    """What is known of some completions, by the keys of [`~leash_trl.LeashGRPOTrainer`]'s log, and the `version` of
    the method's state, in policy updates."""
    statistics = {**length_statistics(method, rollouts, score), "version": float(version)}
    return {f"leash/{key}": value for key, value in statistics.items() if not math.isnan(value)}


def _rewards_for(score: Score, num_generations: int, is_leave_one_out: bool) -> torch.Tensor:
    """Rewards of which a trainer that subtracts a mean makes the method's advantages, whose own mean is 0."""
    known_PG = ~torch.isnan(score.shaped).view(-1, num_generations)
    rewards_PG = score.advantages.view(-1, num_generations).where(known_PG, torch.nan)
    if is_leave_one_out:  # the distance to the mean of the others is n / (n - 1) times that to the mean of all
        count_P1 = known_PG.sum(dim=1, keepdim=True)
        rewards_PG = rewards_PG * (count_P1 - 1) / count_P1
    return rewards_PG.flatten()


# Two prompts, one half solved and one hard.
EXAMPLE = Rollouts(
    task_rewards=torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64),
    lengths=torch.tensor([9, 700, 40, 9000, 20000, 60, 5000, 200]),
    target_lengths=torch.full((8,), 500.0, dtype=torch.float64),
    is_truncated=torch.zeros(8, dtype=torch.bool),
    questions=torch.tensor([0] * 4 + [1] * 4),
    num_generations=4,
    max_completion_length=32768,
)


def _example_advantages(method: LengthControl, rows: slice) -> torch.Tensor:
    rollouts = EXAMPLE.select(torch.arange(8)[rows])
    return method.score(rollouts, RULE).advantages


def refuse_untold(method: LengthControl) -> None:
    """Raises `ValueError` if rewards cannot tell a trainer what the method does, whatever the trainer."""
    columns = {name: [None] * 8 for name in method.columns_read()}
    rollouts = dataclasses.replace(EXAMPLE, columns=columns)
    score = method.score(rollouts, RULE)
    reason = None
    if score.cut is not None:
        reason = "cuts completions and has them graded again"
    elif score.keep is not None:
        reason = "leaves completions out of the loss"
    elif method.own_advantages and rollouts.by_group(score.advantages).mean(dim=1).abs().max() > 1e-9:
        reason = "has advantages of its own, whose mean over a prompt is not 0"
    if reason is not None:
        raise ValueError(f"{method.name} {reason}, which a reward function cannot; train with LeashGRPOTrainer")


def refuse_own_advantages(method: LengthControl, advantage: str | None, num_processes: int) -> None:
    """Raises `ValueError` if this trainer would turn the method's advantages into others."""
    if advantage is None:
        raise ValueError(
            f"{method.name} has advantages of its own, which this trainer would divide by a deviation; set "
            "scale_rewards='none' in GRPO, or train with LeashGRPOTrainer"
        )
    alone, together = _example_advantages(method, slice(4)), _example_advantages(method, slice(8))[:4]
    if num_processes > 1 and not torch.allclose(alone, together):
        raise ValueError(
            f"{method.name} standardises advantages over the batch of all {num_processes} processes, of which a "
            "reward function sees one; train with LeashGRPOTrainer"
        )
