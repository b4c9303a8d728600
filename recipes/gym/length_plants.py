"""Toy plants on which controllers of length are compared: how a mean length answers lambda, with momentum and noise.

`python recipes/gym/length_plants.py` prints the table of controllers.md, of plants that chose nothing (`REPORT_SEED`);
another seed may follow, `CHOICE_SEED` being that of the choices. A length is the logarithm of tokens over target. A
rule is a generator that yields lambda and is sent the violation that was measured; it is told the plant's momentum.
"""

import math
import statistics
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import NamedTuple

from leash_trl.length_control.dual import projected_ascent
from leash_trl.length_control.forecast import Forecast


CHOICE_SEED = 14
REPORT_SEED = 2026
COUNT = 40  # plants of a kind
UPDATES = 600
TREND_UPDATES = 200  # updates in which a trend ends
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


class Wander(NamedTuple):
    """By how much response and needed push have changed with time, in their logarithm and logit."""

    response: float = 0.0
    holding: float = 0.0


@dataclass
class Plant:
    """A policy, and how its mean length answers a push."""

    kind: str  # one of KINDS
    start: float  # length before training
    holding: float  # push that keeps the length at the target
    momentum: float  # of the optimizer
    noise: float  # standard deviation of a batch's length
    seed: int  # of the noise
    response: float = 1.0  # by how much the length falls in an update with a push of 1, at the start
    falls: float = 1.0  # factor by which the response falls on the way to the target
    core: float = 0.0  # share of the target that cannot be cut
    elastic: float = 0.0  # 1 if lengths are drawn back to the start, 0 if they rise at a constant rate
    wander: float = 0.0  # standard deviation, by update, of a walk of response and needed push
    delay: int = 0  # updates since the policy that a batch shows
    trend: Wander = field(
        default_factory=Wander
    )  # change of response and needed push until update 200, besides the walk
    jumps: dict[int, float] = field(default_factory=dict)  # by update, what is added to the length whatever the push

    def share_of_response(self, length: float) -> float:
        """The response over that at the start."""
        way_left = min(max(length / self.start, -0.2), 1.2)  # 1 at the start, 0 at the target
        if self.kind == "gym":
            # four fifths of the fall in logarithms are in a seventh of the way, at lengths 0.74 to 0.62 of the start
            steep = min(max((way_left - 0.62) / 0.12, 0.0), 1.0)
            flat = min(max(way_left / 0.62, 0.0), 1.0)
            way_left = 0.8 * steep + 0.2 * flat
        if self.kind == "switching":
            # the whole change of the response is at lengths of 1.3 to 1.9 times the target
            way_left = min(max((length - 0.25) / 0.4, 0.0), 1.0)
        # the part of a length that can be cut, over that at the start
        cuttable = max(1.0 - self.core * math.exp(-length), 0.02) / (1.0 - self.core * math.exp(-self.start))
        return self.falls ** (way_left - 1.0) * cuttable

    def fall_and_drift(self, length: float, wander: Wander | None = None) -> tuple[float, float]:
        """By how much the length falls in an update with a push of 1, and rises without."""
        wander = wander or Wander()
        response = self.response * self.share_of_response(length) * math.exp(wander.response)
        holding = self.holding
        if holding > 0:
            # the needed push wanders in its logit, which keeps it between 0 and 1
            odds_against = (1.0 / holding - 1.0) * math.exp(-wander.holding)
            holding = min(1.0 / (1.0 + odds_against), 0.9)
        drawn_back = math.expm1(self.start - length) / math.expm1(self.start)
        spring = holding * self.response * self.share_of_response(0.0) * min(drawn_back, 2.0)
        drift = self.elastic * spring + (1.0 - self.elastic) * holding * response
        return response, drift

    def updates_to_target(self) -> float:
        """How many updates a push of 1 needs from the start to the target, summed over a hundred parts of the way."""
        updates = 0.0
        for part in range(100):
            fall, drift = self.fall_and_drift(self.start * (part + 0.5) / 100)
            updates += self.start / 100 / (fall - drift)
        return updates


def draw(kind: str, seed: int, count: int = COUNT) -> list[Plant]:
    """Random plants. A full push needs 20 to 250 updates to the target, more where lengths would grow by over 3 % in
    an update without a push.
    """
    random = Random(f"{kind} {seed}")
    plants = []
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
            plant.falls = random.uniform(1.0, 10.0)
            plant.core = random.uniform(0.0, 0.5)
        if kind == "hazard":
            plant.core = random.uniform(0.7, 0.85)
        # drawn for every kind, also where they are not used: another order of draws gives other plants
        elastic_if_mixed = random.random()
        wander_if_drifting = random.uniform(0.01, 0.04)
        wander_if_mixed = random.uniform(0.0, 0.03)
        delay_if_delayed = random.randint(5, 20)
        delay_if_mixed = random.randint(0, 20)
        if kind in ("elastic", "gym"):
            plant.elastic = 1.0
        elif kind == "drifting":
            plant.wander = wander_if_drifting
        elif kind == "delayed":
            plant.delay = delay_if_delayed
        elif kind == "mixed":
            plant.elastic = elastic_if_mixed
            plant.wander = wander_if_mixed
            plant.delay = delay_if_mixed
        # so that a full push needs 20 to 250 updates, whose logarithm is uniform
        plant.response = min(plant.updates_to_target() / (20 * 12.5 ** random.random()), 0.25)
        _, drift = plant.fall_and_drift(0.0)
        plant.response *= min(1.0, 0.03 / max(drift, 1e-9))
        if kind == "gym":
            plant.start = math.log(68 / 16)
            plant.holding = random.uniform(0.1, 0.45)
            plant.response = random.uniform(0.07, 0.1)
            plant.momentum = 0.9
            plant.noise = 0.1
            plant.falls = plant.response / random.uniform(0.018, 0.03)
        plants.append(plant)
    return plants


