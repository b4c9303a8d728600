"""How often intervals cover the truth, by simulation; `tests/fixtures/interval_coverage.md` is what it prints.

Problems have a difficulty and a usual length; k completions of each are right or wrong, the wrong ones longer, and are
cut off at a limit. A second run answers the same problems a little better and a third shorter. The truth is what
100,000 problems give. All seeds are fixed.
"""

import itertools
import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from leash_trl.evaluation import intervals


class World(NamedTuple):
    """A population of problems: (generator, how many) -> chances of a right answer; the limit in tokens, which makes
    what it cuts wrong; and the standard deviation of the problems' log lengths."""

    solve_rates: Callable
    limit: float
    spread: float = 0.5


def _beta(a, b, rng, size):
    return rng.beta(a, b, size)


def _mixed(never, always, rng, size):
    """Shares of problems that are never and always solved, and any rates of the others."""
    quantile = rng.random(size)
    rates = rng.random(size)
    rates[quantile < never + always] = 1.0
    rates[quantile < never] = 0.0
    return rates


WORLDS = {
    "even": World(partial(_beta, 2, 2), 16_000),
    "even, no limit, long tail": World(partial(_beta, 2, 2), math.inf, 0.7),
    "AIME": World(partial(_mixed, 0.4, 0.25), 32_000),
    "AIME, short limit": World(partial(_mixed, 0.4, 0.25), 12_000),
    "many near 0 and 1": World(partial(_beta, 0.3, 0.7), 8_000, 0.7),
    "easy": World(partial(_beta, 8, 2), 16_000),
    "nearly solved": World(partial(_mixed, 0.0, 0.85), 16_000),
    "nearly hopeless": World(partial(_mixed, 0.8, 0.0), 16_000),
}


def _parts_right(num_parts, rates, rng, num_samples):
    """Partial credit: the share of a completion's parts that are right."""
    return rng.binomial(num_parts, rates[:, None], (len(rates), num_samples)) / num_parts


def _similarities(rates, rng, num_samples):
    """Similarities to the gold, of any value, most of them near 1."""
    noise = rng.normal(size=(len(rates), num_samples))
    logits = 2 + 2 * rates[:, None] + 0.5 * noise
    return 1 / (1 + np.exp(-logits))


def _format_and_answer(rates, rng, num_samples):
    """A fifth of the credit for the form, the rest for the answer."""
    shape = (len(rates), num_samples)
    has_form = rng.random(shape) < 0.97
    has_answer = rng.random(shape) < rates[:, None]
    return 0.2 * has_form + 0.8 * has_answer


# graded rewards in [0, 1]: (generator, how many) -> rates of problems; (rates, generator, completions) -> rewards
REWARD_WORLDS = {
    "parts, even": (partial(_beta, 1.5, 1.5), partial(_parts_right, 5)),
    "parts, easy": (partial(_beta, 12, 1), partial(_parts_right, 10)),
    "parts, nearly solved": (partial(_mixed, 0.0, 0.85), partial(_parts_right, 5)),
    "parts, nearly hopeless": (partial(_mixed, 0.8, 0.0), partial(_parts_right, 5)),
    "similarities": (partial(_beta, 2, 2), _similarities),
    "form and answer": (partial(_beta, 2, 2), _format_and_answer),
}


def _mean_rewards(name, rng, size, num_samples):
    draw_rates, draw_rewards = REWARD_WORLDS[name]
    rates = draw_rates(rng, size)
    rewards = draw_rewards(rates, rng, num_samples)
    return rewards.mean(axis=1)


def reward_coverage(name, size, num_samples, num_draws):
    """Share of draws whose interval of the mean reward over `size` problems holds the truth."""
    truth = _mean_rewards(name, np.random.default_rng(12345), 100_000, num_samples).mean()
    rng = np.random.default_rng([size, num_samples, *name.encode()])
    num_covered = 0
    for _ in range(num_draws):
        rewards = _mean_rewards(name, rng, size, num_samples)
        _, low, high = intervals.mean_bounded(rewards, low=0.0, high=1.0)
        num_covered += low <= truth <= high
    return num_covered / num_draws


def _completions(rng, rates, log_lengths, num_samples, limit):
    """Share of right completions and mean tokens of each problem; wrong answers are longer."""
    shape = (len(rates), num_samples)
    is_right = rng.random(shape) < rates[:, None]
    noise = 0.4 * rng.normal(size=shape)
    lengths = np.exp(log_lengths[:, None] + noise + 0.3 * ~is_right)
    is_right &= lengths <= limit
    lengths = np.minimum(lengths, limit)
    return is_right.mean(axis=1), lengths.mean(axis=1)


