"""Numbers as tables show them: rounded, with intervals, empty where a number does not exist."""

from collections.abc import Callable

from leash_trl.evaluation.bootstrap import Estimate


def percent(share: float | None) -> str:
    """A share in percent.

    Example:
        >>> percent(0.1234)
        '12.3'
    """
    return "" if share is None else f"{100 * share:.1f}"


def tokens(count: float | None) -> str:
    """A number of tokens: without decimals from 1,000 on.

    Example:
        >>> tokens(16912.4), tokens(46.04)
        ('16,912', '46.0')
    """
    return "" if count is None else f"{count:,.0f}" if abs(count) >= 1000 else f"{count:.1f}"


def plain(number: float | None) -> str:
    """A number of no unit, with three digits.

    Example:
        >>> plain(0.58061), plain(63.5), plain(0.0)
        ('0.581', '63.5', '0')
    """
    return "" if number is None else f"{number:.3g}"


def points(share: float) -> str:
    """A difference of shares in points, or a relative one in percent, with its sign.

    Example:
        >>> points(-0.5), points(-0.0001)
        ('-50.0', '+0.0')
    """
    return f"{_without_minus_zero(100 * share):+.1f}"


def signed_tokens(count: float) -> str:
    """A difference of numbers of tokens.

    Example:
        >>> signed_tokens(-9854.2), signed_tokens(-0.01)
        ('-9,854', '+0.0')
    """
    return f"{count:+,.0f}" if abs(count) >= 1000 else f"{_without_minus_zero(count):+.1f}"


def _without_minus_zero(value: float) -> float:
    """A value at the one digit it is shown with; adding zero turns the -0.0 of a small loss into 0.0."""
    return round(value, 1) + 0.0


def with_interval(number: Estimate, shown: Callable[[float], str]) -> str:
    """A number and its interval.

    Example:
        >>> with_interval(Estimate(0.5, 0.4, 0.625), percent)
        '50.0 [40.0, 62.5]'
    """
    return f"{shown(number.value)} [{shown(number.low)}, {shown(number.high)}]"
