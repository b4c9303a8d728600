"""One run of `leash compare`: its recipe, its commands and its result, for the gym's base and held-out problems.

The last of its commands is this module: python -m leash_trl.cli.gym_run --config RECIPE --output_dir DIR
"""

import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from leash_trl.cli.errors import UserError
from leash_trl.engines.checkpoint_path import length_control_state, read_trainer_state, whole_checkpoints
from leash_trl.files import write_whole


if TYPE_CHECKING:
    import pandas as pd

RECIPE_FILE = "recipe.yaml"
RESULT_FILE = "samples.csv"


def claim(recipe: dict[str, Any], seed: int) -> str:
    """A run's recipe file: its fields, and digests of the base, of local data and of the method's code as comments."""
    from leash_trl.data.sources import parse_reference
    from leash_trl.gym import base_digest
    from leash_trl.length_control.methods import find_method

    *kinds, _ = find_method(recipe.get("length_control", "leash")).__mro__
    path = parse_reference(recipe["dataset_name"]).path if recipe.get("dataset_name") else None
    data = [] if path is None else sorted(path.rglob("*")) or [path]
    digests = {"base": base_digest(), "data": _digest(data), "code": _digest(map(inspect.getfile, kinds))}
    comments = [f"# {name}: {digest}\n" for name, digest in digests.items()]
    return "".join([yaml.safe_dump({**recipe, "seed": seed}), *comments])


def _digest(files: Iterable[str | Path]) -> str:
    sha = hashlib.sha256()
    for file in map(Path, files):
        sha.update(file.read_bytes() if file.is_file() else b"")
    return sha.hexdigest()


def check_claim(folder: Path, own: str) -> None:
    """Raises `UserError` if a folder holds another run, which this one would continue or be taken for."""
    file = folder / RECIPE_FILE
    held = file.read_text(encoding="utf-8") if file.is_file() else own
    if changed := {*held.splitlines()} ^ {*own.splitlines()}:
        lines = "; ".join(sorted(changed))
        raise UserError(f"{folder} holds another run: {lines}; remove it or choose another --output_dir")


def commands(folder: Path) -> Iterator[list[str]]:
    """What trains and scores the run of a folder, or does what is left of it: modules with their arguments."""
    given = ["--config", str(folder / RECIPE_FILE), "--output_dir", str(folder)]
    if read_trainer_state(folder) is None:  # the final model is not there yet
        has_begun = any(whole_checkpoints(folder))
        yield ["leash_trl", "train", *given, *(["--resume_from_checkpoint", "true"] if has_begun else [])]
    yield [__name__, *given]


def measure(path: str = "gym", seed: int = 0, prompt_suffix: str = "", num_samples: int = 4) -> "pd.DataFrame":
    """Graded completions of a gym model for the gym's held-out problems, sampled at temperature 1.

    Args:
        path (`str`): Checkpoint folder, or `gym` for the base.
        seed (`int`), num_samples (`int`): Seed of the sampling, and completions of each problem.
        prompt_suffix (`str`): Appended to every problem, for methods that tell the model its target.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from leash_trl.engines.checkpoint_path import checkpoint_path
    from leash_trl.evaluation.sampling import evaluate
    from leash_trl.gym.dataset import SIZES, gym_problems
    from leash_trl.length_control.targets import with_suffix

    problems = gym_problems("test", SIZES["test"])
    if prompt_suffix:
        problems = problems.map(lambda row: {"prompt": with_suffix(row["prompt"], prompt_suffix)})
    folder = checkpoint_path(path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    # the number of calls limits the speed of a model this small
    return evaluate(model, tokenizer, problems, num_samples, max_new_tokens=256, seed=seed, batch_size=512)


def main(argv: list[str]) -> None:
    """Scores a trained run and writes its completions: columns of `evaluate`, and `effort`, `target` and `model`.

    Where there are efforts, each is scored by itself, and `model` is `base` too beside `trained`.
    """
    import pandas as pd

    from leash_trl.cli.training_arguments import arguments_of, given_fields
    from leash_trl.data.efforts import effort_suffix
    from leash_trl.trainer.leash_grpo_config import mapping_field

    script_args, args, *_ = arguments_of(given_fields(argv))
    method = args.make_length_control()
    if (saved := length_control_state(args.output_dir)) is not None:
        method.load_state_dict(saved["state"])
    # prompts are those at the end of training
    own = method.prompt_suffix(args.target_length, args.generation_limit)
    efforts = mapping_field("efforts", script_args.efforts) or {}
    models = {"trained": args.output_dir, **({"base": "gym"} if efforts else {})}
    parts = []
    for model, path in models.items():
        for effort, target in (efforts or {None: args.target_length}).items():
            suffix = own if effort is None else effort_suffix(effort, script_args.effort_suffix) + own
            parts.append(measure(path, args.seed, suffix).assign(effort=effort, target=target, model=model))
    write_whole(Path(args.output_dir) / RESULT_FILE, pd.concat(parts).to_csv(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
