"""Builds the tables and the page of a comparison from its finished runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from leash_trl.comparison import tables
from leash_trl.comparison.run import BASE, ComparedRun, LengthRequest
from leash_trl.evaluation.changes import mean_changes
from leash_trl.evaluation.metrics import OVERALL
from leash_trl.evaluation.runs import EvaluatedRun, truncation_warning
from leash_trl.evaluation.tables import csv
from leash_trl.files import write_atomically


@dataclass(frozen=True)
class FinishedEvaluation:
    """One evaluation of a finished run, with the curves that the training of its model logged for the same request.

    The curves are indexed by policy update, and empty if there was no training.

    Args:
        run (`ComparedRun`), request (`LengthRequest`): The run, and the effort or target that this evaluation
            requested of its model.
        evaluated_run (`EvaluatedRun`): Samples and metrics.
        mean_lengths (`pd.Series`): Mean lengths of training batches, in the unit of `length_of`.
        multipliers (`pd.Series`): Multiplier lambda.
        accuracies (`pd.Series`): Share of correct completions of training batches.
        generated_tokens (`pd.Series`): Tokens that the training had generated so far, for all requests together.
    """

    run: ComparedRun
    request: LengthRequest
    evaluated_run: EvaluatedRun
    mean_lengths: "pd.Series[float]"
    multipliers: "pd.Series[float]"
    accuracies: "pd.Series[float]"
    generated_tokens: "pd.Series[float]"


def seed_rows(base: EvaluatedRun, evaluations: Sequence[FinishedEvaluation]) -> pd.DataFrame:
    """Returns the rows of `seeds.csv`: first the model before training, then each evaluation."""
    measure = tables.common_measure([base, *(evaluation.evaluated_run for evaluation in evaluations)])
    base_row = tables.evaluation_columns(base, measure)
    rows = [{"name": BASE, "seeds": "", "target_of": "", **base_row}]
    rows.extend(_seed_row(evaluation, base_row) for evaluation in evaluations)
    seeds = pd.DataFrame(rows)
    # The column says what each training limited. It is left out if all of them limited tokens.
    if all(evaluation.run.length_of == "completion" for evaluation in evaluations):
        return seeds.drop(columns="target_of")
    return seeds


def _seed_row(evaluation: FinishedEvaluation, base_row: tables.Row) -> tables.Row:
    """Returns the row of `seeds.csv` for one evaluation; `base_row` has the results of the model before training."""
    run = evaluation.run
    request = evaluation.request
    # All columns from the score on are numbers, so columns of text come before it.
    name = request.name_with_eval(run.label)
    row: tables.Row = {"name": name, "seeds": str(run.seed), "target_of": run.length_of}
    row |= tables.result_columns(
        evaluation.evaluated_run,
        base_row,
        target_length=request.target_length,
        mean_lengths=run.lengths_since_target_change(evaluation.mean_lengths),
        multipliers=evaluation.multipliers,
    )
    # Arguments of the template change the model's behavior by themselves, and the base was evaluated without them, so
    # training alone does not explain the change.
    if request.template_kwargs:
        row |= tables.NAN_CHANGE_COLUMNS
    # The last value of a count that only rises; there are none if the run trained no model.
    row["generated_tokens"] = int(max(evaluation.generated_tokens, default=0))
    return row | _settings_columns(run, request)


def _settings_columns(run: ComparedRun, request: LengthRequest) -> dict[str, str]:
    """Returns the settings in which rows of the same name may differ, such as `{"lambda_lr": "0.05"}`, without the
    target, which has a column of its own."""
    settings = {field: str(value) for field, value in run.grid_values.items() if field != "target_length"}
    if request.effort is not None:
        settings["effort"] = request.effort
    return settings


def accuracies_by_method(
    seeds: pd.DataFrame, evaluations: Sequence[FinishedEvaluation]
) -> dict[str, list["pd.Series[float]"]]:
    """Returns, for each method with its settings, a curve per seed: the accuracies of training batches, indexed by the
    number of tokens generated until then.

    `seeds` is the result of [`seed_rows`] for the same evaluations.
    """
    # such as {"LEASH, lambda_lr 0.05": [...]}
    curves_by_method: dict[str, list[pd.Series[float]]] = {}
    # The first row is the base, which has no evaluation here.
    for row, evaluation in zip(seeds[1:].to_dict("records"), evaluations, strict=True):
        # Accuracies and tokens are indexed by policy update, and the curve by the tokens at that update.
        num_generated = evaluation.generated_tokens.reindex(evaluation.accuracies.index)
        curve = evaluation.accuracies.set_axis(num_generated)
        curves_by_method.setdefault(tables.method_with_settings(row), []).append(curve)
    return curves_by_method


def paired_differences(
    seeds: pd.DataFrame, base: EvaluatedRun, evaluations: Sequence[FinishedEvaluation]
) -> pd.DataFrame:
    """Returns the differences of the [`~leash_trl.comparison.tables.compared_points`], paired by problem and seed,
    with intervals over problems.

    `seeds` is the result of [`seed_rows`] for the same evaluations. The result has the columns `point`, `column`
    (`score`, `mean_tokens` or, of another cost, `mean_cost`), `value`, `low` and `high`. Points that share no seed
    with the reference are left out.
    """
    # such as {"accuracy_change": "score", "tokens_change": "mean_tokens"}
    column_by_metric = {number.change_metric: number.column for number in tables.compared_numbers(seeds)}
    rows = []
    for point, pairs in _pairs_by_point(seeds, base, evaluations).items():
        changes = mean_changes(pairs)
        for change in changes[changes["benchmark"] == OVERALL].itertuples():
            # The other metrics, such as the relative change of tokens, have no column.
            if change.metric in column_by_metric:
                rows.append((point, column_by_metric[change.metric], change.value, change.low, change.high))
    return pd.DataFrame(rows, columns=[*tables.DIFFERENCE_COLUMNS])


def _pairs_by_point(
    seeds: pd.DataFrame, base: EvaluatedRun, evaluations: Sequence[FinishedEvaluation]
) -> dict[str, list[tuple[EvaluatedRun, EvaluatedRun]]]:
    """Returns for each point pairs of one of its runs and the run of the reference with the same seed."""
    # for each point its evaluated runs by seed, such as {"LEASH at 46": {0: ..., 1: ...}}
    runs_by_point: dict[str, dict[int | None, EvaluatedRun]] = {}
    for point, evaluation in zip(tables.methods_at_targets(seeds), evaluations, strict=True):
        runs_by_point.setdefault(point, {})[evaluation.run.seed] = evaluation.evaluated_run
    reference, points = tables.compared_points(seeds)
    pairs_by_point = {}
    for point in points:
        runs = runs_by_point[point]
        # The base has a single run, without a seed, so every seed is compared with it.
        references = dict.fromkeys(runs, base) if reference == BASE else runs_by_point[reference]
        pairs = [(run, references[seed]) for seed, run in runs.items() if seed in references]
        if pairs:
            pairs_by_point[point] = pairs
    return pairs_by_point


def truncated_shares_by_arm(
    base_run: ComparedRun, base: EvaluatedRun, evaluations: Sequence[FinishedEvaluation]
) -> dict[str, float]:
    """Returns the mean share of truncated completions of the base and of each trained arm, by label."""
    shares_by_label = {base_run.label: [base.estimate("truncated_rate").value]}
    for evaluation in evaluations:
        # Arms that are not trained, and entries of `evals`, may cut completions on purpose.
        if evaluation.run.is_trained and evaluation.request.eval_name is None:
            shares = shares_by_label.setdefault(evaluation.run.label, [])
            shares.append(evaluation.evaluated_run.estimate("truncated_rate").value)
    return {label: fmean(shares) for label, shares in shares_by_label.items()}


def page_text(
    command: str,
    runs: Sequence[ComparedRun],
    base: EvaluatedRun,
    evaluations: Sequence[FinishedEvaluation],
    seeds: pd.DataFrame,
    differences: pd.DataFrame,
) -> str:
    """Returns the page of a comparison as Markdown: how it was made, what is missing, and the tables.

    Args:
        command (`str`): Command line that made the comparison.
        runs (`Sequence[ComparedRun]`): All planned runs, the base first.
        base (`EvaluatedRun`), evaluations (`Sequence[FinishedEvaluation]`): The model before training, and the
            evaluations of the other finished runs.
        seeds (`DataFrame`), differences (`DataFrame`): The results of [`seed_rows`] and [`paired_differences`].
    """
    paragraphs = [_how_made(command, runs[0].eval_options, base)]
    # Their cells of changes are empty, so the page says why.
    if any(evaluation.request.template_kwargs for evaluation in evaluations):
        paragraphs.append(
            "Efforts that arguments of the chat template select have no change from the base, which was evaluated "
            "without these arguments."
        )
    missing = ", ".join(run.name for run in runs if not run.is_done())
    if missing:
        paragraphs.append(f"Missing: {missing}.")
    paragraphs.append(truncation_warning(truncated_shares_by_arm(runs[0], base, evaluations)))
    paragraphs.append(tables.comparison_markdown(seeds, differences))
    return "\n\n".join(filter(None, paragraphs))  # without truncation, that warning is empty


def _how_made(command: str, eval_options: dict[str, Any], base: EvaluatedRun) -> str:
    """Returns the first paragraphs of the page: the command, and the options of `leash eval` that all arms share."""
    # The largest number counts the problems of all benchmarks together.
    num_problems = base.results["num_problems"].max()
    benchmarks = ", ".join(eval_options["benchmarks"])
    text = (
        f"`{command}`: {num_problems} problems of {benchmarks}, {eval_options['num_samples']} samples each at "
        f"temperature {eval_options['temperature']:g}; last checkpoint."
    )
    if "target_length" in eval_options:
        text += f"\n\nThe share within target is that of eval: target_length {eval_options['target_length']:g}."
    return text


def write_tables(
    output_dir: Path,
    text: str,
    table: pd.DataFrame,
    seeds: pd.DataFrame,
    differences: pd.DataFrame,
) -> None:
    """Writes the page, the means over seeds, the rows of the seeds and the differences into a comparison's folder."""
    write_atomically(output_dir / "table.md", text + "\n")
    write_atomically(output_dir / "table.csv", csv(table))
    write_atomically(output_dir / "seeds.csv", csv(seeds))
    write_atomically(output_dir / tables.DIFFERENCES_FILE, csv(differences))
