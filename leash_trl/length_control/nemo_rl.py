"""The length rewards of NeMo-RL: band, min-max, robust z-score, and terms for the shortest and the longest answer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from leash_trl.length_control.advantages import places_in_range, robust_scores
from leash_trl.length_control.grlc import centered_weights
from leash_trl.length_control.mai import solve_rate_prices
from leash_trl.length_control.method import LengthControl, Rollouts, hyperparameter, is_number


SWITCHES = (
    *("group_total_length_penalty_coeff", "total_bonus", "total_zmad_penalty", "longest_total_penalty"),
    "pass_rate_length_penalty_weight",
)
Band = tuple[float, float, float]
NO_BAND = (math.nan, math.nan, math.nan)


def band_factors(lengths: torch.Tensor, bands: torch.Tensor) -> torch.Tensor:
    r"""Returns the factor by which a band multiplies the reward at each length, dimensionless, of shape `(N,)` in
    float64.

    $$ m(L) = 1 - (1 - f) \, \mathrm{clip}\left(\frac{L - a}{b - a}, 0, 1\right) $$

    `bands` of shape `(N, 3)` holds $a$ and $b$ in tokens and $f$ of each completion. If they are NaN, there is no band
    and the factor is 1.

    Example:
        >>> bands = torch.tensor([[10.0, 20.0, 0.5]]).expand(4, 3)
        >>> band_factors(torch.tensor([10, 15, 20, 900]), bands).tolist()
        [1.0, 0.75, 0.5, 0.5]
    """
    a_N, b_N, f_N = bands.double().unbind(dim=1)
    shares_N = ((lengths - a_N) / (b_N - a_N)).clamp(0.0, 1.0)
    return (1.0 - (1.0 - f_N) * shares_N).nan_to_num(nan=1.0)


def band_of(value: Any, configured: Band = NO_BAND, name: str = "profile_band") -> Band:
    """Returns $a$, $b$ and $f$ of a prompt: those of its row, else the configured ones; NaN for no band.

    Args:
        value (`Mapping`): The row's value in the column of bands, such as `{"a": 18000, "b": 24000, "f": 0.9}`, or the
            same mapping under the key `total`, as in NeMo-RL's data. Values of None and NaN count as absent.
        configured (`tuple[float, float, float]`): The band for rows without their own.
        name (`str`): Name of the value for the error message.

    Raises:
        `ValueError`: If the value is not a band.
    """
    row = value if isinstance(value, Mapping) else {"a": value}
    row = row["total"] if isinstance(row.get("total"), Mapping) else row
    band = {k: v for k, v in row.items() if k not in ("reasoning", "answer") and v is not None and v == v}
    if not band:
        return configured
    if not (all(is_number(band.get(key)) for key in "abf") and 0 <= band["a"] < band["b"] and 0 <= band["f"] <= 1):
        raise ValueError(f"{name} is {value!r}, but must have a, b and f: 0 <= a < b in tokens, and f from 0 to 1")
    return band["a"], band["b"], band["f"]


class NemoRL(LengthControl):
    r"""NeMo-RL: correctness (1 or 0) with length terms for correct answers: band, min-max, robust z-score, shortest.

    $$ r'_i = c_i \max(0, 1 + \beta_s S_i - \beta_l X_i + \beta_g \tilde w_i - \beta_z \mathbb{I}(z_i > \tau)
    - w \rho L_i / L_{\max}) \, m(L_i) $$

    The band $m$ is 1 up to $a$ tokens and falls linearly to $f$ at $b$ tokens. The other terms compare the correct
    answers of a prompt with each other: $S$ and $X$ are 1 for the shortest and the longest of them, $\tilde w$ is the
    relative position between the two, see [`centered_weights`], $z$ is the robust z-score of the length, see
    [`robust_scores`], and $w$ is the weight of MAI's penalty, see [`solve_rate_prices`]. Every term is off by default,
    and at least one must be on. If its penalties exceed 1, a correct answer has reward 0 like a wrong one; the logged
    `clipped_share` is the share of such answers.

    The hyper-parameters have the names of NeMo-RL's `grpo.length_penalty` for its channel `total`.

    Use: to reproduce runs of NeMo-RL, or the band alone, to limit the length of each prompt without adapting a
    penalty.

    Source: `nemo_rl/utils/length_penalty.py` of [NeMo-RL #3852](https://github.com/NVIDIA-NeMo/RL/pull/3852), merged,
    which continues [#3604](https://github.com/NVIDIA-NeMo/RL/pull/3604). The reward `reasoning_length` of
    [#3769](https://github.com/NVIDIA-NeMo/RL/pull/3769), which is open, with composition `correctness_gated` equals
    the band with `a` = `tau1`, `b` = `tau2` and `f` = 1 - `weight`.

    Differs: NeMo-RL skips groups with rewards other than 0 and 1. Here, no group is skipped, since the band multiplies
    correctness, which is 1 or 0, and never a reward below 0. If several answers are equally short or long, NeMo-RL
    gives the bonus or penalty to the first one; here, all of them get it, unless all answers are equally long. Bands
    that lack `a`, `b` or `f`, or whose `b` is not above `a`, raise an error here. A row whose `total` is None has the
    configured band here, but no band in NeMo-RL. NeMo-RL tokenizes the text again, without special tokens; here,
    lengths are the generated tokens. Two things are left out: the channels for thinking and answer, whose lengths are
    not available, and `profiled_length_penalty`, a constant penalty $p$ from a threshold $t$ on. Alone, the latter
    equals the band with `a` = $t - 1$, `b` = $t$ and `f` = $1 - p$.

    Args:
        profile_band (`dict[str, float]`): The band, such as `{a: 18000, b: 24000, f: 0.9}`, with `a` and `b` in
            tokens, and `f` the factor of the reward from `b` tokens on.
        profile_band_column (`str`): Column of the data set with a band for each prompt, for example from the lengths
            that another model needed: `{a, b, f}`, or `{total: {a, b, f}}` as in NeMo-RL. The band of a row replaces
            all of `profile_band`.
        group_total_length_penalty_coeff (`float`): Coefficient $\beta_g$ of the min-max term in reward units.
        total_bonus (`float`): Bonus $\beta_s$ for the shortest correct answer in reward units.
        longest_total_penalty (`float`): Penalty $\beta_l$ for the longest correct answer in reward units.
        total_zmad_penalty (`float`): Penalty $\beta_z$ for each correct answer whose robust z-score is above the
            threshold, in reward units.
        total_zmad_threshold (`float`): Threshold $\tau$ of the robust z-score; NeMo-RL's guide uses 2.0 and 2.5.
        pass_rate_length_penalty_weight (`float`): Weight $w$ of MAI's penalty in reward units; the method `mai` is
            this term alone.
        profile_band_total (`bool`): Whether bands multiply rewards; set it to `False` if only the gate should use
            them. By default they do so if `profile_band` is set; if only rows have bands, set it to `True`.
        group_length_penalty_profile_gate (`bool`): Whether the min-max term applies only to groups whose mean length
            is above `a` (or `b`) of their band; groups without a band then do not have it.
        group_length_penalty_profile_gate_field (`str`): Limit of the gate, `"a"` or `"b"`.
        group_length_penalty_profile_gate_positive_only (`bool`): Whether the mean length of the gate is over correct
            answers only.
    """

    name = "nemo_rl"

    profile_band: dict[str, float] | None = None
    profile_band_column: str | None = None
    group_total_length_penalty_coeff: float = hyperparameter(0.0, ge=0)
    total_bonus: float = hyperparameter(0.0, ge=0)
    longest_total_penalty: float = hyperparameter(0.0, ge=0)
    total_zmad_penalty: float = hyperparameter(0.0, ge=0)
    total_zmad_threshold: float = hyperparameter(2.0, gt=0)
    pass_rate_length_penalty_weight: float = hyperparameter(0.0, ge=0)
    profile_band_total: bool | None = None
    group_length_penalty_profile_gate: bool = False
    group_length_penalty_profile_gate_field: Literal["a", "b"] = "a"
    group_length_penalty_profile_gate_positive_only: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.needs_group = any(getattr(self, name) for name in SWITCHES)  # type: ignore[misc]  # the band does not
        self.configured = band_of(self.profile_band)
        has_band = not math.isnan(self.configured[0])
        self.multiplies = has_band if self.profile_band_total is None else self.profile_band_total
        if self.group_length_penalty_profile_gate and not (has_band or self.profile_band_column):
            raise ValueError("group_length_penalty_profile_gate is True, but there are no bands; set profile_band")

    def check(self, target_length: int | None, max_completion_length: float, num_generations: int) -> None:
        if not self.multiplies and not self.needs_group:
            names = ", ".join(("profile_band", "profile_band_total", *SWITCHES))
            raise ValueError(f"all terms of {self.name} are off; set one of {names}")

    def columns_read(self) -> tuple[str, ...]:
        return (self.profile_band_column,) if self.profile_band_column else ()

    def check_columns(self, columns: Mapping[str, Sequence[Any]]) -> str | None:
        """Raises `ValueError` for an invalid band, and returns a warning if no row has a band."""
        for column, rows in columns.items():
            if self._bands(rows).isnan().all():
                return f"profile_band_column is {column!r}, but no row has a band there; fill it in or leave it out"
        return None

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Length penalty of each completion before rewards are clipped at 0."""
        column, rewards = self.profile_band_column, self.base_rewards(rollouts)
        bands_N3 = self._bands(rollouts.columns[column] if column else [None] * len(rollouts.lengths))
        rewards_PG, lengths_PG = rollouts.by_group(rewards), rollouts.by_group(rollouts.correct_lengths)
        places_PG = places_in_range(lengths_PG)
        is_shortest_PG = (places_PG == 0) & (places_PG == 1).any(dim=1, keepdim=True)
        is_outlier_PG = robust_scores(lengths_PG) > self.total_zmad_threshold
        gains_PG = (
            self.total_bonus * is_shortest_PG.double()
            - self.longest_total_penalty * (places_PG == 1).double()
            + self.group_total_length_penalty_coeff * centered_weights(lengths_PG) * self._is_open(rollouts, bands_N3)
            - self.total_zmad_penalty * is_outlier_PG.double()
            - self.pass_rate_length_penalty_weight * solve_rate_prices(rewards_PG, lengths_PG)
        )
        sums = rewards + gains_PG.flatten().where(rollouts.is_correct, 0.0)
        if self.multiplies:
            # a factor would raise a negative reward of a longer answer
            sums = torch.where(sums > 0, sums * band_factors(rollouts.lengths, bands_N3), sums)
        return rewards - sums

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        return (self.base_rewards(rollouts) - self.penalty(rollouts)).clamp(min=0.0)

    def _is_open(self, rollouts: Rollouts, bands: torch.Tensor) -> torch.Tensor:
        """`torch.Tensor` of shape `(P, 1)`: True where the min-max term applies; False for groups without limit or
        lengths."""
        if not self.group_length_penalty_profile_gate:
            return torch.ones(len(rollouts.by_group(rollouts.lengths)), 1, dtype=torch.bool)
        counts_correct = self.group_length_penalty_profile_gate_positive_only
        lengths = rollouts.correct_lengths if counts_correct else rollouts.scorable_lengths
        limits = bands[:, "ab".index(self.group_length_penalty_profile_gate_field)]
        return rollouts.by_group(lengths).nanmean(dim=1, keepdim=True) > rollouts.by_group(limits)[:, :1]

    def _bands(self, rows: Sequence[Any]) -> torch.Tensor:
        """`torch.Tensor` of shape `(N, 3)`: Bands of the rows, else the configured one, in float64; NaN for none."""
        where = f"column {self.profile_band_column} of row"
        bands = [band_of(row, self.configured, f"{where} {index}") for index, row in enumerate(rows)]
        return torch.tensor(bands, dtype=torch.float64).view(-1, 3)
