"""Toy plants on which controllers of length are compared: how a mean length answers lambda, with momentum and noise.

`python recipes/gym/length_plants.py` prints the table of controllers.md, of plants that chose nothing (`REPORT_SEED`);
another seed may follow, `CHOICE_SEED` being that of the choices. A length is the logarithm of tokens over target. A
rule is a generator that yields lambda and is sent the violation that was measured; it is told the plant's momentum.
"""

import math
import statistics
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from random import Random

from leash_trl.length_control.dual import projected_ascent
from leash_trl.length_control.leash_predictive import Forecast, delayed_momentum


CHOICE_SEED, REPORT_SEED = 14, 2026
COUNT, UPDATES = 40, 600
KINDS = {
    "linear": "response and drift are constant, as the rule assumes",
    "falling": "the response falls 5 to 10 times on the way to the target, the needed push stays",
    "ratchet": "the same, but nothing makes answers longer again",
    "elastic": "lengths are drawn back to where they started, the more the shorter they get",
    "hazard": "0.70 to 0.85 of the target cannot be cut, so the response falls 3 to 8 times",
    "drifting": "response and needed push wander with time, each by 1 to 4 % in an update",
    "delayed": "as falling, and a batch shows the policy of 5 to 20 updates ago",
    "mixed": "all of these at once, each by a random amount, the delay 0 to 20",
    "gym": "as measured on the gym at 16 tokens: the response falls from 0.08 to 0.025 in a seventh of the way",
}
LOGNORMAL = math.sqrt(math.log1p(0.4**2))  # deviation of the logarithm of a length

Controller = Callable[["Plant"], Generator[float, float, None]]


@dataclass
class Plant:
    """A policy; `response` is that of the start, and the needed push `holding` that at the target."""

    kind: str
    start: float
    holding: float
    momentum: float
    noise: float
    seed: int
    response: float = 1.0
    falls: float = 1.0
    core: float = 0.0
    elastic: float = 0.0
    wander: float = 0.0
    delay: int = 0

    def share_of_response(self, length: float) -> float:
        """The response over that at the start."""
        place = min(max(length / self.start, -0.2), 1.2)
        if self.kind == "gym":
            place = 0.8 * min(max((place - 0.62) / 0.12, 0.0), 1.0) + 0.2 * min(max(place / 0.62, 0.0), 1.0)
        cuttable = max(1.0 - self.core * math.exp(-length), 0.02) / (1.0 - self.core * math.exp(-self.start))
        return self.falls ** (place - 1.0) * cuttable

    def fall_and_drift(self, length: float, wandered: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float]:
        """By how much the length falls in an update with a push of 1, and rises without."""
        response = self.response * self.share_of_response(length) * math.exp(wandered[0])
        holding = self.holding and min(1.0 / (1.0 + (1.0 / self.holding - 1.0) * math.exp(-wandered[1])), 0.9)
        drawn_back = math.expm1(self.start - length) / math.expm1(self.start)
        spring = holding * self.response * self.share_of_response(0.0) * min(drawn_back, 2.0)
        return response, self.elastic * spring + (1.0 - self.elastic) * holding * response


def draw(kind: str, seed: int, count: int = COUNT) -> list[Plant]:
    """Random plants. A full push needs 20 to 250 updates to the target, more where lengths would grow by over 3 % in
    an update without a push.
    """
    random, plants = Random(f"{kind} {seed}"), []
    for _ in range(count):
        plant = Plant(
            kind=kind,
            start=math.log(random.uniform(1.5, 4.5)),
            holding=0.0 if kind == "ratchet" else random.uniform(0.1, 0.9),
            momentum=random.choice((0.8, 0.9, 0.95)),
            noise=random.choice((0.02, 0.05, 0.1, 0.15)),
            seed=random.randrange(2**32),
        )
        if kind in ("falling", "ratchet", "delayed"):
            plant.falls = random.uniform(5.0, 10.0)
        if kind == "mixed":
            plant.falls, plant.core = random.uniform(1.0, 10.0), random.uniform(0.0, 0.5)
        if kind == "hazard":
            plant.core = random.uniform(0.7, 0.85)
        plant.elastic = {"elastic": 1.0, "gym": 1.0, "mixed": random.random()}.get(kind, 0.0)
        plant.wander = {"drifting": random.uniform(0.01, 0.04), "mixed": random.uniform(0.0, 0.03)}.get(kind, 0.0)
        plant.delay = {"delayed": random.randint(5, 20), "mixed": random.randint(0, 20)}.get(kind, 0)
        steps = [plant.fall_and_drift(plant.start * (i + 0.5) / 100) for i in range(100)]
        updates = sum(plant.start / 100 / (fall - drift) for fall, drift in steps)
        plant.response = min(updates / (20 * 12.5 ** random.random()), 0.25)
        plant.response *= min(1.0, 0.03 / max(plant.fall_and_drift(0.0)[1], 1e-9))
        if kind == "gym":
            plant.start, plant.holding = math.log(68 / 16), random.uniform(0.1, 0.45)
            plant.response, plant.momentum, plant.noise = random.uniform(0.07, 0.1), 0.9, 0.1
            plant.falls = plant.response / random.uniform(0.018, 0.03)
        plants.append(plant)
    return plants


