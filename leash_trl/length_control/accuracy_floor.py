"""An accuracy floor, which is ours: the length penalty applies only as far as the accuracy of training batches allows.

It is a controller, not a bound: accuracy ends near the floor and may be below it for a time.
"""

import math
from typing import NamedTuple

from leash_trl.length_control.dual import clipped


# These values were chosen before any run but that of seed 51 of the gym.
MEAN_BATCHES = 10  # a new batch has the weight 1 / MEAN_BATCHES in the running mean; the first ones have equal weights
TREND_RATE = 0.02  # share of a surprise (measured minus expected accuracy) by which the trend changes
FORECAST_UPDATES = 10.0  # updates to look ahead, for about as long as the optimizer's momentum continues a change
FULL_PENALTY_MARGIN = 0.16  # accuracy above the floor at which the full penalty applies, before the integral
INTEGRAL_RATE = 0.05  # per update and unit of accuracy
ACCURACY_RESERVE = 0.01  # the integral holds accuracy this far above the floor


class RunningAccuracy(NamedTuple):
    """Accuracy of the training batches so far, and the share of the length penalty that this accuracy allows.

    Args:
        mean_accuracy (`float`): $a$, running mean of the accuracy, in [0, 1]; NaN before the first batch.
        trend (`float`): $d$, its change per policy update.
        num_batches (`int`): Number of batches so far, at most `MEAN_BATCHES`.
        penalty_share (`float`): $s$, the share of the penalty that applies to the next batch, in [0, 1].
        integral (`float`): $i$, the part of the share that accuracy above the floor has added so far, in [0, 1].
    """

    mean_accuracy: float = math.nan
    trend: float = 0.0
    num_batches: int = 0
    penalty_share: float = 1.0
    integral: float = 0.0

    def after_batch(self, accuracy: float) -> "RunningAccuracy":
        r"""Returns the running accuracy after one more batch.

        $$ e = a_t - (a + d), \qquad a \leftarrow a + d + \frac{e}{\min(n, 10)}, \qquad d \leftarrow d + 0.02 \, e $$

        $e$ is the surprise, and $n$ the number of batches including this one. Source: ours; Holt's double exponential
        smoothing.

        Example:
            >>> RunningAccuracy(mean_accuracy=0.5, trend=0.25, num_batches=1).after_batch(0.875)[:3]
            (0.8125, 0.2525, 2)
        """
        if self.num_batches == 0:  # there is no mean yet
            return self._replace(mean_accuracy=accuracy, num_batches=1)
        # The newest batch has the weight 1 / num_batches in the running mean. The first batches therefore have equal
        # weights, and later ones the weight 1 / MEAN_BATCHES.
        num_batches = min(self.num_batches + 1, MEAN_BATCHES)
        # `trend` is the change of the mean per update, so that a steady change surprises only at first.
        expected = self.mean_accuracy + self.trend
        surprise = accuracy - expected
        return self._replace(
            mean_accuracy=expected + surprise / num_batches,
            trend=self.trend + TREND_RATE * surprise,
            num_batches=num_batches,
        )

    def with_penalty_share(self, floor: float) -> "RunningAccuracy":
        r"""Returns the running accuracy with the share of the penalty that it allows in the next batch, with this
        accuracy floor.

        $$ i \leftarrow \mathrm{clip}\left(i + 0.05 \, (a - f - 0.01), 0, 1\right), \qquad
           s \leftarrow \mathrm{clip}\left(\frac{a + 10 d - f}{0.16} + i, 0, 1\right) $$

        $f$ is the floor. The first term reacts to the forecast $a + 10 d$, the second one removes the distance that
        remains between accuracy and floor. Source: ours; a proportional-integral controller.

        Example:
            >>> falling = RunningAccuracy(mean_accuracy=0.75, trend=-0.001, num_batches=10)
            >>> [round(falling.with_penalty_share(floor).penalty_share, 9) for floor in (0.66, 0.75)]
            [0.504, 0.0]
        """
        # The integral grows as long as accuracy stays above the floor, and shrinks as long as it stays below.
        integral = clipped(self.integral + INTEGRAL_RATE * (self.mean_accuracy - floor - ACCURACY_RESERVE), 0.0, 1.0)
        forecast = self.mean_accuracy + FORECAST_UPDATES * self.trend
        share = (forecast - floor) / FULL_PENALTY_MARGIN + integral
        return self._replace(penalty_share=clipped(share, 0.0, 1.0), integral=integral)
