"""Builds the part of a report on training runs: settings, last numbers, figures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leash_trl.analysis.curves import event_files, load_runs, read_event_files
from leash_trl.analysis.page import Paragraph, Picture, Section, Table
from leash_trl.engines.checkpoint_path import length_control_state
from leash_trl.evaluation.comparison import first_step_at_target
from leash_trl.evaluation.numbers import percent, plain, tokens
from leash_trl.figures import dynamics_figure, training_figure
from leash_trl.figures.curves import Curves
from leash_trl.hub.recipe import read_recipe


LAST_BATCHES = 10
NOT_EVALUATED = (
    "No run on this page was evaluated on held-out problems, so it says nothing of accuracy and tokens before and "
    "after: leash eval, of the base model and of the trained one, measures both."
)
SETTINGS = (
    "model_name_or_path",
    "use_peft",
    "lora_r",
    "lora_alpha",
    "dataset_name",
    "length_control",
    "length_control_kwargs",
    "target_length",
    "target_schedule",
    "lambda_init",
    "lambda_lr",
    "learning_rate",
    "max_steps",
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "max_completion_length",
    "temperature",
    "top_p",
    "beta",
    "epsilon",
    "epsilon_high",
    "loss_type",
    "scale_rewards",
    "seed",
)


def training_section(paths: Sequence[Path], evaluations: Sequence[Path] = ()) -> Section:
    """Last numbers, figures and settings of training runs.

    Args:
        paths (`Sequence[Path]`):
            Paths as for [`load_curves`].
        evaluations (`Sequence[Path]`, *optional*):
            Evaluated runs on the same page, whose labels the training runs share.

    Raises:
        `ValueError`: As [`load_curves`].
    """
    runs = load_runs(paths, evaluations)
    settings = _settings_table({run.label: run_settings(path) for run, path in zip(runs, paths, strict=True)})
    missing = Paragraph("The files of these runs do not tell their settings.")
    sentences = [] if evaluations else [NOT_EVALUATED]
    return Section("Training", [_final_table(runs), *_pictures(runs), settings or missing], sentences)


def run_settings(path: Path) -> dict[str, Any]:
    """The settings of a run, from its event files, else its recipe, else its controller's state."""
    log = read_event_files(event_files(path))
    claim, state = _json(path / "claim.json"), length_control_state(path) or {}
    known = {
        "length_control": state.get("method"),
        "target_length": state.get("target_length"),
        **claim.get("recipe", {}),
        **read_recipe(path),
        "seed": claim.get("seed"),
        **log.arguments,
    }
    return {name: known[name] for name in SETTINGS if known.get(name) is not None}


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _settings_table(settings: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """One column per run; `None` if no setting is known."""
    names = [name for name in SETTINGS if any(name in values for values in settings.values())]
    rows = [[name, *(str(values.get(name, "")) for values in settings.values())] for name in names]
    return Table("Settings of the runs.", ["setting", *settings], rows) if rows else None


def _final_table(runs: Sequence[Curves]) -> Table:
    rows = [_final_row(run) for run in runs]
    return Table(
        caption=f"Where the runs began and ended. First and last: mean over {LAST_BATCHES} logged training batches, "
        f"of fewer than {2 * LAST_BATCHES} over half; over evaluations where no batches were logged. λ used last: "
        "that of the last batch, after which it moved once more. Steps to target: first training batch whose mean "
        "length is at or under it. Accuracy and satisfaction rate in %.",
        head=list(rows[0]),
        rows=[list(row.values()) for row in rows],
    )


def _final_row(run: Curves) -> dict[str, str]:
    lengths, accuracies = (
        batches if len(batches := run.logged(key)) else run.logged(f"eval_{key}")
        for key in ("mean_length", "accuracy")
    )
    lambdas, generated = run.logged("lambda"), run.logged("generated_tokens")
    return {
        "run": run.label,
        "steps": str(run.steps[-1]),
        "first tokens": tokens(_mean(lengths[: _window(lengths)])),
        "last tokens": tokens(_mean(lengths[-_window(lengths) :])),
        "first accuracy": percent(_mean(accuracies[: _window(accuracies)])),
        "last accuracy": percent(_mean(accuracies[-_window(accuracies) :])),
        "last satisfaction": percent(_mean((rates := run.logged("satisfaction_rate"))[-_window(rates) :])),
        "λ at most": plain(lambdas.max()) if len(lambdas) else "",
        "λ used last": plain(lambdas[-1]) if len(lambdas) else "",
        "steps to target": _steps_to_target(run),
        "tokens in training": f"{generated[-1]:,.0f}" if len(generated) else "",
    }


def _window(values: np.ndarray) -> int:
    """Number of values in each of two windows, first and last, that do not overlap unless there is only one value."""
    return min(LAST_BATCHES, max(1, len(values) // 2))


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _steps_to_target(run: Curves) -> str:
    steps, lengths = run.curve("mean_length")
    if run.target_length is None or not len(steps):
        return ""
    step = first_step_at_target(steps, lengths, run.target_length)
    return "never" if step is None else str(step)


def _pictures(runs: Sequence[Curves]) -> list[Picture]:
    labels = ", ".join(run.label for run in runs)
    return [
        Picture(
            name="training",
            caption="Mean tokens per response and mean accuracy over training.",
            description=f"Two line plots over optimizer steps, tokens and accuracy, of {labels}.",
            figure=training_figure(runs, columns=1),
        ),
        Picture(
            name="dynamics",
            caption="Satisfaction rate, penalty coefficient λ, mean penalty and mean length over training.",
            description=f"Four line plots over optimizer steps of {labels}.",
            figure=dynamics_figure(runs, columns=2),
        ),
    ]
