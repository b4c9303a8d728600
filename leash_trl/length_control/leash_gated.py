"""LEASH-Gated, ours: LEASH's penalty behind a gate, so that it does not outlive its cause.

LEASH's multiplier is an integral of the violation: it rises until lengths reach the target, and takes as long to come
down while lengths still fall. Here the multiplier is LEASH's, but it counts only while lengths are over the target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leash_trl.length_control.checked_values import check_range, is_number, saved_multiplier, saved_value
from leash_trl.length_control.dual import gate_level, projected_ascent
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.multiplier import Multiplier


@dataclass
class GatedMultiplier(Multiplier):
    """LEASH's multiplier where the gate is open, else the minimum.

    Args:
        integral (`float`):
            LEASH's multiplier.
        memory (`float`):
            As for [`LeashGated`].
        level (`float`):
            The gate's, see [`gate_level`].
    """

    integral: float = 0.0
    memory: float = 0.0
    level: float = 0.0

    def move(self, violation: float) -> None:
        """Does one dual step and moves the gate."""
        self.integral = projected_ascent(self.integral, violation, self.lr, self.minimum, self.maximum)
        self.level = gate_level(violation, self.level, self.memory)
        self.lam = self.integral if self.level > 0 else self.minimum
        self.observed = []

    def statistics(self) -> dict[str, float]:
        """The multiplier, and what it is while the gate is open."""
        return {"lambda": self.lam, "integral": self.integral}

    def state_dict(self) -> dict[str, Any]:
        """The state of LEASH's multiplier, the integral and the level of the gate."""
        return {**super().state_dict(), "integral": self.integral, "level": self.level}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state."""
        super().load_state_dict(state)
        self.integral = saved_multiplier(state, "integral", self.minimum, self.maximum)
        self.level = saved_value(state, "level", is_number, "a finite number")


@dataclass
class LeashGated(Leash):
    r"""LEASH-Gated, ours: LEASH, but lambda counts only while lengths are over the target.

    $$ \Lambda \leftarrow \mathrm{clip}(\Lambda + \alpha_\lambda \hat J_P, \lambda_{\min}, \lambda_{\max}), \qquad
       s \leftarrow \hat J_P + \rho \min(s, 0), \qquad
       \lambda = \Lambda \text{ if } s > 0 \text{ else } \lambda_{\min} $$

    $\Lambda$ is LEASH's multiplier. A batch at or under the target closes the gate. It opens again when lengths have
    been over the target for as much as they were under it, where what is past counts less with each step: the noise of
    single batches does not open it. With `lambda_min: 0`, completions feel no penalty behind a closed gate.

    Use: if lengths should settle near the target, without overshoot and without a penalty that outlives its cause,
    whether or not they grow back by themselves. Where they do so quickly, LEASH holds them more steadily. No lambda
    makes answers longer: where they get shorter without a penalty, they end below the target.

    Source: ours, see [`gate_level`].

    Args:
        memory (`float`, *optional*, defaults to `0.9`):
            $\rho$, in [0, 1): share of the past that counts after one more step. Nothing between 0.75 and 0.95 changes
            much; 0 opens the gate at every batch over the target.
    """

    name = "leash_gated"

    memory: float = 0.9

    def __post_init__(self) -> None:
        check_range(self, "memory", 0, below=1)
        super().__post_init__()

    def new_multiplier(self) -> Multiplier:
        """A multiplier as it is before its first step."""
        start = float(self.lambda_init)
        return GatedMultiplier(start, self.lambda_lr, self.lambda_min, self.lambda_max, [], start, self.memory)
