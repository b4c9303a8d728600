"""One run of `leash compare`: its recipe, its evaluation, the files that identify it, and its commands."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from leash_trl.cli.errors import UserError
from leash_trl.run_folder import (
    checkpoint_path,
    length_control_state,
    read_trainer_state,
    whole_checkpoints,
)
from leash_trl.saved_recipe import mapping_field


if TYPE_CHECKING:
    import pandas as pd

RUN_RECIPE_FILE = "recipe.yaml"
EVALUATION_FILE = "eval.yaml"
EVALUATION = "eval"  # folder of the evaluation; with several efforts, the beginning of the folder names


@dataclass(eq=False)
class ComparedRun:
    """One seed of one arm at one point of its grid. An arm that is not trained is the base model with the arm's
    options of evaluation.

    Args:
        arm (`str`): Name of the arm with its point, such as `leash-target_length-12`.
        label (`str`): Name of the arm in table and figure, the same at all points.
        recipe (`dict[str, Any]`), point (`dict[str, Any]`): Fields of the recipe, and the fields of the grid, which
            are among them.
        evaluation (`dict[str, Any]`): Options of `leash eval`.
        is_trained (`bool`), seed (`int`): Whether the run trains a model, and its seed for training or else for
            sampling; the base has no seed.
    """

    arm: str
    label: str
    recipe: dict[str, Any]
    point: dict[str, Any]
    evaluation: dict[str, Any]
    is_trained: bool
    seed: int | None
    folder: Path

    @property
    def name(self) -> str:
        """Name of the run in the comparison."""
        return self.arm if self.seed is None else f"{self.arm}/{self.folder.name}"

    @property
    def asked(self) -> dict[str, tuple[str | None, float | None]]:
        """Folders of the evaluations, with the effort that each requests and its target in tokens."""
        efforts = mapping_field("efforts", self.recipe.get("efforts") if self.is_trained else None)
        if not efforts:
            return {EVALUATION: (None, self.recipe.get("target_length") if self.is_trained else None)}
        return {f"{EVALUATION}-{effort}": (effort, target) for effort, target in efforts.items()}

    def budget_curves(self, log: "pd.DataFrame", effort: str, target: float | None) -> "pd.DataFrame":
        """Returns the curves of one effort, and if they were not logged only those that all efforts share."""
        from leash_trl.figures.training import by_budget

        kwargs = mapping_field("length_control_kwargs", self.recipe.get("length_control_kwargs")) or {}
        per = kwargs.get("multiplier_per")
        name = effort if per == "effort" else f"{target:g}" if per == "target_length" else ""
        budgets = {each.attrs["label"]: each for each in by_budget(log)}
        return budgets.get(name, log.filter([] if per else ["leash/lambda"]))

    def lengths(self, log: "pd.DataFrame") -> "pd.Series[float]":
        """Returns the mean lengths of training batches that the log has, indexed by the number of policy updates since
        the last change of the target."""
        from leash_trl.figures.training import logged

        milestones = mapping_field("target_milestones", self.recipe.get("target_milestones")) or {0: None}
        changed_at = max(map(int, milestones))
        lengths = logged(log, "leash/mean_length").loc[changed_at + 1 :]
        return lengths.set_axis(lengths.index - changed_at)

    def is_done(self) -> bool:
        """Returns whether all results of the run exist."""
        return all((self.folder / part / "results.json").is_file() for part in self.asked)

    def claim(self) -> dict[str, str]:
        """Returns the content of the files of the run: recipe and evaluation, with comments that have digests of
        everything they name."""
        comments = "".join(f"# {name}: {digest}\n" for name, digest in self._digests().items())
        recipe = {**self.recipe, "seed": self.seed} if self.is_trained else {"train": False}
        return {RUN_RECIPE_FILE: yaml.safe_dump(recipe), EVALUATION_FILE: yaml.safe_dump(self.evaluation) + comments}

    def _digests(self) -> dict[str, str]:
        """Returns digests of the model, of local data, and of the code of the method and the reward functions."""
        from leash_trl.cli.reward_functions import code_digest, deciding_function, digest, reward_functions
        from leash_trl.data.sources import parse_reference
        from leash_trl.evaluation.sampling import weights_fingerprint
        from leash_trl.length_control.methods import find_method

        trained = self.recipe if self.is_trained else {}
        *kinds, _ = find_method(trained.get("length_control", "leash")).__mro__
        rewards = reward_functions(
            [*(trained.get("reward_funcs") or []), *(self.evaluation.get("reward_funcs") or [])]
        )
        chosen = {part.get("correctness_func") for part in (trained, self.evaluation)}
        rewards += filter(callable, [deciding_function(name, rewards) for name in chosen])
        mixed = [str(part.get("data_files") or part["path"]) for part in trained.get("datasets") or []]
        named = [*filter(None, [trained.get("dataset_name")]), *self.evaluation["benchmarks"]]
        paths = [*map(Path, mixed), *filter(None, (parse_reference(text).path for text in named))]
        model, revision = checkpoint_path(self.recipe["model_name_or_path"]), self.recipe.get("model_revision")
        return {
            "model": str(weights_fingerprint(model, revision)),
            "data": digest(file for path in paths for file in (sorted(path.rglob("*")) or [path])),
            "code": code_digest([*kinds, *rewards]),
        }

    def check_claim(self, files: dict[str, str]) -> None:
        """Raises `UserError` if the folder holds another run, which this one would otherwise resume."""
        for name, own in files.items():
            file = self.folder / name
            held = file.read_text(encoding="utf-8") if file.is_file() else own
            if changed := {*held.splitlines()} ^ {*own.splitlines()}:
                lines = "; ".join(sorted(changed))
                raise UserError(f"{self.folder} holds another run: {lines}; remove it or choose another --output_dir")

    def commands(self, num_devices: int) -> Iterator[list[str]]:
        """Yields the remaining commands that train and evaluate the run, as modules with their arguments."""
        model = str(self.folder) if self.is_trained else self.recipe["model_name_or_path"]
        if self.is_trained and read_trainer_state(self.folder) is None:  # there is no final model yet
            processes = ["torch.distributed.run", "--standalone", f"--nproc_per_node={num_devices}", "--module"]
            given = ["--config", str(self.folder / RUN_RECIPE_FILE), "--output_dir", model]
            resumed = ["--resume_from_checkpoint", "true"] if any(whole_checkpoints(self.folder)) else []
            yield [*(processes if num_devices > 1 else []), "leash_trl", "train", *given, *resumed]
        given = ["--config", str(self.folder / EVALUATION_FILE), "--model_name_or_path", model, f"--label={self.name}"]
        if not self.is_trained and (revision := self.recipe.get("model_revision")):
            given += ["--revision", revision]
        for part, (effort, target) in self.asked.items():
            own = [f"--seed={self.seed or 0}"]
            if self.is_trained:
                own.append(f"--prompt_ending={self._prompt_ending(effort, target)}")
            yield ["leash_trl", "eval", *given, "--output_dir", str(self.folder / part), *own]

    def _prompt_ending(self, effort: str | None, target: float | None) -> str:
        """Returns the text at the end of prompts: the effort, and the suffix of the method at the end of training for
        a target in tokens."""
        from leash_trl.cli.training_arguments import arguments_of
        from leash_trl.completions.prompts import effort_suffix

        script_args, args, *_ = arguments_of({**self.recipe, "output_dir": str(self.folder)})
        method = args.make_length_control()
        if (saved := length_control_state(self.folder)) is not None:
            method.load_state_dict(saved["state"])
        own = method.prompt_suffix(target, args.generation_limit)
        return own if effort is None else effort_suffix(effort, script_args.effort_suffix) + own