def draw_shrinking(kind: str, seed: int, count: int = COUNT) -> list[Plant]:
    """Plants of a kind, but without a push lengths fall, as fast as a push of up to 0.5 shortens them: only a negative
    lambda can hold the target.
    """
    random = Random(f"shrinking {kind} {seed}")
    return [replace(plant, holding=-random.uniform(0.0, 0.5)) for plant in draw(kind, seed, count)]


def draw_switching(seed: int, count: int = COUNT) -> list[Plant]:
    """Plants with two ways of answering, a long one that responds fast and a short one that responds slowly, as seed
    802 of the gym. At the target, the length falls once by 17 to 44 %, as where the target rises, and twelve updates
    later the policy goes over to long answers, 2 to 5 times as long, within three updates.
    """
    random = Random(f"switching {seed}")
    plants = []
    for _ in range(count):
        long_response = random.uniform(0.1, 0.35)
        short_response = random.uniform(0.01, 0.035)
        fall = -math.log(random.uniform(1.2, 1.8))
        rise = math.log(random.uniform(2.0, 5.0)) / 3
        plants.append(
            Plant(
                kind="switching",
                start=math.log(68 / 16),
                holding=random.uniform(-0.1, 0.3),
                momentum=0.9,
                noise=random.choice((0.05, 0.1, 0.15)),
                seed=random.randrange(2**32),
                response=long_response,
                falls=long_response / short_response,
                jumps={150: fall, 162: rise, 163: rise, 164: rise},
            )
        )
    return plants


def draw_rising(seed: int, count: int = COUNT) -> list[Plant]:
    """Plants whose needed push rises steadily from 0.02 to 0.3 up to 0.7, while the response falls 2 to 5 times, as in
    SmolLM2's runs at 40.
    """
    random = Random(f"rising {seed}")
    plants = []
    for _ in range(count):
        holding = random.uniform(0.02, 0.3)
        rise = math.log(0.7 / 0.3) - math.log(holding / (1.0 - holding))  # of the logit
        plants.append(
            Plant(
                kind="linear",
                start=math.log(random.uniform(1.5, 2.5)),
                holding=holding,
                momentum=0.9,
                noise=0.1,
                seed=random.randrange(2**32),
                response=random.uniform(0.05, 0.12),
                trend=Wander(response=-math.log(random.uniform(2.0, 5.0)), holding=rise),
            )
        )
    return plants


def run(plant: Plant, controller: Controller, updates: int = UPDATES) -> list[float]:
    """The length before each update. A batch is sampled, its update uses the lambda at hand, then it moves lambda."""
    random = Random(plant.seed)
    rule = controller(plant)
    is_leash = getattr(controller, "func", None) is leash
    lam = next(rule)
    push = 0.0  # momentum of what lambda presses
    wander = Wander()
    lengths = [plant.start]

    def walked(value: float) -> float:
        return min(max(value + plant.wander * random.gauss(0.0, 1.0), -1.5), 1.5)

    for update in range(updates):
        length = lengths[-1]
        sampled = lengths[max(len(lengths) - 1 - plant.delay, 0)]
        measured = sampled + plant.noise * random.gauss(0.0, 1.0)
        pressure = lam
        if is_leash:
            # its lambda is in the reward: any lambda presses at full strength on the completions over the target
            share_over_target = 0.5 * math.erfc(-(length / LOGNORMAL - LOGNORMAL / 2) / math.sqrt(2.0))
            pressure = share_over_target * lam / (lam + 5e-4)
        push = plant.momentum * push + (1.0 - plant.momentum) * pressure
        wander = Wander(response=walked(wander.response), holding=walked(wander.holding))
        progress = min(update / TREND_UPDATES, 1.0)
        trended = Wander(
            response=wander.response + progress * plant.trend.response,
            holding=wander.holding + progress * plant.trend.holding,
        )
        fall, drift = plant.fall_and_drift(length, trended)
        lam = rule.send(math.expm1(measured))
        jump = plant.jumps.get(update, 0.0)
        lengths.append(max(length - min(fall * push, 0.5) + drift + jump, -3.0))
    return lengths


