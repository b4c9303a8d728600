"""The accuracy floor, ours: reduces the length penalty when the accuracy of training batches comes near a minimum."""

import math
from typing import NamedTuple


WINDOW = 10  # batches: a new batch has weight 1 / WINDOW in the mean; the first batches have equal weights
TREND_RATE = 0.02
HORIZON = 10.0  # updates to look ahead: for about as long, the optimizer's momentum carries a change further
MARGIN = 0.08  # accuracy above the floor at which the full penalty applies; a much smaller margin makes accuracy swing


class RunningAccuracy(NamedTuple):
    """Accuracy of the training batches so far.

    Args:
        level (`float`): $a$, running mean of the accuracy, in [0, 1]; NaN before the first batch.
        trend (`float`): $d$, its change per policy update.
        best (`float`): The highest running mean so far.
        num_batches (`int`): Number of batches so far, at most `WINDOW`.
    """

    level: float = math.nan
    trend: float = 0.0
    best: float = 0.0
    num_batches: int = 0

    def after(self, accuracy: float) -> "RunningAccuracy":
        r"""Returns the running accuracy after one more batch; a batch whose accuracy is NaN changes nothing.

        $$ e = a_t - (a + d), \qquad a \leftarrow a + d + \frac{e}{\min(n, 10)}, \qquad d \leftarrow d + 0.02 \, e $$

        Source: ours; Holt's double exponential smoothing.

        Example:
            >>> RunningAccuracy(level=0.5, trend=0.25, best=0.5, num_batches=1).after(0.875)
            RunningAccuracy(level=0.8125, trend=0.2525, best=0.8125, num_batches=2)
        """
        if math.isnan(accuracy):
            return self
        if self.num_batches == 0:
            return RunningAccuracy(accuracy, 0.0, accuracy, 1)
        num_batches = min(self.num_batches + 1, WINDOW)
        surprise = accuracy - (self.level + self.trend)
        level = self.level + self.trend + surprise / num_batches
        return RunningAccuracy(level, self.trend + TREND_RATE * surprise, max(self.best, level), num_batches)

    def price_share(self, floor: float) -> float:
        r"""Returns the share of the length penalty to apply, in [0, 1]; 1 before the first batch.

        $$ \mathrm{clip}\left(\frac{\min(a, a + 10 d) - f}{0.08}, 0, 1\right) $$

        $f$ is the floor. Where accuracy falls, its forecast $a + 10 d$ is used instead of its present value. Source:
        ours.

        Example:
            >>> falling = RunningAccuracy(level=0.75, trend=-0.021, num_batches=10)
            >>> [round(falling.price_share(floor), 9) for floor in (0.5, 0.75)]
            [0.5, 0.0]
        """
        if self.num_batches == 0:
            return 1.0
        forecast = self.level + HORIZON * min(self.trend, 0.0)
        return min(max((forecast - floor) / MARGIN, 0.0), 1.0)
