"""A floor under accuracy, ours: the price on length acts only as far as the accuracy of training batches allows."""

import math
from typing import NamedTuple


# Chosen on plants and on the gym's seeds 51, 810 and 820: accuracy swings where the price comes back faster.
WINDOW = 10  # batches: the weight of a new one is 1 / WINDOW, and that of each of the first ones 1 / their number
TREND_RATE = 0.02
HORIZON = 10.0  # updates: what a price has started goes on for about as long, by the momentum of the optimizer
MARGIN = 0.08  # above the floor, from which on the whole price may act
RISE = 0.005  # of the price, by which its share grows in an update at most; it falls at once


class RunningAccuracy(NamedTuple):
    """Accuracy of the training batches so far, and the share of the price on length that it lets act.

    Args:
        level (`float`): $a$, running mean in [0, 1]; NaN before the first batch.
        trend (`float`): $d$, its change per policy update.
        best (`float`): The highest running mean so far.
        num_batches (`int`): Batches that it has seen, up to `WINDOW`.
        price_share (`float`): $s$, the share of the price that acts on the coming batch, in [0, 1].
    """

    level: float = math.nan
    trend: float = 0.0
    best: float = 0.0
    num_batches: int = 0
    price_share: float = 1.0

    def after(self, accuracy: float) -> "RunningAccuracy":
        r"""The running accuracy after one more batch.

        $$ e = a_t - (a + d), \qquad a \leftarrow a + d + \frac{e}{\min(n, 10)}, \qquad d \leftarrow d + 0.02 \, e $$

        Source: ours; Holt's double exponential smoothing.

        Example:
            >>> RunningAccuracy(level=0.5, trend=0.25, best=0.5, num_batches=1).after(0.875)[:4]
            (0.8125, 0.2525, 0.8125, 2)
        """
        if self.num_batches == 0:
            return self._replace(level=accuracy, best=accuracy, num_batches=1)
        num_batches = min(self.num_batches + 1, WINDOW)
        surprise = accuracy - (self.level + self.trend)
        level = self.level + self.trend + surprise / num_batches
        trend, best = self.trend + TREND_RATE * surprise, max(self.best, level)
        return self._replace(level=level, trend=trend, best=best, num_batches=num_batches)

    def above(self, floor: float) -> "RunningAccuracy":
        r"""The same with the share of the price that acts next, one policy update later.

        $$ s \leftarrow \min\left(\mathrm{clip}\left(\frac{\min(a, a + 10 d) - f}{0.08}, 0, 1\right),
           s + 0.005\right) $$

        $f$ is the floor. The forecast counts only where accuracy falls. After the first batch the share may rise to
        all at once. Source: ours.

        Example:
            >>> falling = RunningAccuracy(level=0.75, trend=-0.021, num_batches=10)
            >>> [round(falling.above(floor).price_share, 9) for floor in (0.5, 0.75)]
            [0.5, 0.0]
        """
        forecast = self.level + HORIZON * min(self.trend, 0.0)
        allowed = min(max((forecast - floor) / MARGIN, 0.0), 1.0)
        most = 1.0 if self.num_batches == 1 else self.price_share + RISE
        return self._replace(price_share=min(allowed, most))
