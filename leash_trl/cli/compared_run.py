"""One run of `leash compare`: its recipe and evaluation, what makes it another run, and its commands."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from leash_trl.cli.errors import UserError
from leash_trl.engines.checkpoint_path import (
    checkpoint_path,
    length_control_state,
    read_trainer_state,
    whole_checkpoints,
)


if TYPE_CHECKING:
    import pandas as pd

RECIPE_FILE = "recipe.yaml"
EVALUATION_FILE = "eval.yaml"
EVALUATION = "eval"  # folder of the evaluation, or the start of those of several efforts


@dataclass(eq=False)
class Run:
    """One seed of one arm at one point of its grid; without training, the model before it, asked in the arm's way.

    Args:
        arm (`str`): The arm's name and its point, such as `leash-target_length-12`.
        label (`str`): The arm's name in table and picture, the same at all points.
        recipe (`dict[str, Any]`), point (`dict[str, Any]`): Fields of its recipe, and those of its grid among them.
        evaluation (`dict[str, Any]`): Options of `leash eval`.
        is_trained (`bool`), seed (`int`): Whether it trains a model, and the seed of that or of its samples; the base
            has none.
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
        """Its name among the runs of the comparison."""
        return self.arm if self.seed is None else f"{self.arm}/{self.folder.name}"

    @property
    def asked(self) -> dict[str, tuple[str | None, float | None]]:
        """The folders of its evaluations, with the effort that each asks for and the target, in tokens."""
        from leash_trl.trainer.leash_grpo_config import mapping_field

        efforts = mapping_field("efforts", self.recipe.get("efforts") if self.is_trained else None)
        if not efforts:
            return {EVALUATION: (None, self.recipe.get("target_length") if self.is_trained else None)}
        return {f"{EVALUATION}-{effort}": (effort, target) for effort, target in efforts.items()}

    def lengths(self, log: "pd.DataFrame") -> "pd.Series[float]":
        """Mean lengths of its training batches, by the policy updates since the target was what it is at the end."""
        from leash_trl.trainer.leash_grpo_config import mapping_field

        milestones = mapping_field("target_milestones", self.recipe.get("target_milestones")) or {0: None}
        changed_at = max(map(int, milestones))
        lengths = log["leash/mean_length"].dropna().loc[changed_at + 1 :]
        return lengths.set_axis(lengths.index - changed_at)

    def is_done(self) -> bool:
        """Whether all of its results are there."""
        return all((self.folder / part / "results.json").is_file() for part in self.asked)

    def claim(self) -> dict[str, str]:
        """The content of its files: recipe and evaluation, with digests of all that they name as comments."""
        comments = "".join(f"# {name}: {digest}\n" for name, digest in self._digests().items())
        recipe = {RECIPE_FILE: yaml.safe_dump({**self.recipe, "seed": self.seed})} if self.is_trained else {}
        return {**recipe, EVALUATION_FILE: yaml.safe_dump(self.evaluation) + comments}

    def _digests(self) -> dict[str, str]:
        """What changes with the model, with local data, and with the code of method and reward functions."""
        from leash_trl.cli.rewards import code_digest, digest, reward_functions
        from leash_trl.data.sources import parse_reference
        from leash_trl.evaluation.sampling import weights_fingerprint
        from leash_trl.length_control.methods import find_method

        trained = self.recipe if self.is_trained else {}
        *kinds, _ = find_method(trained.get("length_control", "leash")).__mro__
        rewards = [*(trained.get("reward_funcs") or []), *(self.evaluation.get("reward_funcs") or [])]
        mixed = [str(part.get("data_files") or part["path"]) for part in trained.get("datasets") or []]
        named = [*filter(None, [trained.get("dataset_name")]), *self.evaluation["benchmarks"]]
        paths = [*map(Path, mixed), *filter(None, (parse_reference(text).path for text in named))]
        model, revision = checkpoint_path(self.recipe["model_name_or_path"]), self.recipe.get("model_revision")
        return {
            "model": str(weights_fingerprint(model, revision)),
            "data": digest(file for path in paths for file in (sorted(path.rglob("*")) or [path])),
            "code": code_digest([*kinds, *reward_functions(rewards)]),
        }

    def check_claim(self, files: dict[str, str]) -> None:
        """Raises `UserError` if the folder holds another run, which this one would continue or be taken for."""
        for name, own in files.items():
            file = self.folder / name
            held = file.read_text(encoding="utf-8") if file.is_file() else own
            if changed := {*held.splitlines()} ^ {*own.splitlines()}:
                lines = "; ".join(sorted(changed))
                raise UserError(f"{self.folder} holds another run: {lines}; remove it or choose another --output_dir")

    def commands(self, num_devices: int) -> Iterator[list[str]]:
        """What trains and evaluates it, or does what is left: modules with their arguments."""
        model = str(self.folder) if self.is_trained else self.recipe["model_name_or_path"]
        if self.is_trained and read_trainer_state(self.folder) is None:  # the final model is not there yet
            processes = ["torch.distributed.run", "--standalone", f"--nproc_per_node={num_devices}", "--module"]
            given = ["--config", str(self.folder / RECIPE_FILE), "--output_dir", model]
            resumed = ["--resume_from_checkpoint", "true"] if any(whole_checkpoints(self.folder)) else []
            yield [*(processes if num_devices > 1 else []), "leash_trl", "train", *given, *resumed]
        given = ["--config", str(self.folder / EVALUATION_FILE), "--model_name_or_path", model, f"--label={self.name}"]
        if not self.is_trained and (revision := self.recipe.get("model_revision")):
            given += ["--revision", revision]
        for part, (effort, _) in self.asked.items():
            own = [f"--seed={self.seed or 0}"] + ([f"--request={self._request(effort)}"] if self.is_trained else [])
            yield ["leash_trl", "eval", *given, "--output_dir", str(self.folder / part), *own]

    def _request(self, effort: str | None) -> str:
        """What ends its prompts: the effort, and what its method says at the end of training."""
        from leash_trl.cli.training_arguments import arguments_of
        from leash_trl.data.efforts import effort_suffix

        script_args, args, *_ = arguments_of({**self.recipe, "output_dir": str(self.folder)})
        method = args.make_length_control()
        if (saved := length_control_state(self.folder)) is not None:
            method.load_state_dict(saved["state"])
        own = method.prompt_suffix(args.target_length, args.generation_limit)
        return own if effort is None else effort_suffix(effort, script_args.effort_suffix) + own