def clipped(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def leash(plant: Plant, lr: float):
    lam = 0.1
    while True:
        lam = projected_ascent(lam, (yield lam), lr, 0.0, 1.0)


def pid_lagrangian(plant: Plant):
    """Proportional, integral and derivative parts of the smoothed violation, on a length advantage."""
    lam = 1.0
    integral = 0.0
    smoothed = None
    while True:
        violation = yield lam
        before = violation if smoothed is None else smoothed
        smoothed = violation if smoothed is None else 0.9 * smoothed + 0.1 * violation
        integral = clipped(integral + 0.01 * violation)
        derivative = smoothed - before
        lam = clipped(smoothed + integral + 5.0 * derivative)


def predictive(plant: Plant, told: bool = False, seen: list[float] | None = None, lambda_min: float = 0.0):
    """LEASH-Predictive, which may be told by how many updates batches are late. `seen` gets its estimates of the
    response.
    """
    lam = 1.0
    forecast = Forecast()
    # m = beta / (1 - beta) updates are still under way, and as many more as batches are late
    carried_updates = plant.momentum / (1.0 - plant.momentum) + plant.delay * told
    momentum = carried_updates / (1.0 + carried_updates) if told else plant.momentum
    while True:
        violation = yield lam
        forecast = forecast.after_batch(violation, lambda_min).after_update(lam, momentum)
        lam = min(max(forecast.needed_lambda(momentum), lambda_min), 1.0)
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
    early_end = 100 if plant.kind == "gym" else 200
    is_early = is_at_target(lengths[early_end - 10 : early_end])
    is_late = is_at_target(lengths[-10:])
    mean_square = statistics.fmean(length**2 for length in lengths[-UPDATES // 4 :])
    return is_early, is_late, math.sqrt(mean_square)


def distance_after_jump(plant: Plant, controller: Controller) -> float:
    """Distance of the length from the target over updates 250 to 400, in its logarithm; jumps end with update 164."""
    return abs(statistics.fmean(run(plant, controller)[250:400]))


def is_at_target(lengths: list[float]) -> bool:
    return abs(math.expm1(statistics.fmean(lengths))) < 0.05


def learned(response: float, holding: float, count: int = 8) -> tuple[float, float]:
    """Response that is learned in 600 updates of the linear plant, from three times the target at noise 0.10, and the
    logarithm of length over target in the last hundred: means over seeds, the first a geometric one.
    """
    seen: list[float] = []
    lengths: list[float] = []
    for seed in range(count):
        plant = Plant(
            kind="linear",
            start=math.log(3.0),
            holding=holding,
            momentum=0.9,
            noise=0.1,
            seed=seed,
            response=response,
        )
        lengths += run(plant, partial(predictive, seen=seen))[-100:]
    last_responses = seen[UPDATES - 1 :: UPDATES]
    return statistics.geometric_mean(last_responses), statistics.fmean(lengths)


def column_means(rows: list[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(statistics.fmean(column) for column in zip(*rows, strict=True))


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else REPORT_SEED
    plants = {kind: draw(kind, seed) for kind in KINDS}
    print(f"{'':28s}" + " ".join(f"{kind:>14s}" for kind in (*KINDS, "mean")))
    for name, rule in RULES.items():
        means = [column_means([measures(plant, rule) for plant in plants[kind]]) for kind in KINDS]
        means.append(column_means(means))
        cells = [f"{early:4.0%} {late:4.0%} {distance:.3f}" for early, late, distance in means]
        print(f"{name:28s}" + " ".join(cells), flush=True)
    both_sides = partial(predictive, lambda_min=-1.0)
    print("LEASH-Predictive with lambda_min -1, on the plants above, and where lengths fall without a push")
    for kind in KINDS:
        rows = []
        for plants_of_kind in (plants[kind], draw_shrinking(kind, seed)):
            rows.append(column_means([measures(plant, both_sides) for plant in plants_of_kind]))
        cells = [f"{early:4.0%} {late:4.0%} {distance:.3f}" for early, late, distance in rows]
        print(f"{kind:28s}" + " ".join(cells), flush=True)
    switching = draw_switching(seed)
    early, late, distance = column_means([measures(plant, both_sides) for plant in switching])
    after_jump = statistics.fmean(distance_after_jump(plant, both_sides) for plant in switching)
    print(f"{'switching':28s}{early:4.0%} {late:4.0%} {distance:.3f}, after the jump {math.expm1(after_jump):.1%} off")
    rising = [statistics.fmean(run(plant, both_sides)[100:200]) for plant in draw_rising(seed)]
    print(f"where the needed push rises: {math.expm1(statistics.fmean(rising)):+.1%} over updates 100 to 200")
    print("response  holding  learned  length off")
    for response in (0.005, 0.02, 0.05):
        for holding in (0.2, 0.5, 0.8):
            learned_response, log_distance = learned(response, holding)
            distance = math.expm1(log_distance)
            print(f"{response:8.3f}  {holding:7.1f}  {learned_response:7.4f}  {distance:+10.1%}")
