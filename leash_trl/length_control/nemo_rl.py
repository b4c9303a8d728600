"""The length band of NeMo-RL: one for all prompts, or one for each prompt."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from leash_trl.length_control import LengthControl, Rollouts
from leash_trl.length_control.dual import clipped
from leash_trl.length_control.fields import is_number


class Band(NamedTuple):
    """A band of lengths: from `a` to `b` tokens, the factor of the reward falls from 1 to `f`."""

    a: float
    b: float
    f: float

    def factor(self, length: float) -> float:
        r"""Returns the factor by which the band multiplies the reward at a length in tokens, dimensionless.

        $$ m(L) = 1 - (1 - f) \, \mathrm{clip}\left(\frac{L - a}{b - a}, 0, 1\right) $$

        Example:
            >>> [Band(10, 20, 0.5).factor(length) for length in (10, 15, 20, 900)]
            [1.0, 0.75, 0.5, 0.5]
        """
        share = clipped((length - self.a) / (self.b - self.a), 0.0, 1.0)  # how far the length is within the band
        return 1.0 - (1.0 - self.f) * share


def band_of(value: Any, name: str) -> Band | None:
    """Returns the band that a value of the configuration or of a row describes; `None` for no band.

    Args:
        value (`Mapping`): The row's value in the column of bands, such as `{"a": 18000, "b": 24000, "f": 0.9}`, or the
            same mapping under the key `total`, as in NeMo-RL's data. Values of None and NaN count as absent.
        name (`str`): Name of the value for the error message.

    Raises:
        `ValueError`: If `a`, `b` and `f` are not all numbers, `b` is not above `a`, `a` is negative, or the factor `f`
            is not from 0 to 1.
    """
    # NeMo-RL's data has bands such as {"total": {"a": 18000, "b": 24000, "f": 0.9}}.
    if isinstance(value, Mapping):
        value = value.get("total", value)
    if _is_missing(value):
        return None
    has_numbers = isinstance(value, Mapping) and all(is_number(value.get(key)) for key in Band._fields)
    band = Band(value["a"], value["b"], value["f"]) if has_numbers else None
    if band is None or not (0 <= band.a < band.b and 0 <= band.f <= 1):
        raise ValueError(f"{name} is {value!r}, but must have a, b and f: 0 <= a < b in tokens, and f from 0 to 1")
    return band


def _is_missing(value: Any) -> bool:
    """Returns whether a row has no band. A table gives it None or NaN, or a mapping with the same keys as other rows
    and only such values."""
    entries = value.values() if isinstance(value, Mapping) else [value]
    return all(entry is None or entry != entry for entry in entries)  # only NaN differs from itself


class NemoRL(LengthControl):
    r"""NeMo-RL: the reward of correct answers (1) falls in a band of lengths, which each prompt may have of its own.

    $$ r'_i = c_i \, m(L_i) $$

    The factor $m$ is 1 up to $a$ tokens and falls linearly to $f$ at $b$ tokens, see [`Band.factor`]. The
    hyper-parameters have the names of NeMo-RL's `grpo.length_penalty`.

    Use: to limit the length of each prompt without adapting a penalty, for example by the lengths that another model
    needed for it.

    Source: `nemo_rl/utils/length_penalty.py` of [NeMo-RL #3852](https://github.com/NVIDIA-NeMo/RL/pull/3852), merged,
    which continues [#3604](https://github.com/NVIDIA-NeMo/RL/pull/3604). The reward `reasoning_length` of
    [#3769](https://github.com/NVIDIA-NeMo/RL/pull/3769), which is open, with composition `correctness_gated` equals
    the band with `a` = `tau1`, `b` = `tau2` and `f` = 1 - `weight`.

    Differs: NeMo-RL's further terms compare the correct answers of a prompt with each other; of them, the min-max term
    and the one with the pass rate are the methods `grlc` and `mai`, the others are left out. NeMo-RL skips groups with
    rewards other than 0 and 1; here, the band multiplies correctness, which is 1 or 0. Bands that lack `a`, `b` or
    `f`, or whose `b` is not above `a`, raise an error here. A row whose `total` is None has the configured band here,
    but no band in NeMo-RL. NeMo-RL tokenizes the text again, without special tokens; here, lengths are the generated
    tokens. `profiled_length_penalty`, a constant penalty $p$ from a threshold $t$ on, equals the band with `a` = $t -
    1$, `b` = $t$ and `f` = $1 - p$.

    Args:
        profile_band (`dict[str, float]`): The band, such as `{a: 18000, b: 24000, f: 0.9}`, with `a` and `b` in
            tokens, and `f` the factor of the reward from `b` tokens on.
        profile_band_column (`str`): Column of the data set with a band for each prompt: `{a, b, f}`, or
            `{total: {a, b, f}}` as in NeMo-RL. The band of a row replaces all of `profile_band`, which applies to rows
            without a band.
    """

    name = "nemo_rl"

    profile_band: dict[str, float] | None = None
    profile_band_column: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.configured_band = band_of(self.profile_band, "profile_band")

    def check(self, target_length: int | None, max_completion_length: float) -> None:
        # `configured_band` is the band of all prompts, or `None`; the column may have another one for each prompt.
        if self.configured_band is None and self.profile_band_column is None:
            raise ValueError(f"{self.name} has neither profile_band nor profile_band_column; set one of them")
        # The reward falls only from `a` tokens on, so a band above the generation limit would have no effect.
        if self.configured_band is not None and self.configured_band.a >= max_completion_length:
            raise ValueError(
                f"profile_band is {self.profile_band}, but a must be less than the generation limit of "
                f"{max_completion_length} tokens"
            )

    def columns_read(self) -> tuple[str, ...]:
        return (self.profile_band_column,) if self.profile_band_column else ()

    def check_columns(self, columns: Mapping[str, Sequence[Any]]) -> str | None:
        """Raises `ValueError` for an invalid band, and returns a warning if no row has a band."""
        for column, rows in columns.items():
            if not any(self._bands(rows)):
                return f"profile_band_column is {column!r}, but no row has a band there; fill it in or leave it out"
        return None

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        # a row without a band has the configured one
        rows = rollouts.columns.get(self.profile_band_column or "", [None] * len(rollouts.lengths))
        factors = []
        for length, band in zip(rollouts.lengths.tolist(), self._bands(rows), strict=True):
            factors.append(1.0 if band is None else band.factor(length))
        return self.base_rewards(rollouts) * torch.tensor(factors, dtype=torch.float64)

    def _bands(self, rows: Sequence[Any]) -> list[Band | None]:
        """Returns the bands of the rows, else the configured one."""
        bands = []
        for index, row in enumerate(rows):
            name = f"column {self.profile_band_column} of row {index}"
            bands.append(band_of(row, name) or self.configured_band)
        return bands
