"""`leash demo`: a gym recipe from start to finish, once per seed: train, evaluate before and after, table, figure."""

import argparse
import json
import os
import warnings
from dataclasses import asdict
from pathlib import Path

import yaml

from leash_trl.cli.errors import UserError, user_errors


TABLE_HEAD = (
    "| seed | accuracy: base | trained | tokens: base | trained | change | satisfied | lambda: peak | end |",
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
)


def main(argv: list[str]) -> None:
    """Runs `leash demo`; a seed that is already done is not run again, one that was stopped goes on."""
    parser = argparse.ArgumentParser(
        prog="leash demo",
        description="Train on the embedded gym, then compare the base with the trained model on held-out problems.",
    )
    parser.add_argument("--config", required=True, help="gym recipe, such as recipes/gym/leash.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run each (default: 0)")
    parser.add_argument("--output_dir", default="runs/demo", help="folder for runs, table and figure")
    arguments, overrides = parser.parse_known_args(argv)

    # The gym is on this disk and tiny: no network, two threads (measured: 3.9 s for an early step, 5.3 s with one), no
    # deprecation notes of libraries among the progress bars. To be set before torch and the Hub client are imported.
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    warnings.filterwarnings("ignore", category=FutureWarning)

    output_dir = Path(arguments.output_dir)
    if not Path(arguments.config).is_file():
        raise UserError(f"--config {arguments.config}: no such file")
    results = [_run_seed(arguments.config, overrides, output_dir / f"seed-{seed}", seed) for seed in arguments.seeds]
    table = "\n".join([*TABLE_HEAD, *(_row(result) for result in results)])
    (output_dir / "table.md").write_text(table + "\n", encoding="utf-8")
    _write_figure(output_dir, arguments.seeds)

    from leash_trl.gym.record import NUM_PROBLEMS, NUM_SAMPLES

    print(
        f"\n{table}\n\n{NUM_PROBLEMS} held-out problems, {NUM_SAMPLES} samples each at temperature 1. "
        f"Table and figure are in {output_dir}."
    )


def _run_seed(config: str, overrides: list[str], run_dir: Path, seed: int) -> dict:
    recipe = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
    _claim_folder(run_dir, {"recipe": recipe, "overrides": overrides})
    result_file = run_dir / "result.json"
    if result_file.is_file():
        result: dict = json.loads(result_file.read_text(encoding="utf-8"))
        return result
    result = _train_and_evaluate(config, overrides, run_dir, seed)
    result_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def _claim_folder(run_dir: Path, claim: dict) -> None:
    """Marks a folder with what is run in it, so that no run goes on with, or is taken for, another."""
    claim_file = run_dir / "demo.json"
    if claim_file.is_file():
        if json.loads(claim_file.read_text(encoding="utf-8")) != claim:
            raise UserError(f"{run_dir} holds a run of another recipe or other overrides; choose another --output_dir")
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    claim_file.write_text(json.dumps(claim, indent=2) + "\n", encoding="utf-8")


def _train_and_evaluate(config: str, overrides: list[str], run_dir: Path, seed: int) -> dict:
    from leash_trl import gym
    from leash_trl.analysis.curves import load_curves
    from leash_trl.cli.train import parse, run_training
    from leash_trl.controller_state import is_whole
    from leash_trl.gym.record import RECORD, measure

    resume = ["--resume_from_checkpoint", "true"] if any(map(is_whole, run_dir.glob("checkpoint-*"))) else []
    where = ["--output_dir", str(run_dir), "--seed", str(seed)]
    with user_errors():
        arguments = parse(["--config", config, *overrides, *where, *resume])
    script_args, training_args, model_args, _ = arguments
    if gym.NAME not in (model_args.model_name_or_path, script_args.dataset_name):
        raise UserError(f"{config} does not train on the gym; leash demo is for gym recipes, use leash train")
    # a run that was stopped after its last step has its model in the last checkpoint
    finished = [path for path in (run_dir, run_dir / f"checkpoint-{training_args.max_steps}") if is_whole(path)]
    if not finished:
        run_training(*arguments)
    trained = measure(str([*finished, run_dir][0]), target_length=training_args.target_length, seed=seed)
    lambdas = load_curves(run_dir).values["lambda"]
    return {
        "seed": seed,
        "base": json.loads(RECORD.read_text(encoding="utf-8")),
        "trained": asdict(trained),
        "lambda_peak": float(lambdas.max()),
        "lambda_end": float(lambdas[-1]),
    }


def _row(result: dict) -> str:
    base, trained = result["base"], result["trained"]
    cells = [
        str(result["seed"]),
        f"{base['accuracy']:.3f}",
        f"{trained['accuracy']:.3f}",
        f"{base['mean_tokens']:.1f}",
        f"{trained['mean_tokens']:.1f}",
        f"{trained['mean_tokens'] / base['mean_tokens'] - 1:+.1%}",
        f"{trained['satisfaction_rate']:.3f}",
        f"{result['lambda_peak']:.3f}",
        f"{result['lambda_end']:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def _write_figure(output_dir: Path, seeds: list[int]) -> None:
    from leash_trl.analysis.curves import load_curves
    from leash_trl.analysis.figures import dynamics_figure

    figure = dynamics_figure([load_curves(output_dir / f"seed-{seed}") for seed in seeds])
    figure.savefig(output_dir / "dynamics.png", dpi=120)
