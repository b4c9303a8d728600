"""One seed of a gym recipe: train, evaluate, write `result.json`. `leash demo` calls it, `leash compare` starts it.

As a process of its own: python -m leash_trl.cli.gym_run --config RECIPE --seed S --output_dir DIR
"""

import hashlib
import inspect
import json
import os
import sys
import warnings
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import UserError, user_errors
from leash_trl.engines.checkpoint_path import length_control_state, read_trainer_state, whole_checkpoints
from leash_trl.files import write_whole


if TYPE_CHECKING:
    from leash_trl.cli.training_arguments import TrainingArguments

CLAIM_FILE = "claim.json"
RESULT_FILE = "result.json"


def main(argv: list[str]) -> int:
    """Runs one seed and returns the exit code: 2 for a user's mistake, which prints one line."""
    parser = CommandParser(prog="leash_trl.cli.gym_run", description="Train and evaluate one gym run.")
    parser.add_argument("--config", required=True, help="gym recipe")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the run")
    arguments = parser.parse_args(argv)
    prepare_environment()
    try:
        run_seed(arguments.config, [], arguments.output_dir, arguments.seed)
    except UserError as error:
        print(f"gym_run: {error}", file=sys.stderr)
        return 2
    return 0


def prepare_environment() -> None:
    """Turns off the network and deprecation notes among the progress bars. Call it before torch is imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    warnings.filterwarnings("ignore", category=FutureWarning)


def run_seed(config: str, overrides: list[str], run_dir: Path, seed: int) -> dict[str, Any]:
    """The result of one seed. Finished work is not repeated, and stopped work continues.

    Raises:
        `UserError`: If the folder holds another run, or the recipe has a mistake.
    """
    from leash_trl.cli.training_arguments import given_fields

    with user_errors():
        given = given_fields(["--config", config, *overrides])
    claim = run_claim(given, seed)
    check_claim(run_dir, claim)
    if (result := read_result(run_dir)) is not None:
        return result
    recipe = {**given, "output_dir": str(run_dir), "seed": seed}
    arguments = gym_arguments(recipe, config)
    write_whole(run_dir / CLAIM_FILE, json.dumps(claim, indent=2) + "\n")
    result = _train_and_evaluate(recipe, arguments, run_dir)
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()]
    write_whole(run_dir / RESULT_FILE, "{\n" + ",\n".join(lines) + "\n}\n")
    return result


def run_claim(recipe: dict[str, Any], seed: int) -> dict[str, Any]:
    """The mark of a folder: the settings that distinguish runs, as JSON returns them.

    The method's defaults and the gym's base are part of it: no recipe names them, and a release may change them. So
    are the contents of a local data set, and the code of a method of the user's own.

    Raises:
        `ValueError`: If the recipe names no method or no data set that there is.
    """
    from leash_trl.data.sources import parse_reference
    from leash_trl.gym import base_digest
    from leash_trl.length_control.methods import find_method

    method = find_method(recipe.get("length_control", "leash"))
    defaults = {
        field.name: repr(field.default if field.default_factory is MISSING else field.default_factory())
        for field in fields(method)
        if field.init
    }
    claim = {"recipe": recipe, "seed": seed, "defaults": defaults, "base": base_digest()}
    name = recipe.get("dataset_name")
    if isinstance(name, str) and (path := parse_reference(name).path) is not None:
        claim["data"] = _digest(path)
    if not method.__module__.startswith("leash_trl."):
        claim["code"] = _digest(Path(inspect.getfile(method)))
    marked: dict[str, Any] = json.loads(json.dumps(claim))
    return marked


def _digest(path: Path) -> str:
    """SHA-256 of a file, or of all files in a folder."""
    sha = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            sha.update(file.read_bytes())
    return sha.hexdigest()


def check_claim(run_dir: Path, claim: dict[str, Any]) -> None:
    """Prevents that a run continues another run or is mistaken for it.

    Raises:
        `UserError`: If the folder holds another run.
    """
    held = _read_json(run_dir / CLAIM_FILE) or _read_json(run_dir / RESULT_FILE)
    if held is not None and held != claim:
        raise UserError(
            f"{run_dir} holds a run of another recipe, other overrides, other data, other code of a method or another "
            "release's gym; choose another --output_dir or remove the folder"
        )


def read_result(run_dir: Path) -> dict[str, Any] | None:
    """The result of a finished run, or `None`."""
    return _read_json(run_dir / RESULT_FILE)


def _read_json(path: Path) -> dict[str, Any] | None:
    content: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return content


def gym_arguments(recipe: dict[str, Any], where: str) -> "TrainingArguments":
    """Script, training, model and data arguments of a gym recipe, which errors call `where`.

    Raises:
        `UserError`: If the recipe has a mistake or is not for the gym.
    """
    from leash_trl import gym
    from leash_trl.cli.training_arguments import arguments_of

    try:
        with user_errors():
            arguments = arguments_of(recipe)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    if (model := recipe.get("model_name_or_path")) != gym.NAME:
        raise UserError(
            f"{where}: model_name_or_path is {model!r}, but this command compares with the gym's base model on the "
            f"gym's held-out problems; set model_name_or_path: {gym.NAME}, or use leash train"
        )
    return arguments


def _train_and_evaluate(recipe: dict[str, Any], arguments: "TrainingArguments", run_dir: Path) -> dict[str, Any]:
    from leash_trl.cli.train import run_training
    from leash_trl.data.efforts import effort_suffix
    from leash_trl.engines.checkpoint_path import checkpoint_path
    from leash_trl.evaluation.evaluate import joined_samples, summarize
    from leash_trl.trainer.leash_grpo_config import mapping_field

    training_args = arguments[1]
    if read_trainer_state(run_dir) is None:  # the final model is not there yet
        if any(whole_checkpoints(run_dir)):
            training_args.resume_from_checkpoint = "true"
        run_training(*arguments, recipe=recipe)
    own_suffix = _prompt_suffix(training_args, run_dir)
    efforts, template = mapping_field("efforts", arguments[0].efforts) or {}, arguments[0].effort_suffix
    asked = {name: effort_suffix(name, template) + own_suffix for name in efforts} or {"": own_suffix}
    measured = {name: measure(str(run_dir), recipe["seed"], suffix) for name, suffix in asked.items()}
    samples = joined_samples(list(measured.values()))
    base = checkpoint_path(str(arguments[2].model_name_or_path))
    return {
        "seed": recipe["seed"],
        "trained": asdict(summarize(samples, training_args.target_length)),
        "target_length": training_args.target_length,
        "efforts": {
            name: {
                "target_length": target,
                "base": asdict(summarize(measure(base, recipe["seed"], asked[name]), target)),
                "trained": asdict(summarize(measured[name], target)),
            }
            for name, target in efforts.items()
        },
        **_training_record(run_dir),
        "is_correct": samples.is_correct.astype(int).tolist(),
        "lengths": samples.lengths.tolist(),
    }


def measure(path=None, seed=0, prompt_suffix="", num_samples=4):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from leash_trl.evaluation.evaluate import evaluate
    from leash_trl.gym import CHECKPOINT
    from leash_trl.gym.dataset import SIZES, gym_problems
    from leash_trl.length_control.targets import with_suffix

    path = path or str(CHECKPOINT)
    problems = gym_problems("test", SIZES["test"])
    if prompt_suffix:
        problems = problems.map(lambda row: {"prompt": with_suffix(row["prompt"], prompt_suffix)})
    return evaluate(
        AutoModelForCausalLM.from_pretrained(path),
        AutoTokenizer.from_pretrained(path),
        problems,
        num_samples=num_samples,
        max_new_tokens=256,
        seed=seed,
        batch_size=512,
        description="held-out problems",
    )


def _prompt_suffix(training_args, model_dir: Path) -> str:
    """The method's prompt suffix at the end of training, so that evaluation prompts equal training prompts."""
    method = training_args.make_length_control()
    if (saved := length_control_state(model_dir)) is not None:
        method.load_state_dict(saved["state"])
    return str(method.prompt_suffix(training_args.target_length, training_args.generation_limit))


def _training_record(run_dir: Path) -> dict[str, Any]:
    """Numbers of the training log for the result; `None` for those that the log does not hold."""
    from leash_trl.figures.training import load_curves, logged

    curves = load_curves(run_dir)
    lambdas, generated_tokens = logged(curves, "leash/lambda"), logged(curves, "leash/generated_tokens")
    mean_length = logged(curves, "leash/mean_length")
    return {
        "lambda_peak": float(lambdas.max()) if len(lambdas) else None,
        "lambda_end": float(lambdas.iloc[-1]) if len(lambdas) else None,
        "generated_tokens": int(generated_tokens.iloc[-1]) if len(generated_tokens) else None,
        "steps": mean_length.index.tolist(),
        "mean_length": mean_length.tolist(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
