"""One run of a comparison: its recipe, its evaluations, the files that identify it, and its commands."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from leash_trl.completions.costs import find_cost
from leash_trl.errors import TrainingError
from leash_trl.model_paths import model_path
from leash_trl.run_folder import complete_checkpoints, read_trainer_state
from leash_trl.saved_recipe import differing_names, field_as_mapping


if TYPE_CHECKING:
    import pandas as pd

LOG_FILE = "log.txt"
RUN_RECIPE_FILE = "recipe.yaml"
DIGESTS_FILE = "digests.yaml"  # of the model, the data and the code that recipe and evaluation name
BASE = "base"  # name of the model before training in a comparison
EVALUATION_NAME = "eval"  # name of the evaluation's folder and file; with several evaluations, its beginning


class LengthRequest(NamedTuple):
    """The effort, the target and the options with which one evaluation asks a model.

    Args:
        effort (`str`): Name of the effort; `None` if the model was trained without efforts.
        target_length (`float`): Target in the unit of `length_of`; `None` if there is none.
        template_kwargs (`Mapping[str, Any]`): Arguments of the chat template for the effort, in addition to the
            arguments of all evaluations.
        eval_name (`str`): Name of a further evaluation of the same model with other options, such as another decoding
            strategy; `None` for the options that all arms share.
    """

    effort: str | None = None
    target_length: float | None = None
    template_kwargs: Mapping[str, Any] = MappingProxyType({})
    eval_name: str | None = None

    def name_with_eval(self, name: str) -> str:
        """Returns the name of a run or an arm in this evaluation."""
        return name if self.eval_name is None else f"{name}, {self.eval_name}"


@dataclass(eq=False)
class ComparedRun:
    """One seed of one arm at one point of its grid. If the arm is not trained, the run only evaluates the base model,
    or a model of the arm's own, with the arm's options.

    Args:
        arm (`str`): Name of the arm with its point, such as `leash-target_length-12`.
        label (`str`): Name of the arm in table and figure, the same at all points.
        recipe (`dict[str, Any]`), grid_values (`dict[str, Any]`): Fields of the recipe, and the fields that the grid
            sets, such as `{"lambda_lr": 0.05}`.
        eval_options (`dict[str, Any]`): Options of `leash eval`.
        evals (`dict[str, dict[str, Any]]`): Options of further evaluations of the same model, by their names.
        is_trained (`bool`): Whether the run trains a model.
        folder (`Path`): Folder of the run.
        seed (`int`): Seed of training and sampling; the base has none, and is sampled with 0.
        prompt_ending_of (`Callable`): Returns the text that the training in a folder appended to prompts for an effort
            or a target; `None` if the run trains no model.
    """

    arm: str
    label: str
    recipe: dict[str, Any]
    grid_values: dict[str, Any]
    eval_options: dict[str, Any]
    is_trained: bool
    folder: Path
    seed: int | None = None
    prompt_ending_of: Callable[[Path, LengthRequest], str] | None = None
    evals: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the run in the comparison."""
        return self.arm if self.seed is None else f"{self.arm}/{self.folder.name}"

    @property
    def requests(self) -> dict[str, LengthRequest]:
        """The request of each evaluation of the run, by the name of the evaluation's folder: one evaluation, or one
        per effort, and all of them again for each entry of `evals`."""
        requests = self._requests_of_training() if self.is_trained else {EVALUATION_NAME: LengthRequest()}
        # The loop runs over a copy, since it adds entries such as "eval-low-greedy".
        for folder, request in [*requests.items()]:
            for eval_name in self.evals:
                requests[f"{folder}-{eval_name}"] = request._replace(eval_name=eval_name)
        return requests

    def _requests_of_training(self) -> dict[str, LengthRequest]:
        """Returns the requests of the training by the folder of their evaluation: one, or one per effort, such as
        `"eval-low"`."""
        efforts = self._mapping("efforts")  # the target of each effort, such as {"low": 64, "high": 256}
        if not efforts:
            return {EVALUATION_NAME: LengthRequest(target_length=self.recipe.get("target_length"))}
        template_kwargs = self._mapping("effort_template_kwargs")  # such as {"low": {"enable_thinking": False}}
        requests = {}
        for effort, target in efforts.items():
            requests[f"{EVALUATION_NAME}-{effort}"] = LengthRequest(effort, target, template_kwargs.get(effort, {}))
        return requests

    def _mapping(self, field_name: str) -> dict[Any, Any]:
        """Returns a field of the recipe that is a mapping; empty if it is not set."""
        return field_as_mapping(field_name, self.recipe.get(field_name)) or {}

    def evaluation_file(self, eval_name: str | None) -> str:
        """Returns the name of the file with the options of an evaluation."""
        return f"{EVALUATION_NAME}.yaml" if eval_name is None else f"{EVALUATION_NAME}-{eval_name}.yaml"

    @property
    def length_of(self) -> str:
        """What the target limits."""
        return self.recipe.get("length_of") or "completion"

    @property
    def multiplier_per(self) -> str | None:
        """The column whose values, such as efforts or targets, each have a multiplier lambda of their own; `None` if
        all prompts share one."""
        return self._mapping("length_control_kwargs").get("multiplier_per")

    def lengths_since_target_change(self, lengths: "pd.Series[float]") -> "pd.Series[float]":
        """Returns the mean lengths of the training batches after the last change of the target, indexed by the number
        of policy updates since then. `lengths` is indexed by policy update."""
        last_change = max(map(int, self._mapping("target_milestones")), default=0)
        since_change = lengths.loc[last_change + 1 :]
        return since_change.set_axis(since_change.index - last_change)

    def is_done(self) -> bool:
        """Returns whether all results of the run exist."""
        return all((self.folder / name / "results.json").is_file() for name in self.requests)

    def identifying_files(self) -> dict[str, dict[str, Any]]:
        """Returns the content of the files that identify the run, by file name: recipe, evaluations, and digests of
        the model, data and code that these name."""
        recipe = {**self.recipe, "seed": self.seed} if self.is_trained else {"train": False}
        files = {RUN_RECIPE_FILE: recipe, DIGESTS_FILE: self._digests()}
        for eval_name, options in [(None, self.eval_options), *self.evals.items()]:
            files[self.evaluation_file(eval_name)] = options
        return files

    def _digests(self) -> dict[str, str]:
        """Returns digests of the model, of local data, and of the code of method, reward functions and cost."""
        from leash_trl.digests import code_digests, content_digest
        from leash_trl.evaluation.sampling import weights_fingerprint

        model = self.recipe["model_name_or_path"]
        weights = weights_fingerprint(model_path(model), self.recipe.get("model_revision"))
        # Error messages contain the names, as in "the data of train.jsonl changed".
        digests: dict[str, str] = {}
        digests[f"the model {model}"] = str(weights)
        for path in self._local_data_paths():
            digests[f"the data of {path}"] = content_digest(path)
        for module, code_digest in code_digests(self._code_objects()).items():
            digests[f"the code of {module}"] = code_digest
        return digests

    @property
    def _training_fields(self) -> dict[str, Any]:
        """The fields of the recipe that decide the result of the run: none if the run trains no model."""
        return self.recipe if self.is_trained else {}

    def _local_data_paths(self) -> list[Path]:
        """Returns the local files and folders of training and evaluation."""
        from leash_trl.data.sources import parse_reference

        fields = self._training_fields
        # The parts of a mixture, as TRL's `datasets` lists them. The path of a part on the Hub does not exist here, so
        # its digest is that of no content.
        paths = [Path(str(part.get("data_files") or part["path"])) for part in fields.get("datasets") or []]
        for name in (fields.get("dataset_name"), *self.eval_options["benchmarks"]):
            path = parse_reference(name).path if name else None
            # A data set on the Hub has no local path.
            if path is not None:
                paths.append(path)
        return paths

    def _code_objects(self) -> list[Any]:
        """Returns the classes of the method, and the functions for rewards, correctness and cost."""
        from leash_trl.length_control.methods import find_method
        from leash_trl.reward_functions import find_correctness_func, find_reward_functions

        fields = self._training_fields
        method = find_method(fields.get("length_control", "leash"))
        # A method may inherit code, also from another module of the user.
        code: list[Any] = [base for base in method.__mro__ if base is not object]
        # Training and evaluation may have different values in the fields for rewards and cost.
        for settings in (fields, self.eval_options):
            rewards = find_reward_functions(settings.get("reward_funcs") or [])
            code += [*rewards, find_correctness_func(settings.get("correctness_func"), rewards)]
            code.append(find_cost(settings.get("length_of") or "completion").function)
        # Reward models are names, which have no code, and `correctness_func` and a cost may be None.
        return [part for part in code if callable(part)]

    def check_holds_this_run(self, identifying_files: dict[str, dict[str, Any]]) -> None:
        """Raises `TrainingError` if the folder holds another run, which would otherwise be resumed.

        Args:
            identifying_files (`dict[str, dict[str, Any]]`): The result of [`identifying_files`] for this run.
        """
        for file_name, fields in identifying_files.items():
            file = self.folder / file_name
            # A file that the run did not write yet cannot differ.
            saved = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else fields
            for name in differing_names(saved, fields):
                change = f"{name} is {fields.get(name)!r}, but was {saved.get(name)!r}"
                # The values of digests mean nothing to a reader; their names are such as "the code of my_rewards".
                if file_name == DIGESTS_FILE:
                    change = f"{name} changed"
                # If an option of an evaluation changed, the model can stay.
                evaluations = self._evaluations_with(file_name)
                to_remove = " and ".join([file_name, *evaluations]) if evaluations else "it"
                raise TrainingError(
                    f"{self.folder} holds another run: {change}; remove {to_remove}, or choose another output_dir"
                )

    def _evaluations_with(self, file_name: str) -> list[str]:
        """Returns the folders of the evaluations whose options are in a file of this name."""
        requests = self.requests.items()
        return [name for name, request in requests if self.evaluation_file(request.eval_name) == file_name]

    def commands(self, num_devices: int) -> Iterator[list[str]]:
        """Yields the commands that train the model, unless there is a final model, and make all evaluations, as
        modules with their arguments. An evaluation that is finished is only read again."""
        if self.is_trained and read_trainer_state(self.folder) is None:  # there is no final model yet
            yield self._training_command(num_devices)
        for name, request in self.requests.items():
            yield self._evaluation_command(self.folder / name, request)

    def _training_command(self, num_devices: int) -> list[str]:
        """Returns the command that trains the model, or resumes its training, with one process per device."""
        recipe = str(self.folder / RUN_RECIPE_FILE)
        command = ["leash_trl", "train", "--config", recipe, "--output_dir", str(self.folder)]
        if any(complete_checkpoints(self.folder)):
            command += ["--resume_from_checkpoint", "true"]
        if num_devices == 1:
            return command
        # torchrun as a module, which starts a process per device.
        return ["torch.distributed.run", "--standalone", f"--nproc_per_node={num_devices}", "--module", *command]

    def _evaluation_command(self, folder: Path, request: LengthRequest) -> list[str]:
        """Returns the command that evaluates the run's model, trained or not, into a folder."""
        model = str(self.folder) if self.is_trained else self.recipe["model_name_or_path"]
        command = ["leash_trl", "eval", "--config", str(self.folder / self.evaluation_file(request.eval_name))]
        command += ["--model_name_or_path", model, f"--label={request.name_with_eval(self.name)}"]
        revision = self.recipe.get("model_revision")
        if revision and not self.is_trained:
            command += ["--revision", revision]
        command += ["--output_dir", str(folder), f"--seed={self.seed or 0}"]
        return command + self._request_options(request)

    def _request_options(self, request: LengthRequest) -> list[str]:
        """Returns the options of `leash eval` that a request needs in addition to the file of the evaluation."""
        options = self.eval_options if request.eval_name is None else self.evals[request.eval_name]
        words = []
        # This option replaces the one in the file, so it repeats the arguments in the file.
        if request.template_kwargs:
            common_kwargs = field_as_mapping("chat_template_kwargs", options.get("chat_template_kwargs")) or {}
            words.append(f"--chat_template_kwargs={json.dumps({**common_kwargs, **request.template_kwargs})}")
        # The target of training applies to the evaluation only if both have the same cost.
        has_target = request.target_length is not None and options.get("length_of") == self.length_of
        if has_target and "target_length" not in options:
            words.append(f"--target_length={request.target_length}")
        if self.prompt_ending_of is not None and "prompt_ending" not in options:
            words.append(f"--prompt_ending={self.prompt_ending_of(self.folder, request)}")
        return words
