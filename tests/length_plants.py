"""Toy plants on which rules for lambda are compared: how a mean length answers a price, with delay and noise.

`python tests/length_plants.py` prints the rules on the plants of `REPORT_SEED`, with `choose` those of `CHOICE_SEED`.
The rule and its constant were chosen on the latter alone. Lengths are in units of the first target. Every rule is a
pure function of its state, the violation and `lambda_lr`; it returns lambda and its next state.
"""

import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from leash_trl.length_control.dual import gate_level, projected_ascent


CHOICE_SEED, REPORT_SEED = 14, 2026
NATURAL = 2.5  # length at the start, and where lengths grow back to if they do
INIT = 0.1
SIGMA = math.sqrt(math.log1p(0.4**2))  # of log-normal lengths with a coefficient of variation of 0.4

Step = Callable[[tuple, float, float], tuple[float, tuple]]


@dataclass(frozen=True)
class Rule:
    start: tuple
    step: Step


@dataclass(frozen=True)
class Plant:
    """A policy's mean length L. Each update moves it by `growth * (NATURAL - L) - gain * push * L`.

    `push`: of the mean overshoot ("overshoot": lambda times it; "share": lambda times the share of completions over
    the target; "any": that share at full strength for any lambda above 0, as where the group's standard deviation
    divides it out). `growth` is 0 for a ratchet, on which nothing makes answers longer again.
    """

    push: str
    gain: float
    growth: float
    delay: int
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


def push(form: str, lam: float, ratio: float) -> float:
    if form == "overshoot":
        return lam * mean_overshoot(ratio)
    return share_over(ratio) * (lam if form == "share" else lam / (lam + 5e-4))


def draw(kind: str, seed: int, count: int) -> list[Plant]:
    """Random plants: gains over a factor of 25; where lengths grow back, the price that holds them is 0.05 to 0.7."""
    random, plants = Random(f"{kind} {seed}"), []
    for index in range(count):
        form = ("overshoot", "share", "any")[index % 3]
        gain = (0.004 if form == "any" else 0.02) * 25 ** random.random()
        price, change = random.uniform(0.05, 0.7), random.choice((0.7, 1.4))
        if kind == "ratchet":
            change = 0.7  # lengths could not follow a higher target
        elif price >= 0.5:
            change = 1.4  # nor would a price below 1 hold the lower one here
        at_target = mean_overshoot(1.0) if form == "overshoot" else share_over(1.0)
        plants.append(
            Plant(
                push=form,
                gain=gain,
                growth=0.0 if kind == "ratchet" else price * gain * at_target / (NATURAL - 1.0),
                delay=random.choice((0, 1, 5)),
                noise=random.choice((0.02, 0.05, 0.1)),
                lr=random.choice((0.005, 0.02)),
                updates=random.choice((300, 600, 1000)),
                change=change,
                seed=random.randrange(2**32),
            )
        )
    return plants


def run(plant: Plant, rule: Rule) -> Run:
    """The trainer's order: a batch is sampled, its update uses the lambda at hand, then its mean moves lambda."""
    random, length, lam, state = Random(plant.seed), NATURAL, INIT, rule.start
    lambdas: list[float] = []
    ratios: list[float] = []
    for update in range(plant.updates):
        target = 1.0 if update < plant.updates // 2 else plant.change
        ratios.append(length / target)
        lambdas.append(lam)
        measured = length * (1.0 + plant.noise * random.gauss(0.0, 1.0))
        felt = lambdas[update - plant.delay] if update >= plant.delay else 0.0
        shrink = min(plant.gain * push(plant.push, felt, length / target), 0.5)
        length += plant.growth * (NATURAL - length) - shrink * length
        lam, state = rule.step(state, measured / target - 1.0, plant.lr)
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


def clipped(value: float, low: float = 0.0, high: float = 1.0) -> float:
    return min(max(value, low), high)


def leash(state, e, lr):
    lam = projected_ascent(state[0], e, lr, 0.0, 1.0)
    return lam, (lam,)


def gated(state, e, lr, memory=0.9, freeze=False):
    lam, level = state
    level = gate_level(e, level, memory)
    if level > 0 or not freeze:
        lam = projected_ascent(lam, e, lr, 0.0, 1.0)
    return lam if level > 0 else 0.0, (lam, level)


def smoothed(state, e, weight=0.5):
    return e if state is None else weight * state + (1.0 - weight) * e


def leash_pi(state, e, lr, gain=0.1, ceiling_gain=4.0):
    """The controller that `leash_gated` replaces: PI, conditional integration, a ceiling that falls with e."""
    integral, e = state[0], smoothed(state[1], e)
    ceiling, wanted = clipped(ceiling_gain * e), gain * e + integral
    after = clipped(integral + lr * e)
    held = (wanted > ceiling and e > 0) or (wanted < 0 and e < 0)
    return clipped(wanted, high=ceiling), (integral if held else after, e)


def textbook_pi(state, e, lr, gain=1.0):
    return clipped(gain * e + state[0]), (clipped(state[0] + lr * e),)


def back_calculation(state, e, lr, gain=1.0, tracking=0.5):
    wanted = gain * e + state[0]
    return clipped(wanted), (state[0] + lr * e + tracking * (clipped(wanted) - wanted),)


