"""Toy plants on which rules for lambda are compared: how a mean length answers a price, with momentum and noise.

`python recipes/gym/length_plants.py` prints the rules on the plants of `REPORT_SEED`, with `choose` those of
`CHOICE_SEED`. The constants of `leash_predictive` were chosen there and on the gym (recipes/gym/controllers.md).
Lengths are in units of the first target. Every rule is a function of its state, lambda, the violation, the target and
the plant, of which it may know `lr` and `momentum`; it returns the next lambda and its next state.
"""

import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from leash_trl.length_control.dual import projected_ascent
from leash_trl.length_control.leash_predictive import Forecast


CHOICE_SEED, REPORT_SEED = 14, 2026
NATURAL = 2.5  # length at the start, and where lengths grow back to if they do
SIGMA = math.sqrt(math.log1p(0.4**2))  # of log-normal lengths with a coefficient of variation of 0.4

Step = Callable[[tuple, float, float, float, "Plant"], tuple[float, tuple]]


@dataclass(frozen=True)
class Rule:
    """`weighs_length`: lambda weighs a length advantage of its own; else it is in the reward, as in LEASH."""

    lam: float
    start: tuple
    step: Step
    weighs_length: bool = False


@dataclass(frozen=True)
class Plant:
    """A policy's mean length L. Each update moves it by `growth * (NATURAL - L) - gain * push * L`.

    `push` is a running mean, by `momentum`, of what the price does. In the reward ("any"), it is the share of
    completions over the target at full strength for any lambda above 0, because the group's standard deviation divides
    it out; "overshoot" has lambda times the mean overshoot, as where nothing is divided. A length advantage of its own
    has lambda times that share. `growth` is 0 for a ratchet, on which nothing makes answers longer again.
    """

    form: str
    gain: float
    growth: float
    momentum: float
    noise: float
    lr: float
    updates: int
    change: float
    seed: int


@dataclass(frozen=True)
class Run:
    """Mean length over target, lambda, and the update at which the target changes."""

    ratios: list[float]
    lambdas: list[float]
    change_at: int


def normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def share_over(ratio: float) -> float:
    """P(L_i > L_t) where the mean is `ratio` times the target."""
    return normal_cdf(math.log(ratio) / SIGMA - SIGMA / 2)


def mean_overshoot(ratio: float) -> float:
    """E[max(0, L_i / L_t - 1)]."""
    return ratio * normal_cdf(math.log(ratio) / SIGMA + SIGMA / 2) - share_over(ratio)


def pull(form: str, lam: float, ratio: float) -> float:
    if form == "overshoot":
        return lam * mean_overshoot(ratio)
    return share_over(ratio) * (lam if form == "weight" else lam / (lam + 5e-4))


def draw(kind: str, seed: int, count: int) -> list[Plant]:
    """Random plants: gains over a factor of 25; where lengths grow back, half of the full push holds them or less."""
    random, plants = Random(f"{kind} {seed}"), []
    for index in range(count):
        gain = 0.004 * 25 ** random.random()
        share = random.uniform(0.02, 0.5)  # of the full push at the target
        plants.append(
            Plant(
                form=("any", "any", "overshoot")[index % 3],
                gain=gain,
                growth=0.0 if kind == "ratchet" else share * gain * share_over(1.0) / (NATURAL - 1.0),
                momentum=random.choice((0.8, 0.9, 0.95)),
                noise=random.choice((0.02, 0.05, 0.1, 0.15)),
                lr=random.choice((0.005, 0.02)),
                updates=random.choice((300, 600, 1000)),
                change=0.7 if kind == "ratchet" else random.choice((0.85, 1.4)),
                seed=random.randrange(2**32),
            )
        )
    return plants