def run(plant: Plant, controller: Controller, updates: int = UPDATES) -> list[float]:
    """The length before each update. A batch is sampled, its update uses the lambda at hand, then it moves lambda."""
    random, rule, push, wandered = Random(plant.seed), controller(plant), 0.0, (0.0, 0.0)
    lam, lengths, is_leash = next(rule), [plant.start], getattr(controller, "func", None) is leash
    for _ in range(updates):
        measured = lengths[max(len(lengths) - 1 - plant.delay, 0)] + plant.noise * random.gauss(0.0, 1.0)
        # LEASH's lambda is in the reward: any lambda presses at full strength on the completions over the target
        over = 0.5 * math.erfc(-(lengths[-1] / LOGNORMAL - LOGNORMAL / 2) / math.sqrt(2.0))
        pressed = over * lam / (lam + 5e-4) if is_leash else lam
        push = plant.momentum * push + (1.0 - plant.momentum) * pressed
        wandered = tuple(min(max(w + plant.wander * random.gauss(0.0, 1.0), -1.5), 1.5) for w in wandered)
        fall, drift = plant.fall_and_drift(lengths[-1], wandered)
        lam = rule.send(math.expm1(measured))
        lengths.append(max(lengths[-1] - min(fall * push, 0.5) + drift, -3.0))
    return lengths


def clipped(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def leash(plant: Plant, lr: float):
    lam = 0.1
    while True:
        lam = projected_ascent(lam, (yield lam), lr, 0.0, 1.0)


def pid_lagrangian(plant: Plant):
    """Proportional, integral and derivative parts of the smoothed violation, on a length advantage."""
    lam, integral, smooth = 1.0, 0.0, None
    while True:
        violation = yield lam
        before, smooth = smooth, violation if smooth is None else 0.9 * smooth + 0.1 * violation
        integral = clipped(integral + 0.01 * violation)
        lam = clipped(smooth + integral + 5.0 * (0.0 if before is None else smooth - before))


def predictive(plant: Plant, told: bool = False, seen: list[float] | None = None):
    """LEASH-Predictive, which may be told by how many updates batches are late."""
    lam, forecast = 1.0, Forecast()
    momentum = delayed_momentum(plant.momentum, plant.delay * told)
    while True:
        violation = yield lam
        forecast = forecast.update(violation).predict(lam, momentum)
        lam = clipped(forecast.control(momentum))
        if seen is not None:
            seen.append(forecast.response)


RULES: dict[str, Controller] = {
    "LEASH, lr 0.005": partial(leash, lr=0.005),
    "LEASH, lr 0.05": partial(leash, lr=0.05),
    "PID-Lagrangian": pid_lagrangian,
    "LEASH-Predictive": predictive,
    "the same, told of the delay": partial(predictive, told=True),
}


def measures(plant: Plant, controller: Controller) -> tuple[float, float, float]:
    """Whether the last ten updates are within 5 % of the target after 200 and after 600 updates (the gym's 100), and
    the root mean square of the logarithm of length over target in the last quarter.
    """
    lengths = run(plant, controller)
    ends = (100 if plant.kind == "gym" else 200, len(lengths))
    early, late = (abs(math.expm1(statistics.fmean(lengths[end - 10 : end]))) < 0.05 for end in ends)
    return early, late, math.sqrt(statistics.fmean(length**2 for length in lengths[-UPDATES // 4 :]))


def learned(response: float, holding: float, count: int = 8) -> tuple[float, float]:
    """Response that is learned in 600 updates of the linear plant, from three times the target at noise 0.10, and the
    logarithm of length over target in the last hundred: means over seeds, the first a geometric one.
    """
    seen: list[float] = []
    lengths: list[float] = []
    for seed in range(count):
        plant = Plant("linear", math.log(3.0), holding, 0.9, 0.1, seed, response)
        lengths += run(plant, partial(predictive, seen=seen))[-100:]
    return statistics.geometric_mean(seen[UPDATES - 1 :: UPDATES]), statistics.fmean(lengths)


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else REPORT_SEED
    plants = {kind: draw(kind, seed) for kind in KINDS}
    print(f"{'':28s}" + " ".join(f"{kind:>14s}" for kind in (*KINDS, "mean")))
    for name, rule in RULES.items():
        rows = {kind: [measures(plant, rule) for plant in plants[kind]] for kind in KINDS}
        means = [tuple(map(statistics.fmean, zip(*rows[kind], strict=True))) for kind in KINDS]
        means.append(tuple(map(statistics.fmean, zip(*means, strict=True))))
        print(f"{name:28s}" + " ".join(f"{a:4.0%} {b:4.0%} {rms:.3f}" for a, b, rms in means), flush=True)
    print("response  holding  learned  length off")
    for response in (0.005, 0.02, 0.05):
        for holding in (0.2, 0.5, 0.8):
            found, off = learned(response, holding)
            print(f"{response:8.3f}  {holding:7.1f}  {found:7.4f}  {math.expm1(off):+10.1%}")
