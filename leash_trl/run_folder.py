"""Reads folders of runs and models: the files that they must have, and what a run saved."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from filelock import FileLock, Timeout

from leash_trl.errors import TrainingError


if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

ADAPTER_FILE = "adapter_config.json"
CONFIG_FILE = "config.json"
MODEL_FILES = (CONFIG_FILE, ADAPTER_FILE)  # a folder with one of them holds a model
LOCK_FILE = ".leash.lock"
RECIPE_FILE = "leash_recipe.yaml"
TRAINER_STATE_FILE = "trainer_state.json"  # transformers writes it last, so a checkpoint that has it is complete
LENGTH_CONTROL_STATE_KEY = "LengthControl"  # key of length control in a trainer state's `stateful_callbacks`
ADVICE_STATE_KEY = "Advice"  # key of the advice on a run in the same mapping
MEAN_TARGET_KEY = "leash/target_length"  # in a log, the mean target of the prompts of a batch
COMMON_TARGET_KEY = "leash/common_target"  # in a log, the target that all prompts have


def read_trainer_state(folder: str | Path) -> dict[str, Any] | None:
    """Returns the content of a folder's `trainer_state.json`, or `None` if it is missing or incomplete."""
    try:
        state: dict[str, Any] = json.loads((Path(folder) / TRAINER_STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state


def newest_trainer_state(folder: str | Path) -> dict[str, Any]:
    """Returns the `trainer_state.json` with the most steps among those of a run's folder and of its checkpoints: a
    checkpoint has more steps than the folder if the run has not ended, or was resumed and interrupted. Without any
    such file, the result has an empty `log_history` and nothing else."""
    states = [read_trainer_state(path) for path in (folder, *Path(folder).glob("checkpoint-*"))]
    # The state of a checkpoint whose saving was interrupted is `None`.
    complete_states = [state for state in states if state]
    return max(complete_states, key=lambda state: state["global_step"], default={"log_history": []})


class TargetSpan(NamedTuple):
    """Consecutive log entries of a run in which all prompts have the same target, in the unit of `length_of`."""

    target: float
    first_step: int
    last_step: int


def target_spans(log_history: "Sequence[Mapping[str, Any]] | pd.DataFrame") -> list[TargetSpan]:
    """Returns the targets of a run in order: one span, or several if a schedule changed the target or the run was
    resumed with another one; none if prompts have targets of their own, or if the method has no targets.

    Example:
        >>> target_spans([{"step": 1, "leash/common_target": 46.0}, {"step": 2, "leash/common_target": 46.0}])
        [TargetSpan(target=46.0, first_step=1, last_step=2)]
    """
    import numpy as np
    import pandas as pd

    log = pd.DataFrame(log_history, columns=["step", MEAN_TARGET_KEY, COMMON_TARGET_KEY])
    log = log.astype({COMMON_TARGET_KEY: float})  # an empty log states no type
    log = log.dropna(how="all", subset=[MEAN_TARGET_KEY, COMMON_TARGET_KEY])
    targets = log[COMMON_TARGET_KEY]
    # A log entry of a batch with several targets has no common target. Other entries of the same run may have one by
    # chance, so a single entry without it decides.
    if targets.isna().any():
        return []
    # Each entry is a mean over the updates since the last entry, so equal targets may differ in the last bit.
    is_changed = ~np.isclose(targets, targets.shift(), rtol=1e-9)
    spans = log.groupby(is_changed.cumsum()).agg(  # consecutive rows with the same target
        target=(COMMON_TARGET_KEY, "last"), first_step=("step", "first"), last_step=("step", "last")
    )
    return [TargetSpan(float(span.target), int(span.first_step), int(span.last_step)) for span in spans.itertuples()]


def length_control_state(folder: str | Path) -> dict[str, Any] | None:
    """Returns the state of length control in a checkpoint or a trained model, or `None` if there is none.

    `method` is the name of the method, `state` the argument of its `load_state_dict`, `version` the number of dual
    steps so far, `length_of` what the target limits, and `target_length` the target in the unit of `length_of`.
    Further keys belong to the trainer.
    """
    trainer_state = read_trainer_state(folder) or {}
    state: dict[str, Any] | None = trainer_state.get("stateful_callbacks", {}).get(LENGTH_CONTROL_STATE_KEY)
    return state


def read_saved_recipe(folder: str | Path) -> dict[str, Any]:
    """Returns the fields of the `leash_recipe.yaml` that `leash train` wrote into a folder; empty if there is none."""
    file = Path(folder) / RECIPE_FILE
    if not file.is_file():
        return {}
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")) or {})


def complete_checkpoints(output_dir: str | Path) -> Iterator[Path]:
    """Returns the complete checkpoints of a run, the newest first."""
    numbered = []  # pairs of step and folder, such as (40, Path("run/checkpoint-40"))
    for folder in Path(output_dir).glob("checkpoint-*"):
        step = folder.name.split("-")[-1]
        if step.isdigit():  # not a folder of the user, such as "checkpoint-best"
            numbered.append((int(step), folder))
    numbered.sort(reverse=True)
    return (folder for _, folder in numbered if read_trainer_state(folder) is not None)


@contextmanager
def lock_folder(output_dir: str | Path) -> Iterator[None]:
    """Locks a folder against other runs until this context or the process ends, and creates the folder if necessary.

    If the file system cannot lock, or the folder cannot be created, a warning is logged and no error is raised.

    Raises:
        `TrainingError`: If another run uses the folder.
    """
    # The operating system releases the lock when the process ends, however it ends; the file itself stays.
    lock = FileLock(Path(output_dir) / LOCK_FILE)
    try:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)  # does not wait, but raises `Timeout` if another process has the lock
    except Timeout:
        raise TrainingError(
            f"output_dir {output_dir} is in use by another run; wait until it ends, or choose another output_dir"
        ) from None
    except (OSError, NotImplementedError) as error:
        logger.warning("output_dir %s cannot be locked (%s): make sure that no other run uses it", output_dir, error)
    try:
        yield
    finally:
        lock.release()  # does nothing if the file system could not lock
