"""A floor under accuracy, ours: the price on length acts only as far as the accuracy of training batches allows."""

import math
from typing import NamedTuple


# Chosen on plants and on the gym's seeds 51, 810 and 820: accuracy swings if the penalty returns faster.
WINDOW = 10  # batches: a new batch has weight 1 / WINDOW in the mean; the first batches have equal weights
TREND_RATE = 0.02
HORIZON = 10.0  # updates to look ahead: for about as long, the optimizer's momentum carries a change further
MARGIN = 0.08  # accuracy above the floor at which the full penalty may apply
RISE = 0.005  # largest rise of the share of the penalty in one update; the share falls without delay


class RunningAccuracy(NamedTuple):
    """Accuracy of the training batches so far, and the share of the length penalty that it allows.

    Args:
        level (`float`): $a$, running mean of the accuracy, in [0, 1]; NaN before the first batch.
        trend (`float`): $d$, its change per policy update.
        num_batches (`int`): Number of batches so far, at most `WINDOW`.
        price_share (`float`): $s$, the share of the penalty that applies to the next batch, in [0, 1].
    """

    level: float = math.nan
    trend: float = 0.0
    num_batches: int = 0
    price_share: float = 1.0

    def after(self, accuracy: float) -> "RunningAccuracy":
        r"""Returns the running accuracy after one more batch.

        $$ e = a_t - (a + d), \qquad a \leftarrow a + d + \frac{e}{\min(n, 10)}, \qquad d \leftarrow d + 0.02 \, e $$

        Source: ours; Holt's double exponential smoothing.

        Example:
            >>> RunningAccuracy(level=0.5, trend=0.25, num_batches=1).after(0.875)[:3]
            (0.8125, 0.2525, 2)
        """
        if self.num_batches == 0:
            return self._replace(level=accuracy, num_batches=1)
        num_batches = min(self.num_batches + 1, WINDOW)
        surprise = accuracy - (self.level + self.trend)
        level = self.level + self.trend + surprise / num_batches
        return self._replace(level=level, trend=self.trend + TREND_RATE * surprise, num_batches=num_batches)

    def above(self, floor: float) -> "RunningAccuracy":
        r"""Returns the same with the share of the penalty for the batch after this policy update.

        $$ s \leftarrow \min\left(\mathrm{clip}\left(\frac{\min(a, a + 10 d) - f}{0.08}, 0, 1\right),
           s + 0.005\right) $$

        $f$ is the floor. Where accuracy falls, its forecast $a + 10 d$ is used instead of its present value. The limit
        on the rise does not hold after the very first batch. Source: ours.

        Example:
            >>> falling = RunningAccuracy(level=0.75, trend=-0.021, num_batches=10)
            >>> [round(falling.above(floor).price_share, 9) for floor in (0.5, 0.75)]
            [0.5, 0.0]
        """
        forecast = self.level + HORIZON * min(self.trend, 0.0)
        allowed = min(max((forecast - floor) / MARGIN, 0.0), 1.0)
        most = 1.0 if self.num_batches == 1 else self.price_share + RISE
        return self._replace(price_share=min(allowed, most))