def draw(rng, world, size, num_samples):
    """Shares of right completions and mean tokens of each problem: of the baseline, and of the run."""
    rates = world.solve_rates(rng, size)
    gains = np.exp(0.3 + 0.5 * rng.normal(size=size))
    odds = gains * rates / np.maximum(1 - rates, 1e-12)
    noise = world.spread * rng.normal(size=size)
    log_lengths = np.log(3000) + 1.2 * (1 - rates) + noise
    base = _completions(rng, rates, log_lengths, num_samples, world.limit)
    shorter = log_lengths - 0.4 + 0.2 * rng.normal(size=size)
    run = _completions(rng, odds / (1 + odds), shorter, num_samples, world.limit)
    return base + run


def estimates(benchmark, num_samples):
    """Each statistic of a benchmark's draw, as `leash eval` computes it."""
    shares, lengths, run_shares, run_lengths = benchmark
    return {
        "accuracy": intervals.mean_share(shares),
        "tokens": intervals.mean_unbounded(lengths),
        "Δ accuracy": intervals.mean_bounded_difference(run_shares - shares, 0, 1, num_samples),
        "Δ tokens": intervals.mean_unbounded(run_lengths - lengths, -math.inf),
        "Δ tokens (%)": intervals.ratio_minus_one([run_lengths], [lengths]),
    }


@cache
def _truth(name, num_samples):
    return draw(np.random.default_rng(12345), WORLDS[name], 100_000, num_samples)


class Coverage(NamedTuple):
    """Share of draws whose interval holds the truth, and mean width over that of the best interval, which knows how
    far the numbers spread: 2 * 1.96 standard deviations."""

    share: float
    relative_width: float


def coverage(name, size, num_samples, num_draws):
    """How the intervals of a benchmark of such problems cover, by statistic."""
    rng = np.random.default_rng([size, num_samples, *name.encode()])
    truth = estimates(_truth(name, num_samples), num_samples)
    drawn = []
    for _ in range(num_draws):
        benchmark = draw(rng, WORLDS[name], size, num_samples)
        drawn.append(estimates(benchmark, num_samples))
    coverages = {}
    for statistic, (true_value, _, _) in truth.items():
        value, low, high = np.array([by_statistic[statistic] for by_statistic in drawn]).T
        covers = (low <= true_value) & (true_value <= high)
        best_width = 3.92 * value.std()
        coverages[statistic] = Coverage(covers.mean(), np.mean(high - low) / best_width)
    return coverages


def seed_coverage(num_seeds, num_draws):
    """Share of draws whose interval over seeds holds the method's mean on these problems."""
    rng = np.random.default_rng(num_seeds)
    means = 0.85 + 0.03 * rng.normal(size=(num_draws, num_seeds))
    drawn = map(intervals.mean_over_seeds, means)
    return np.mean([low <= 0.85 <= high for _, low, high in drawn])


def main():
    """Prints the table."""
    print("# Coverage of the 95 % intervals, in %\n\nPrinted by `python tests/support/interval_simulation.py`.")
    print(f"Means over {len(WORLDS)} populations of problems, of 1000 draws each; in brackets the worst.\n")
    statistics = ("accuracy", "tokens", "Δ accuracy", "Δ tokens", "Δ tokens (%)")
    print(f"| problems | completions | {' | '.join(statistics)} |\n|{'---:|' * (2 + len(statistics))}")
    for num_samples, size in itertools.product((1, 16), (3, 5, 10, 30, 100)):
        coverages = [coverage(name, size, num_samples, 1000) for name in WORLDS]
        cells = []
        for statistic in statistics:
            shares = [100 * by_statistic[statistic].share for by_statistic in coverages]
            cells.append(f"{np.mean(shares):.1f} ({min(shares):.1f})")
        print(f"| {size} | {num_samples} | {' | '.join(cells)} |", flush=True)
    print(f"\nMeans of graded rewards in [0, 1], over {len(REWARD_WORLDS)} populations; in brackets the worst.\n")
    print("| problems | completions | mean reward |\n|---:|---:|---:|")
    for num_samples, size in itertools.product((1, 16), (3, 5, 10, 30, 100)):
        column = [100 * reward_coverage(name, size, num_samples, 1000) for name in REWARD_WORLDS]
        print(f"| {size} | {num_samples} | {np.mean(column):.1f} ({min(column):.1f}) |", flush=True)
    seeds = ", ".join(f"{100 * seed_coverage(count, 4000):.1f} of {count}" for count in (2, 3, 5, 10))
    print(f"\nIntervals over seeds: {seeds}.")


if __name__ == "__main__":
    main()
