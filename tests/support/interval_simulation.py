"""How often intervals cover the truth, by simulation; `tests/data/interval_coverage.md` is what it prints.

Problems have a difficulty and a usual length; k completions of each are right or wrong, the wrong ones longer, and are
cut off at a limit. A second run answers the same problems a little better and a third shorter. The truth is the mean
over 100,000 problems. All seeds are fixed.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from leash_trl.evaluation.frame import majority_at_k, pass_at_k, votes
from leash_trl.evaluation.intervals import (
    Estimate,
    mean_amount,
    mean_over_benchmarks,
    mean_over_seeds,
    mean_share,
    mean_share_difference,
    ratio_minus_one,
)


SIZES = (3, 5, 10, 30, 100, 500)
TRUTH_PROBLEMS = 100_000


@dataclass(frozen=True)
class World:
    """A population of problems.

    Args:
        solve_rates: (generator, number of problems) -> chances of a right answer.
        limit: Tokens at which a completion is cut off; it then is wrong.
        spread: Standard deviation of the problems' log lengths.
    """

    solve_rates: Callable[[np.random.Generator, int], np.ndarray]
    limit: float
    spread: float = 0.5


def _either(share: float, first: Callable[..., np.ndarray], other: Callable[..., np.ndarray]):
    return lambda rng, size: np.where(rng.random(size) < share, first(rng, size), other(rng, size))


def _beta(a: float, b: float):
    return lambda rng, size: rng.beta(a, b, size)


def _all(value: float):
    return lambda rng, size: np.full(size, value)


WORLDS = {
    "even": World(_beta(2, 2), 16_000),
    "even, no limit": World(_beta(2, 2), 1e9),
    "even, no limit, long tail": World(_beta(2, 2), 1e9, 0.7),
    "AIME: 40 % never, 25 % always": World(
        _either(0.4, _all(0.0), _either(0.25 / 0.6, _all(1.0), _beta(1, 1))), 32_000
    ),
    "AIME, short limit": World(_either(0.4, _all(0.0), _either(0.25 / 0.6, _all(1.0), _beta(1, 1))), 12_000),
    "many near 0 and 1": World(_beta(0.3, 0.7), 8_000, 0.7),
    "easy": World(_beta(8, 2), 16_000),
    "nearly solved": World(_either(0.85, _all(0.99), _beta(1, 1)), 16_000),
    "nearly hopeless": World(_either(0.8, _all(0.002), _beta(1, 3)), 16_000),
}


def _completions(rng, rates, log_lengths, num_samples: int, limit: float):
    """Right or not, tokens and answers of shape (P, k); wrong answers are longer and of three kinds."""
    shape = (len(rates), num_samples)
    is_right = rng.random(shape) < rates[:, None]
    lengths = np.exp(log_lengths[:, None] + 0.4 * rng.normal(size=shape) + 0.3 * ~is_right)
    is_correct = is_right & (lengths <= limit)
    wrong = rng.choice(["a", "b", "c"], size=shape, p=[0.6, 0.3, 0.1])
    return is_correct, np.minimum(lengths, limit), np.where(is_correct, "right", wrong)


def draw(rng: np.random.Generator, world: World, size: int, num_samples: int) -> dict[str, np.ndarray]:
    """One value per problem of each statistic; lengths of the run are two thirds of the baseline's."""
    rates = world.solve_rates(rng, size)
    clipped = np.clip(rates, 1e-6, 1 - 1e-6)
    shifted = 1 / (1 + (1 - clipped) / clipped * np.exp(-0.3 - 0.5 * rng.normal(size=size)))
    better = np.where((rates > 0) & (rates < 1), shifted, rates)
    log_lengths = np.log(3000) + 1.2 * (1 - rates) + world.spread * rng.normal(size=size)
    base = _completions(rng, rates, log_lengths, num_samples, world.limit)
    run = _completions(rng, better, log_lengths - 0.4 + 0.2 * rng.normal(size=size), num_samples, world.limit)
    return {
        "accuracy": base[0].mean(axis=1),
        "pass@k": pass_at_k(base[0], num_samples),
        "tokens": base[1].mean(axis=1),
        "accuracy of run": run[0].mean(axis=1),
        "tokens of run": run[1].mean(axis=1),
        "is_correct": base[0],
        "answers": base[2],
    }


def majority(values: dict[str, np.ndarray]) -> np.ndarray:
    rows = zip(values["answers"].tolist(), values["is_correct"].tolist(), strict=True)
    return majority_at_k([votes(answers, is_correct) for answers, is_correct in rows])


STATISTICS: dict[str, Callable[[dict[str, np.ndarray], int], Estimate]] = {
    "accuracy": lambda v, k: mean_share(v["accuracy"]),
    "pass@k": lambda v, k: mean_share(v["pass@k"]),
    "maj@k": lambda v, k: mean_share(majority(v)),
    "tokens": lambda v, k: mean_amount(v["tokens"]),
    "Δ accuracy": lambda v, k: mean_share_difference(v["accuracy of run"] - v["accuracy"], k),
    "Δ tokens": lambda v, k: mean_amount(v["tokens of run"] - v["tokens"], -np.inf),
    "Δ tokens (%)": lambda v, k: ratio_minus_one([v["tokens of run"]], [v["tokens"]]),
}


