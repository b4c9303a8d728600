"""`leash eval`: measures avg@k accuracy and tokens of a model on benchmarks, with intervals; runs can be resumed."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import errors_to_user_errors
from leash_trl.cli.sampling_arguments import SamplingArguments, prepare_run, sample_all, template_kwargs_of_efforts
from leash_trl.completions.costs import MESSAGE_COSTS, TOKEN_COSTS, find_cost, name_without_path
from leash_trl.digests import code_digests
from leash_trl.evaluation.runs import load_evaluated_run
from leash_trl.evaluation.sampling import SamplingPlan, check_same_problems
from leash_trl.evaluation.tables import summary_markdown, write_results
from leash_trl.paths import existing_path
from leash_trl.run_folder import RECIPE_FILE, length_control_state


logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class EvalArguments(SamplingArguments):
    """Sample and grade benchmarks, with intervals. Run the same command again to resume.

    Args:
        benchmarks (`list[str]`): Benchmarks, each as a named source, NAME=PATH for a local copy of one, a file, a
            folder or a Hub id.
        baseline (`str`): Folder of another run of leash eval to compare with, problem by problem.
        length_of (`str`): What to measure of each completion beside its tokens: completion, thinking, checking, or a
            function, as my_file.py:my_function (default: that of training, if an evaluation can measure it).
        target_length (`float`): Target in the unit of length_of; the share of completions within it is measured
            (default: that of training, if length_of is that of training).
    """

    benchmarks: list[str]
    baseline: str | None = None
    length_of: str | None = None
    target_length: float | None = None

    def sampling_plan(self) -> SamplingPlan:
        """Returns the settings of the sampling run with cost and target."""
        return replace(
            super().sampling_plan(), length_of=self.length_of or TOKEN_COSTS[0], target_length=self.target_length
        )

    def with_defaults_of_training(self, recipe: Mapping[str, Any]) -> Self:
        """Returns the arguments, in which those that are not set have the values of the model's training, including
        cost and target."""
        arguments = super().with_defaults_of_training(recipe)
        length_of = self.length_of or cost_of_training(recipe, self.model_name_or_path)
        if length_of is None:
            return arguments
        target_length = self.target_length
        # The target of training applies only to the cost of training. The file of a cost function may be in another
        # folder now, so the costs are compared by their short names.
        if target_length is None and name_without_path(length_of) == name_without_path(trained_cost(recipe)):
            target_length = target_of_training(recipe, arguments.chat_template_kwargs)
        return replace(arguments, length_of=length_of, target_length=target_length)


def trained_cost(recipe: Mapping[str, Any]) -> str:
    """Returns the cost that a training controlled: `completion` if its recipe does not say."""
    return recipe.get("length_of") or TOKEN_COSTS[0]


def cost_of_training(recipe: Mapping[str, Any], model: str) -> str | None:
    """Returns the cost that a training controlled, for an evaluation of its model; `None` if an evaluation cannot
    measure it. Unless the cost is the tokens of completions, a warning says which is the case."""
    cost = trained_cost(recipe)
    obstacle = obstacle_to_measuring(cost, model)
    if obstacle is not None:
        logger.warning(
            "length_of was %r in training, which is not measured, since %s; set length_of to completion, "
            "thinking, checking or a function, as my_file.py:my_function",
            cost,
            obstacle,
        )
        return None
    if cost != TOKEN_COSTS[0]:
        logger.warning("length_of is that of training, from %s: %s", RECIPE_FILE, cost)
        warn_of_changed_code(cost, model)
    return cost


def target_of_training(recipe: Mapping[str, Any], chat_template_kwargs: Any) -> float | None:
    """Returns the target of a training: that of the effort that these arguments of the chat template select, else
    `target_length`; `None` if there is neither."""
    # The mapping is empty if the training had no efforts, or efforts that only the text of the prompt states.
    for effort, template_kwargs in template_kwargs_of_efforts(recipe).items():
        if template_kwargs == chat_template_kwargs:
            targets: dict[str, float] = recipe["efforts"]
            return targets[effort]
    return recipe.get("target_length")


def warn_of_changed_code(length_of: str, model: str) -> None:
    """Warns if the function of a cost has other code than in the training of a model, given by its folder."""
    function = find_cost(length_of).function
    if function is None:  # one of our costs, such as "thinking"
        return
    # The digest of each module's code, by the name of the module. A module without a recorded digest counts as
    # unchanged.
    trained_code = (length_control_state(model) or {}).get("code", {})
    for module, code in code_digests([function]).items():
        if trained_code.get(module, code) != code:
            logger.warning(
                "the code of %s has changed since training, so %s may measure another cost", module, length_of
            )


def obstacle_to_measuring(cost: str, model: str) -> str | None:
    """Returns why an evaluation of a model cannot measure the cost that its recipe names; `None` if it can."""
    if cost in MESSAGE_COSTS:
        return "an evaluation runs no tools"
    if cost.startswith("__main__."):
        return "its function is in a notebook or a script"
    if cost not in TOKEN_COSTS and not Path(model).is_dir():
        return "code that a recipe on the Hub names is not run"
    return None


def main(argv: list[str]) -> None:
    """Samples and grades the benchmarks, writes the results and prints their table."""
    arguments = parse(EvalArguments, argv, "leash eval", takes_recipe=True)
    folder = Path(arguments.output_dir)
    baseline = None
    with errors_to_user_errors():
        if arguments.baseline:
            baseline = load_evaluated_run(existing_path(arguments.baseline, "baseline"))
        prepared = prepare_run(arguments, arguments.benchmarks, "benchmark")
        if baseline is not None:
            check_same_problems(prepared.problems, baseline.record, prepared.recorded_options)
    sample_all(arguments, prepared)
    with errors_to_user_errors():
        run = load_evaluated_run(folder)
        write_results(folder, run, baseline)
    print(f"\n{summary_markdown(run, baseline)}")
    print(f"Samples and results are in {folder}, which leash plot and leash report can read.")