def run(plant: Plant, rule: Rule) -> Run:
    """The trainer's order: a batch is sampled, its update uses the lambda at hand, then its mean moves lambda."""
    random, length, lam, state, push = Random(plant.seed), NATURAL, rule.lam, rule.start, 0.0
    lambdas: list[float] = []
    ratios: list[float] = []
    for update in range(plant.updates):
        target = 1.0 if update < plant.updates // 2 else plant.change
        ratios.append(length / target)
        lambdas.append(lam)
        measured = length * (1.0 + plant.noise * random.gauss(0.0, 1.0))
        now = pull("weight" if rule.weighs_length else plant.form, lam, length / target)
        push = plant.momentum * push + (1.0 - plant.momentum) * now
        length += plant.growth * (NATURAL - length) - min(plant.gain * push, 0.5) * length
        lam, state = rule.step(state, lam, measured / target - 1.0, target, plant)
    return Run(ratios, lambdas, plant.updates // 2)


def measures(plant: Plant, result: Run) -> dict[str, float]:
    """`steps` until within 5 %; `undershoot`: largest fall below the target after; of the last third before and after
    the change, `error` (mean distance, without sign), `offset` (with it), `wobble` (std) and `rms`; lambda at the end.
    """
    halves = [result.ratios[: result.change_at], result.ratios[result.change_at :]]
    steps = next((i for i, ratio in enumerate(halves[0]) if ratio <= 1.05), len(halves[0]))
    falls = [1.0 - min(half) for half in (halves if plant.change < 1 else halves[:1])]
    settled = [[ratio - 1.0 for ratio in half[-len(half) // 3 :]] for half in halves]
    offsets = [statistics.fmean(errors) for errors in settled]
    return {
        "steps": steps,
        "undershoot": max(0.0, *falls),
        "error": statistics.fmean(map(abs, offsets)),
        "offset": statistics.fmean(offsets),
        "wobble": statistics.fmean(map(statistics.pstdev, settled)),
        "rms": math.sqrt(statistics.fmean(e * e for errors in settled for e in errors)),
        "lambda": statistics.fmean(result.lambdas[-20:]),
    }


def mean_measures(plants: list[Plant], rule: Rule) -> dict[str, float]:
    rows = [measures(plant, run(plant, rule)) for plant in plants]
    return {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}


def clipped(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def leash(state, lam, e, target, plant):
    return projected_ascent(lam, e, plant.lr, 0.0, 1.0), state


def gate(level: float, e: float) -> float:
    """Positive: open. The first batch at the target closes it; a debt that fades as 0.9 ** t opens it again."""
    return e + 0.9 * min(level, 0.0)


def gated(state, lam, e, target, plant):
    """The retired `leash_gated`: LEASH's multiplier where the gate is open, else 0."""
    integral, level = projected_ascent(state[0], e, plant.lr, 0.0, 1.0), gate(state[1], e)
    return integral if level > 0 else 0.0, (integral, level)


def gated_weight(state, lam, e, target, plant):
    level = gate(state[0], e)
    return float(level > 0), (level,)


def smoothed(state, e, weight):
    return e if state is None else weight * state + (1.0 - weight) * e


def proportional(state, lam, e, target, plant):
    mean = smoothed(state[0], e, 0.8)
    return clipped(mean / 0.3), (mean,)


def proportional_with_slope(state, lam, e, target, plant):
    """The smoothed violation, extrapolated by its smoothed slope."""
    mean = smoothed(state[0], e, 0.85)
    slope = smoothed(state[1], 0.0 if state[0] is None else mean - state[0], 0.85)
    return clipped((mean + 15 * slope) / 0.3), (mean, slope)


def predictive(state, lam, e, target, plant):
    forecast = Forecast(*state).aimed_at(target).corrected(e).after_update(lam, plant.momentum)
    return clipped(forecast.needed_push(plant.momentum)), forecast


RULES = {
    "leash": Rule(0.1, (), leash),
    "leash_gated (retired)": Rule(0.1, (0.1, 0.0), gated),
    "weight, gated": Rule(1.0, (0.0,), gated_weight, True),
    "weight, proportional": Rule(1.0, (None,), proportional, True),
    "weight, with slope": Rule(1.0, (None, None), proportional_with_slope, True),
    "leash_predictive": Rule(1.0, (), predictive, True),
}


def table(seed: int, count: int, kind: str) -> str:
    plants = draw(kind, seed, count)
    rows = [f"{kind + ', ' + str(count) + ' plants':24s} steps  under  error offset wobble    rms lambda"]
    for name, rule in RULES.items():
        m = mean_measures(plants, rule)
        rows.append(
            f"{name:24s} {m['steps']:5.0f} {m['undershoot']:6.3f} {m['error']:6.3f} {m['offset']:+6.3f} "
            f"{m['wobble']:6.3f} {m['rms']:6.4f} {m['lambda']:6.3f}"
        )
    return "\n".join(rows)


def breakdown(seed: int, count: int, kind: str) -> str:
    """rms of the rules in use by each property of the plant."""
    plants, names = draw(kind, seed, count), ("leash", "leash_gated (retired)", "leash_predictive")
    rms = {name: [measures(plant, run(plant, RULES[name]))["rms"] for plant in plants] for name in names}
    wins = [sum(a < b for a, b in zip(rms[names[2]], rms[other], strict=True)) / count for other in names[:2]]
    rows = [f"{kind}: {names[2]} is better than {names[0]} on {wins[0]:.0%}, than {names[1]} on {wins[1]:.0%}"]
    for field in ("form", "momentum", "noise", "lr", "updates", "change"):
        for value in sorted({getattr(plant, field) for plant in plants}):
            own = [i for i, plant in enumerate(plants) if getattr(plant, field) == value]
            means = "  ".join(f"{statistics.fmean(rms[name][i] for i in own):.4f}" for name in names)
            rows.append(f"{field + ' ' + str(value):24s} {means}")
    order = sorted(range(count), key=lambda i: plants[i].gain)
    for third, own in (("low", order[: count // 3]), ("high", order[-count // 3 :])):
        means = "  ".join(f"{statistics.fmean(rms[name][i] for i in own):.4f}" for name in names)
        rows.append(f"{'gain, ' + third + ' third':24s} {means}")
    return "\n".join(rows)


if __name__ == "__main__":
    seed = CHOICE_SEED if "choose" in sys.argv else REPORT_SEED
    for kind in ("ratchet", "elastic"):
        print(table(seed, 300, kind))
        print(breakdown(seed, 300, kind))
