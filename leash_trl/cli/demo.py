"""`leash demo`: a gym recipe from start to finish, once per seed: train, evaluate before and after, table, figure."""

import os
from pathlib import Path

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.gym_run import prepare_environment, run_seed
from leash_trl.cli.recipe import DEFAULT_RECIPE
from leash_trl.gym import base_record


TABLE_HEAD = (
    "| seed | accuracy: base | trained | tokens: base | trained | change | satisfied | lambda: peak | end |",
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
)


EFFORTS_HEAD = (
    "| seed | effort | target | accuracy: base | trained | tokens: base | trained |",
    "|---:|---|---:|---:|---:|---:|---:|",
)


def main(argv: list[str]) -> None:
    """Runs `leash demo`; a finished seed is not run again, and a stopped one continues."""
    parser = CommandParser(
        prog="leash demo",
        description="Train on the embedded gym, then compare the base with the trained model on held-out problems. "
        "Needs no download; fields of leash train may follow, such as --max_steps 50.",
    )
    parser.add_argument("--config", default=DEFAULT_RECIPE, help="gym recipe (default: the package's %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run each (default: 0)")
    parser.add_argument(
        "--output_dir", default="runs/demo", help="folder for runs, table and figure (default: runs/demo)"
    )
    arguments, overrides = parser.parse_known_args(argv)

    # set before torch is imported: the model is too small for more threads, and one repeats the recipes' results
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare_environment()

    output_dir = Path(arguments.output_dir)
    results = [run_seed(arguments.config, overrides, output_dir / f"seed-{seed}", seed) for seed in arguments.seeds]
    has_efforts = any(result.get("efforts") for result in results)
    if has_efforts:
        table = "\n".join([*EFFORTS_HEAD, *(row for result in results for row in _effort_rows(result))])
    else:
        table = "\n".join([*TABLE_HEAD, *(_row(result, base_record()) for result in results)])
    (output_dir / "table.md").write_text(table + "\n", encoding="utf-8")
    _write_figure(output_dir, arguments.seeds)

    from leash_trl.gym.record import BASE_SAMPLES, NUM_PROBLEMS, NUM_SAMPLES

    print(
        f"\n{table}\n\n{NUM_PROBLEMS} held-out problems, {NUM_SAMPLES} samples each at temperature 1"
        f"{'' if has_efforts else f', of the base {BASE_SAMPLES}'}. "
        f"Table and figure are in {output_dir}."
    )


def _row(result: dict, base: dict) -> str:
    trained = result["trained"]
    cells = [
        str(result["seed"]),
        f"{base['accuracy']:.3f}",
        f"{trained['accuracy']:.3f}",
        f"{base['mean_tokens']:.1f}",
        f"{trained['mean_tokens']:.1f}",
        f"{trained['mean_tokens'] / base['mean_tokens'] - 1:+.1%}",
        "" if trained["satisfaction_rate"] is None else f"{trained['satisfaction_rate']:.3f}",
        # empty for methods without a multiplier
        *("" if result[key] is None else f"{result[key]:.3f}" for key in ("lambda_peak", "lambda_end")),
    ]
    return f"| {' | '.join(cells)} |"


def _effort_rows(result: dict) -> list[str]:
    rows = []
    for name, effort in result.get("efforts", {}).items():
        base, trained = effort["base"], effort["trained"]
        shares = (f"{each['accuracy']:.3f}" for each in (base, trained))
        tokens = (f"{each['mean_tokens']:.1f}" for each in (base, trained))
        rows.append(
            f"| {' | '.join([str(result['seed']), name, format(effort['target_length'], 'g'), *shares, *tokens])} |"
        )
    return rows


def _write_figure(output_dir: Path, seeds: list[int]) -> None:
    from leash_trl.figures import dynamics_figure, load_curves, write_figure

    curves = [load_curves(output_dir / f"seed-{seed}") for seed in seeds]
    write_figure(dynamics_figure(curves), output_dir / "dynamics.png")