COLUMNS: dict[str, Callable[[dict[str, np.ndarray]], np.ndarray]] = {
    "accuracy": lambda v: v["accuracy"],
    "pass@k": lambda v: v["pass@k"],
    "maj@k": majority,
    "tokens": lambda v: v["tokens"],
    "Δ accuracy": lambda v: v["accuracy of run"] - v["accuracy"],
    "Δ tokens": lambda v: v["tokens of run"] - v["tokens"],
    # the linear part of the ratio, around its value
    "Δ tokens (%)": lambda v: (
        _ratio(v) * (1 + v["tokens of run"] / v["tokens of run"].mean())
        - _ratio(v) * v["tokens"] / v["tokens"].mean()
        - 1
    ),
}


def _ratio(values: dict[str, np.ndarray]) -> float:
    return float(values["tokens of run"].mean() / values["tokens"].mean())


@cache
def _truth(name: str, num_samples: int, statistics: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """The number itself, and the standard deviation over problems that the best interval would know, by statistic."""
    values = draw(np.random.default_rng(12345), WORLDS[name], TRUTH_PROBLEMS, num_samples)
    columns = {statistic: COLUMNS[statistic](values) for statistic in statistics}
    return {statistic: (float(column.mean()), float(column.std())) for statistic, column in columns.items()}


def coverage(
    name: str, size: int, num_samples: int, num_draws: int, statistics: Sequence[str] = tuple(STATISTICS)
) -> dict[str, tuple[float, float]]:
    """Share of draws whose interval holds the truth, and mean width over that of the best interval, by statistic.

    The best interval knows the standard deviation: 2 * 1.96 * sigma / sqrt(P).
    """
    truth = _truth(name, num_samples, tuple(statistics))
    rng = np.random.default_rng([size, num_samples, *name.encode()])
    found: dict[str, list[Estimate]] = {statistic: [] for statistic in statistics}
    for _ in range(num_draws):
        values = draw(rng, WORLDS[name], size, num_samples)
        for statistic in statistics:
            found[statistic].append(STATISTICS[statistic](values, num_samples))
    best = {statistic: 2 * 1.96 * truth[statistic][1] / size**0.5 for statistic in statistics}
    return {
        statistic: (
            float(np.mean([estimate.low <= truth[statistic][0] <= estimate.high for estimate in estimates])),
            float(np.mean([estimate.high - estimate.low for estimate in estimates])) / best[statistic],
        )
        for statistic, estimates in found.items()
    }


def overall_coverage(names: Sequence[str], size: int, num_samples: int, num_draws: int) -> dict[str, float]:
    """Share of draws whose interval of the mean over benchmarks, each of one population, holds the truth."""
    rng = np.random.default_rng(size)
    found: dict[str, list[bool]] = {"accuracy": [], "tokens": []}
    for _ in range(num_draws):
        values = [draw(rng, WORLDS[name], size, num_samples) for name in names]
        for statistic, covered in found.items():
            estimate = mean_over_benchmarks([STATISTICS[statistic](value, num_samples) for value in values])
            truth = np.mean([_truth(name, num_samples, (*found,))[statistic][0] for name in names])
            covered.append(bool(estimate.low <= truth <= estimate.high))
    return {statistic: float(np.mean(covered)) for statistic, covered in found.items()}


def seed_coverage(num_seeds: int, num_draws: int) -> float:
    """Share of draws whose interval over seeds holds the method's mean on these problems."""
    rng = np.random.default_rng(num_seeds)
    means = 0.85 + 0.03 * rng.normal(size=(num_draws, num_seeds))
    estimates = [mean_over_seeds(row) for row in means]
    return float(np.mean([estimate.low <= 0.85 <= estimate.high for estimate in estimates]))


def main() -> None:
    """Prints the tables."""
    print("# Coverage of the 95 % intervals, in %\n")
    print("`python tests/support/interval_simulation.py > tests/data/interval_coverage.md`\n")
    print("In brackets: mean width over that of the best interval, which knows the true spread.\n")
    for num_samples in (1, 16):
        for size in SIZES:
            num_draws = 2000 if size <= 100 else 400
            print(f"## {size} problems, {num_samples} completions each ({num_draws} draws)\n")
            print(f"| problems | {' | '.join(STATISTICS)} |\n|---|{'---:|' * len(STATISTICS)}", flush=True)
            rows = []
            for name in WORLDS:
                found = coverage(name, size, num_samples, num_draws)
                rows.append([share for share, _ in found.values()])
                cells = [f"{100 * share:.1f} (x{width:.2f})" for share, width in found.values()]
                print(f"| {name} | {' | '.join(cells)} |", flush=True)
            print(f"| mean | {' | '.join(f'{100 * share:.1f}' for share in np.mean(rows, axis=0))} |\n", flush=True)
    print("## Mean over AIME-like, even and easy benchmarks, 16 completions each (2000 draws)\n")
    print("| problems of each | accuracy | tokens |\n|---:|---:|---:|")
    for size in (3, 10, 30, 100):
        found = overall_coverage(["AIME: 40 % never, 25 % always", "even", "easy"], size, 16, 2000)
        print(f"| {size} | {100 * found['accuracy']:.1f} | {100 * found['tokens']:.1f} |", flush=True)
    print("\n## Over seeds\n\n| seeds | accuracy |\n|---:|---:|")
    for num_seeds in (2, 3, 5, 10):
        print(f"| {num_seeds} | {100 * seed_coverage(num_seeds, 4000):.1f} |")


if __name__ == "__main__":
    sys.exit(main())
