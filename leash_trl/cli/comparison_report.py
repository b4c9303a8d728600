"""Writes the result of `leash compare`: tables and figure of the finished runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leash_trl.cli.comparison_plan import Arm, Run
from leash_trl.evaluation.by_level import LEVEL_LEGEND, level_csv, level_rows, level_table
from leash_trl.evaluation.comparison import ComparisonRow, SeedResult, base_row, comparison_row
from leash_trl.evaluation.comparison_table import LEGEND, csv_table, in_words, markdown_table
from leash_trl.evaluation.separation import Point
from leash_trl.evaluation.separation_report import separation_paragraphs
from leash_trl.figures import pareto_figure, write_figure
from leash_trl.figures.evaluation import read_trade_offs
from leash_trl.gym import base_record
from leash_trl.gym.dataset import gym_problems
from leash_trl.trainer.leash_grpo_config import mapping_field


def write_report(command: str, runs: list[Run], results: dict[Run, dict[str, Any]], output_dir: Path) -> None:
    """Writes tables and figure of the finished runs and prints the table."""
    by_arm: dict[Arm, list[SeedResult]] = {}
    for run, result in results.items():
        by_arm.setdefault(run.arm, []).append(_seed_result(run, result))
    base = base_row(base_record())
    arms = [arm for arm in dict.fromkeys(run.arm for run in runs) if arm in by_arm]
    rows = [comparison_row(arm.label, by_arm[arm], base, _settings(arm)) for arm in arms]
    seed_rows = [comparison_row(arm.label, [result], base, _settings(arm)) for arm in arms for result in by_arm[arm]]

    levels = gym_problems("test", len(by_arm[arms[0]][0].is_correct))["level"]
    by_level = [row for arm in arms for row in level_rows(_name(arm), by_arm[arm], levels)]

    missing = [run.name for run in runs if run not in results]
    paragraphs = [
        _headline(command, rows, by_arm[arms[0]][0]),
        *([f"Missing: {', '.join(missing)}."] if missing else []),
        markdown_table([base, *rows]),
        LEGEND,
        *separation_paragraphs([_point(arm, by_arm[arm]) for arm in arms]),
        level_table(by_level),
        LEVEL_LEGEND,
    ]
    text = "\n\n".join(paragraphs)
    (output_dir / "table.md").write_text(text + "\n", encoding="utf-8")
    (output_dir / "table.csv").write_text(csv_table([base, *rows]), encoding="utf-8")
    (output_dir / "seeds.csv").write_text(csv_table(seed_rows), encoding="utf-8")
    (output_dir / "levels.csv").write_text(level_csv(by_level), encoding="utf-8")
    write_figure(pareto_figure(read_trade_offs(output_dir / "table.csv")), output_dir / "pareto.png")
    print(f"\n{text}\n\nTables and figure are in {output_dir}.")


def _name(arm: Arm) -> str:
    return ", ".join(filter(None, [arm.label, in_words(_settings(arm))]))


def _settings(arm: Arm) -> dict[str, Any]:
    return {field: value for field, value in arm.point.items() if field != "target_length"}


def _point(arm: Arm, results: Sequence[SeedResult]) -> Point:
    return Point(
        method=arm.label,
        settings=in_words(_settings(arm)),
        target_length=results[0].target_length,
        seeds=tuple(result.seed for result in results),
        accuracies=np.array([result.is_correct.mean() for result in results]),
        tokens=np.array([result.lengths.mean() for result in results]),
    )


def _seed_result(run: Run, result: dict[str, Any]) -> SeedResult:
    milestones = mapping_field("target_milestones", run.arm.recipe.get("target_milestones")) or {0: None}
    changed_at = max(int(step) for step in milestones)  # policy updates before the target was what it is at the end
    steps = np.array(result["steps"])
    return SeedResult(
        seed=run.seed,
        is_correct=np.array(result["is_correct"], dtype=bool),
        lengths=np.array(result["lengths"]),
        target_length=result["target_length"],
        steps=steps[steps > changed_at] - changed_at,
        mean_lengths=np.array(result["mean_length"])[steps > changed_at],
        generated_tokens=result["generated_tokens"],
    )


def _headline(command: str, rows: Sequence[ComparisonRow], example: SeedResult) -> str:
    num_problems, num_samples = example.is_correct.shape
    targets = sorted({row.target_length for row in rows if row.target_length is not None})
    target = f"target {' or '.join(f'{target:g}' for target in targets)} tokens" if targets else "no target"
    problems = f"{num_problems} held-out problems, {num_samples} samples each at temperature 1"
    return f"`{command}`: {problems}; last checkpoint; {target}."
