"""LEASH-PI, ours: LEASH's penalty with a multiplier that returns to its minimum when the target is met.

LEASH's multiplier is an integral of the violation: it rises until lengths reach the target, and takes as long to come
down while lengths still fall. Here a ceiling in proportion to the violation takes it down in time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leash_trl.length_control.checked_values import check_range, is_number, saved_multiplier, saved_value
from leash_trl.length_control.dual import pi_multiplier
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.multiplier import Multiplier


@dataclass
class PIMultiplier(Multiplier):
    """A multiplier that [`pi_multiplier`] moves.

    Args:
        proportional_gain (`float`), ceiling_gain (`float`), smoothing (`float`):
            As for [`LeashPI`]; the gain of the integral is `lr`.
        integral (`float`):
            I, in reward units.
        violation (`float`, *optional*):
            Running mean of the violation; `None` before the first step.
    """

    proportional_gain: float = 0.0
    ceiling_gain: float = math.inf
    smoothing: float = 0.0
    integral: float = 0.0
    violation: float | None = None

    def move(self, violation: float) -> None:
        """Does one step; the integral and the smoothed violation move with the multiplier."""
        past = violation if self.violation is None else self.violation
        self.violation = self.smoothing * past + (1.0 - self.smoothing) * violation
        gains = (self.proportional_gain, self.lr)
        self.lam, self.integral = pi_multiplier(
            self.violation, self.integral, gains, self.ceiling_gain, self.minimum, self.maximum
        )
        self.observed = []

    def statistics(self) -> dict[str, float]:
        """The multiplier and the integral in it."""
        return {"lambda": self.lam, "integral": self.integral}

    def state_dict(self) -> dict[str, Any]:
        """The state of LEASH's multiplier, the integral and the smoothed violation."""
        return {**super().state_dict(), "integral": self.integral, "violation": self.violation}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state."""
        super().load_state_dict(state)
        self.integral = saved_multiplier(state, "integral", self.minimum, self.maximum)
        self.violation = saved_value(
            state, "violation", lambda seen: seen is None or is_number(seen), "a finite number, or null before a step"
        )


@dataclass
class LeashPI(Leash):
    r"""LEASH-PI, ours: LEASH's shaped reward, with a PI controller for lambda so that it is gone at the target.

    $$ \lambda = \mathrm{clip}(K_p e + I,\ \lambda_{\min},\ \min(\lambda_{\max}, K_c e)), \qquad
       I \leftarrow \mathrm{clip}(I + K_i e,\ \lambda_{\min},\ \lambda_{\max}) $$

    $e$ is LEASH's violation $\hat J_P$, smoothed over a few batches. If lengths would grow without a price, they
    settle where the ceiling pays for the growth, a little above the target: at $e = \lambda / K_c$.

    Use: if lengths should settle near the target, without overshoot and without a multiplier that outlives its cause.
    Set `advantage_epsilon: 0.1`, or `scale_rewards: batch` or `none`: dividing by the group's standard deviation alone
    cancels lambda in groups whose answers are all correct, so even a tiny lambda pushes at full strength.

    Source: ours, see [`pi_multiplier`].

    Args:
        lambda_init (`float`, *optional*, defaults to `0.1`):
            Integral, and multiplier of the first batch.
        lambda_lr (`float`, *optional*, defaults to `0.005`):
            $K_i$, gain of the integral; LEASH's step size.
        lambda_min (`float`, *optional*, defaults to `0.0`), lambda_max (`float`, *optional*, defaults to `1.0`):
            Bounds of the multiplier and of the integral.
        proportional_gain (`float`, *optional*, defaults to `0.1`):
            $K_p$.
        ceiling_gain (`float`, *optional*, defaults to `4.0`):
            $K_c$: the multiplier is at most $K_c$ times the violation; with 4, at most 0.4 at 10 % over the target.
            `None` for no ceiling.
        smoothing (`float`, *optional*, defaults to `0.5`):
            Weight of the past in the running mean of the violation, in [0, 1).
    """

    name = "leash_pi"

    proportional_gain: float = 0.1
    ceiling_gain: float | None = 4.0
    smoothing: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "proportional_gain", 0)
        if self.ceiling_gain is not None and not self.ceiling_gain > 0:
            raise ValueError(f"ceiling_gain is {self.ceiling_gain}, but must be positive, or None for no ceiling")
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing is {self.smoothing}, but must be at least 0 and below 1")

    def new_multiplier(self) -> Multiplier:
        """A multiplier as it is before its first step."""
        ceiling = math.inf if self.ceiling_gain is None else self.ceiling_gain
        settings = (self.proportional_gain, ceiling, self.smoothing, float(self.lambda_init))
        return PIMultiplier(self.lambda_init, self.lambda_lr, self.lambda_min, self.lambda_max, [], *settings)
