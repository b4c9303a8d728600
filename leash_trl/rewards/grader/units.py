"""Lists the names, kinds and sizes of units, and decides whether two quantities with units are equal."""

import re
from collections.abc import Callable
from fractions import Fraction

from leash_trl.rewards.grader.rational import rational


Unit = tuple[str, Fraction]  # kind of the unit, and size relative to the unit of this kind whose size is 1
Same = Callable[[str, str], bool | None]  # returns whether two formulas, or two equations, are equal


SIZES = {
    "length": "mm millimeter millimetre 0.001 cm centimeter centimetre 0.01 m meter metre 1"
    " km kilometer kilometre 1000 in inch inche 0.0254 ft foot feet 0.3048 yd yard 0.9144 mi mile 1609.344",
    "mass": "mg milligram 0.001 g gram 1 kg kilogram 1000 lb pound 453.592 oz 28.3495",
    "time": "s sec second 1 min minute 60 h hr hour 3600 day 86400 week 604800",
    "volume": "ml milliliter millilitre 0.001 l liter litre 1",
    "calendar": "month 1 year yr 12",
    "money": "dollar usd $ 1 cent ¢ 0.01",
    "angle": "degree deg ° 1",
    "radian": "radian rad 1",
    "percent": "% percent pct percentage 1",
    "times": "dozen 12 hundred 100 thousand 1e3 million 1e6 billion 1e9 trillion 1e12",
}
ABBREVIATED = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h"}
PER = re.compile(r"/|\bper\b")
UNITS: dict[str, Unit] = {
    name: (dimension, Fraction(size))
    for dimension, sizes in SIZES.items()
    for names, size in re.findall(r"(\D+) ([\d.e]+)", sizes)
    for name in names.split()
}


def unit_of(name: str) -> str:
    """Returns the key of [`UNITS`] for a unit's name, singular or plural; empty text if the unit is not known."""
    name = name.lower()
    return next((key for key in (name, name.removesuffix("s")) if key in UNITS), "")


def read_unit(text: str) -> Unit | None:
    r"""Returns the kind and the size of a unit or of a quotient of units; `None` if a unit is not known.

    Example:
        >>> read_unit("cm"), read_unit("square feet")[0], read_unit("apples")
        (('length 1', Fraction(1, 100)), 'length 2', None)
        >>> read_unit("km/h")
        ('length 1 / time 1', Fraction(5, 18))
    """
    parts = [_read_power(part) for part in PER.split(ABBREVIATED.get(text.strip(' "').lower(), text))]
    if len(parts) == 2 and not parts[0] and text.split()[0].lower() == "per":
        parts[0] = ("number", Fraction(1))
    known = [part for part in parts if part]
    if len(known) < len(parts) or len(parts) > 2:
        return None
    (dimension, size), *per = known
    return (f"{dimension} / {per[0][0]}", size / per[0][1]) if per else (dimension, size)


def _read_power(text: str) -> Unit | None:
    if not text.strip():
        return None
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|°", " degree ", text.lower().replace(".", " "))
    power = (
        2
        if re.search(r"\bsq(?:uared?)?\b|\^\s*\{?\s*2", text)
        else 3
        if re.search(r"cubic|cubed|\^\s*\{?\s*3", text)
        else 1
    )
    name = unit_of(re.sub(r"\^\s*\{?\s*\d\s*\}?|\b(?:squared?|sq|cubic|cubed)\b", " ", text).strip())
    if not name:
        return None
    dimension, factor = UNITS[name]
    return f"{dimension} {power}", factor**power


def times(formula: str, factor: Fraction) -> str:
    r"""Returns the product of a formula and a number, as a formula."""
    return rf"({formula})*(\frac{{{factor.numerator}}}{{{factor.denominator}}})"


def quantities_equal(one: str, unit: Unit | None, gold: str, gold_unit: Unit | None, same: Same) -> bool | None:
    """Returns whether two quantities are equal; a unit that only one names does not matter, and 7 % is 7 or 0.07."""
    (kind, factor), (gold_kind, gold_factor) = unit or ("", Fraction(1)), gold_unit or ("", Fraction(1))
    if kind and gold_kind:
        return kind == gold_kind and same(times(one, factor), times(gold, gold_factor))
    verdict = same(one, gold)
    if "percent 1" not in (kind, gold_kind):
        return verdict
    percent = Fraction(1, 100)
    share = same(times(one, percent), gold) if kind else same(one, times(gold, percent))
    value = rational(gold)
    if kind and value is not None and abs(value) < 1:
        return share  # 0.07 is 7 %, not 0.07 %
    return True if True in (verdict, share) else None if None in (verdict, share) else False