def predictive(state, e, lr, horizon=20):
    """Integral of the violation extrapolated by its measured slope."""
    e, past = smoothed(state[1], e), state[1]
    lam = clipped(state[0] + lr * (e + horizon * (e - (e if past is None else past))))
    return lam, (lam, e)


def leaky(state, e, lr, leak=0.1):
    lam = clipped(state[0] * (1.0 - leak if e < 0 else 1.0) + lr * e)
    return lam, (lam,)


def asymmetric(state, e, lr, faster=20.0):
    lam = clipped(state[0] + lr * e * (faster if e < 0 else 1.0))
    return lam, (lam,)


def reset(state, e, lr):
    """Integral set to 0 where the smoothed violation turns negative."""
    lam, past = state
    e = smoothed(past, e)
    lam = 0.0 if past is not None and past > 0 >= e else clipped(lam + lr * e)
    return lam, (lam, e)


def hysteresis(state, e, lr, band=0.05):
    """Open above the band, closed at 0 and below, of the smoothed violation."""
    lam, past, is_open = state
    mean = smoothed(past, e)
    is_open = mean > band or (is_open and mean > 0)
    lam = clipped(lam + lr * e)
    return lam if is_open else 0.0, (lam, mean, is_open)


def response_bound(state, e, lr, horizon=5):
    """LEASH's lambda, at most what by the measured response meets the target in `horizon` updates."""
    integral, past, used, cross, square = state
    mean = smoothed(past, e)
    fall = 0.0 if past is None else math.log1p(max(past, -0.9)) - math.log1p(max(mean, -0.9))
    cross, square = 0.95 * cross + fall * used, 0.95 * square + used * used
    response = max(cross / max(square, 1e-9), 1e-4)
    integral = clipped(integral + lr * e)
    lam = min(integral, max(math.log1p(max(mean, -0.9)), 0.0) / (response * horizon))
    return lam, (integral, mean, lam, cross, square)


RULES = {
    "leash": Rule((INIT,), leash),
    "leash_pi (retired)": Rule((INIT, None), leash_pi),
    "leash_gated": Rule((INIT, 0.0), gated),
    "textbook PI": Rule((INIT,), textbook_pi),
    "back-calculation": Rule((INIT,), back_calculation),
    "predictive": Rule((INIT, None), predictive),
    "leaky integral": Rule((INIT,), leaky),
    "faster down": Rule((INIT,), asymmetric),
    "reset at the target": Rule((INIT, None), reset),
    "hysteresis, smoothed": Rule((INIT, None, True), hysteresis),
    "response bound": Rule((INIT, None, INIT, 0.0, 0.0), response_bound),
    "gated, frozen integral": Rule((INIT, 0.0), partial(gated, freeze=True)),
    **{f"gated, memory {m}": Rule((INIT, 0.0), partial(gated, memory=m)) for m in (0.0, 0.5, 0.8, 0.85, 0.95, 1.0)},
}


def table(seed: int, count: int, kind: str, rules: dict[str, Rule] = RULES) -> str:
    plants = draw(kind, seed, count)
    rows = [f"{kind + ', ' + str(count) + ' plants':24s} steps  under  error offset wobble    rms lambda"]
    for name, rule in rules.items():
        m = mean_measures(plants, rule)
        rows.append(
            f"{name:24s} {m['steps']:5.0f} {m['undershoot']:6.3f} {m['error']:6.3f} {m['offset']:+6.3f} "
            f"{m['wobble']:6.3f} {m['rms']:6.4f} {m['lambda']:6.3f}"
        )
    return "\n".join(rows)


def breakdown(seed: int, count: int, kind: str) -> str:
    """rms of the three named rules by each property of the plant."""
    plants, names = draw(kind, seed, count), ("leash", "leash_pi (retired)", "leash_gated")
    rms = {name: [measures(plant, run(plant, RULES[name]))["rms"] for plant in plants] for name in names}
    wins = [sum(a < b for a, b in zip(rms[names[2]], rms[other], strict=True)) / count for other in names[:2]]
    rows = [f"{kind}: leash_gated is better than {names[0]} on {wins[0]:.0%}, than {names[1]} on {wins[1]:.0%}"]
    for field in ("push", "delay", "noise", "lr", "updates", "change"):
        for value in sorted({getattr(plant, field) for plant in plants}):
            own = [i for i, plant in enumerate(plants) if getattr(plant, field) == value]
            means = "  ".join(f"{statistics.fmean(rms[name][i] for i in own):.4f}" for name in names)
            rows.append(f"{field + ' ' + str(value):24s} {means}")
    order = sorted(range(count), key=lambda i: plants[i].gain / (0.2 if plants[i].push == "any" else 1.0))
    for third, own in (("low", order[: count // 3]), ("high", order[-count // 3 :])):
        means = "  ".join(f"{statistics.fmean(rms[name][i] for i in own):.4f}" for name in names)
        rows.append(f"{'gain, ' + third + ' third':24s} {means}")
    return "\n".join(rows)


if __name__ == "__main__":
    seed = CHOICE_SEED if "choose" in sys.argv else REPORT_SEED
    for kind in ("ratchet", "elastic"):
        print(table(seed, 300, kind))
        print(breakdown(seed, 300, kind))
