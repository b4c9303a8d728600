"""Completion lengths to benchmark with: the paper's at both ends of training, uniform, or a file's."""

import csv
import math
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist


PAPER_LIMIT = 32768  # tokens; the paper's max_completion_length
PAPER_TARGET = 4096  # tokens; what the authors' logs count completions against
BATCH = 512  # completions; the authors' generation batch


@dataclass(frozen=True)
class LoggedLengths:
    """What is known of lengths at one time of the authors' training.

    Source: `constraint/avg_length` and `constraint/satisfaction_rate` of the run with target 4096 that the authors of
    [LEASH](https://huggingface.co/papers/2512.21540) published with their figures (YanhaoLi-Cc/LEASH at bb5aa658).

    Args:
        mean (`float`):
            Mean length in tokens.
        share_within_target (`float`):
            Share of completions of at most 4096 tokens, in (0, 1).
        longest (`float`, *optional*):
            Length in tokens that the longest of 512 completions, a generation batch, exceeds half of the time. The
            logs do not hold it; without it the tail follows from the other two.
    """

    mean: float
    share_within_target: float
    longest: float | None = None

    def fit(self) -> tuple[float, float, float]:
        r"""Shift $s$ in tokens, and mean and standard deviation of $\log(L - s)$ for log-normal $L - s$.

        Without `longest` the shift is 0; with it the shift is found by bisection, as the tail grows with it.
        """
        if self.longest is None:
            return 0.0, *self._fit_above(0.0)
        low, high = 0.0, PAPER_TARGET - 1.0
        z = NormalDist().inv_cdf(0.5 ** (1 / BATCH))
        for _ in range(60):
            shift = (low + high) / 2
            mu, sigma = self._fit_above(shift)
            low, high = (shift, high) if shift + math.exp(mu + sigma * z) < self.longest else (low, shift)
        return low, *self._fit_above(low)

    def _fit_above(self, shift: float) -> tuple[float, float]:
        r"""Mean and standard deviation of the logarithm above a shift.

        With mean $m$ and target $t$ above the shift, $\mu = \log m - \sigma^2/2$ and $z = \Phi^{-1}(\text{share})$,
        $(\log t - \mu)/\sigma = z$ is $\sigma^2/2 - z\sigma + \log(t/m) = 0$. Of two positive solutions the smaller
        is meant: the other puts most completions far below the mean, which the logged penalties rule out.
        """
        mean, target = self.mean - shift, PAPER_TARGET - shift
        z = NormalDist().inv_cdf(self.share_within_target)
        root = math.sqrt(z * z - 2 * math.log(target / mean))
        sigma = z + root if z < root else z - root
        return math.log(mean) - sigma**2 / 2, sigma


# First step, 512 completions before any update, of up to the limit; and the mean of the last 50 steps
PAPER = {
    "paper-start": LoggedLengths(mean=8621.2, share_within_target=23 / 512, longest=PAPER_LIMIT),
    "paper-end": LoggedLengths(mean=2001.1, share_within_target=0.968),
}
NAMED = (*PAPER, "uniform")


def draw_lengths(name: str, count: int, max_length: int, seed: int) -> list[int]:
    """`count` completion lengths in tokens, from 1 to `max_length`, the same for the same arguments.

    The paper's are log-normal, fitted to its authors' log ([`LoggedLengths`]), clipped at `max_length`, and scaled by
    `max_length / 32768`. For its start the log fixes the lower half only; the upper tail is chosen such that the
    longest of a batch reaches the paper's limit of 32,768.

    Args:
        name (`str`):
            `"paper-start"`, `"paper-end"`, `"uniform"` (from 1 to `max_length`), or the path of a CSV file with a
            column `length`, whose rows are drawn with replacement and not scaled.
        count (`int`):
            Number of lengths.
        max_length (`int`):
            Longest length in tokens, at least 1.
        seed (`int`):
            Seed of the draw.

    Raises:
        `ValueError`: If `name` is neither a distribution nor a file of lengths between 1 and `max_length`.

    Example:
        >>> draw_lengths("uniform", 3, 10, seed=0) == draw_lengths("uniform", 3, 10, seed=0)
        True
    """
    check_lengths(name, max_length)
    rng = random.Random(seed)
    if name == "uniform":
        return [rng.randint(1, max_length) for _ in range(count)]
    if name not in PAPER:
        return rng.choices(_lengths_in(Path(name)), k=count)
    shift, mu, sigma = PAPER[name].fit()
    scale = max_length / PAPER_LIMIT
    return [min(max_length, max(1, round(scale * (shift + rng.lognormvariate(mu, sigma))))) for _ in range(count)]


def check_lengths(name: str, max_length: int) -> None:
    """Raises `ValueError` unless [`draw_lengths`] can draw from `name`."""
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}, but must be at least 1 token")
    if name in NAMED:
        return
    if not Path(name).is_file():
        raise ValueError(f"lengths is {name!r}, but must be {', '.join(NAMED)} or the path of a CSV file")
    lengths = _lengths_in(Path(name))
    if not lengths or min(lengths) < 1 or max(lengths) > max_length:
        found = f"{min(lengths)} to {max(lengths)} tokens" if lengths else "no row"
        raise ValueError(f"lengths is {name!r} with {found}, but max_length is {max_length}; they must lie within it")


def _lengths_in(path: Path) -> list[int]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if "length" not in (reader.fieldnames or []):
            raise ValueError(
                f"lengths is {str(path)!r}, which has the columns {reader.fieldnames}, but needs 'length'"
            )
        try:
            return [int(row["length"]) for row in reader]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"lengths is {str(path)!r}, whose column 'length' must hold whole numbers: {error}"
            ) from error
