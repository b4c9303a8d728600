"""Lists the names, dimensions and sizes of units, and reads them."""

import re
from fractions import Fraction
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit of measurement, or a power or a quotient of units.

    Args:
        dimension (`str`): What the unit measures, such as `length`, `length 2` (an area) or `length 1 / time 1`.
        size (`Fraction`): Size relative to the unit of this dimension whose size is 1.
    """

    dimension: str
    size: Fraction


# Dimension, size relative to the unit of this dimension whose size is 1, names in the singular.
UNIT_TABLE = [
    ("length", "0.001", ["mm", "millimeter", "millimetre"]),
    ("length", "0.01", ["cm", "centimeter", "centimetre"]),
    ("length", "1", ["m", "meter", "metre"]),
    ("length", "1000", ["km", "kilometer", "kilometre"]),
    ("length", "0.0254", ["in", "inch", "inche"]),  # `unit_key` takes the "s" from "inches"
    ("length", "0.3048", ["ft", "foot", "feet"]),
    ("length", "0.9144", ["yd", "yard"]),
    ("length", "1609.344", ["mi", "mile"]),
    ("mass", "0.001", ["mg", "milligram"]),
    ("mass", "1", ["g", "gram"]),
    ("mass", "1000", ["kg", "kilo", "kilogram"]),
    ("mass", "453.592", ["lb", "pound"]),
    ("mass", "28.3495", ["oz", "ounce"]),
    ("time", "1", ["s", "sec", "second"]),
    ("time", "60", ["min", "minute"]),
    ("time", "3600", ["h", "hr", "hour"]),
    ("time", "86400", ["day"]),
    ("time", "604800", ["wk", "week"]),
    ("volume", "0.001", ["ml", "milliliter", "millilitre"]),
    ("volume", "1", ["l", "liter", "litre"]),
    ("volume", "3.785411784", ["gal", "gallon"]),
    ("volume", "0.946352946", ["quart"]),
    ("volume", "0.473176473", ["pint"]),
    ("volume", "0.2365882365", ["cup"]),
    ("volume", "0.01478676478125", ["tbsp", "tablespoon"]),
    ("volume", "0.00492892159375", ["tsp", "teaspoon"]),
    ("calendar", "1", ["month"]),  # not in seconds, because months differ
    ("calendar", "12", ["year", "yr"]),
    ("money", "1", ["dollar", "buck", "usd", "$"]),
    ("money", "0.01", ["cent", "¢"]),
    ("angle", "1", ["degree", "deg", "°"]),
    ("radian", "1", ["radian", "rad"]),
    ("percent", "1", ["%", "percent", "pct", "percentage"]),
    # Words that multiply the number before them.
    ("times", "12", ["doz", "dozen"]),
    ("times", "100", ["hundred"]),
    ("times", "1e3", ["thousand"]),
    ("times", "1e6", ["million"]),
    ("times", "1e9", ["billion"]),
    ("times", "1e12", ["trillion"]),
]
UNITS: dict[str, Unit] = {}
for dimension, size, names in UNIT_TABLE:
    UNITS |= dict.fromkeys(names, Unit(dimension, Fraction(size)))

ABBREVIATED_UNITS = {
    "cc": "cm^3",
    "mph": "mi/h",
    "kph": "km/h",
    "kmh": "km/h",
    "kmph": "km/h",
    "fps": "ft/s",
    "mpg": "mi/gal",
}
PERCENT = Unit("percent 1", Fraction(1))  # the unit of % as `read_unit` returns it

# Pattern and replacement: daily is per day.
RATE_RESPELLINGS = [
    (re.compile(r"\bdaily\b", re.IGNORECASE), "per day"),
    (re.compile(r"\bannually\b", re.IGNORECASE), "per year"),
    (re.compile(r"\b(hour|week|month|year)ly\b", re.IGNORECASE), r"per \1"),
]
PER = re.compile(r"/|\bper\b|(?<!\bin )\b(?:an?|each|every)\b")  # km/h, words per minute, miles a day; not: in a day
DEGREE_SIGN = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°")  # ^\circ
SECOND_POWER = re.compile(r"\bsq(?:uared?)?\b|\^\s*\{?\s*2")  # square feet, sq ft, m^2
THIRD_POWER = re.compile(r"cubic|cubed|\^\s*\{?\s*3")  # cubic feet, m^{3}
ANY_POWER = re.compile(r"\^\s*\{?\s*\d\s*\}?|\b(?:squared?|sq|cubic|cubed)\b")  # ^2 and "square" beside a unit


def unit_key(name: str) -> str:
    """Returns the key of [`UNITS`] for a unit's name, singular or plural; empty text if the unit is not known."""
    name = name.lower()
    for key in (name, name.removesuffix("s")):
        if key in UNITS:
            return key
    return ""


def read_unit(text: str) -> Unit | None:
    r"""Returns the dimension and the size of a unit or of a quotient of units; `None` if a unit is not known.

    Example:
        >>> read_unit("cm"), read_unit("square feet").dimension, read_unit("apples")
        (Unit(dimension='length 1', size=Fraction(1, 100)), 'length 2', None)
        >>> read_unit("km/h")
        Unit(dimension='length 1 / time 1', size=Fraction(5, 18))
    """
    # mph becomes mi/h, and "daily" becomes "per day".
    quotient = ABBREVIATED_UNITS.get(text.strip(' "').lower(), text)
    for pattern, replacement in RATE_RESPELLINGS:
        quotient = pattern.sub(replacement, quotient)
    # "km/h", "km per hour" and "km an hour" have the parts km and the unit of time.
    numerator_text, *denominator_text = PER.split(quotient, maxsplit=1)
    numerator = _unit_or_its_power(numerator_text)
    if not denominator_text:
        return numerator
    # "per hour" counts something without a unit, as in "50 per hour".
    if numerator is None and quotient.split()[0].lower() == "per":
        numerator = Unit("number", Fraction(1))
    denominator = _unit_or_its_power(denominator_text[0])
    if numerator is None or denominator is None:
        return None
    return Unit(f"{numerator.dimension} / {denominator.dimension}", numerator.size / denominator.size)


def _unit_or_its_power(text: str) -> Unit | None:
    """Returns a unit or its second or third power, such as `square feet`; `None` if the unit is not known."""
    # ^\circ becomes " degree ", and "sq." becomes "sq".
    text = DEGREE_SIGN.sub(" degree ", text.lower().replace(".", " "))
    power = 1
    if SECOND_POWER.search(text):
        power = 2
    elif THIRD_POWER.search(text):
        power = 3
    # Without its power, "square feet" is "feet", and cm^2 is cm.
    name = unit_key(ANY_POWER.sub(" ", text).strip())
    if not name:
        return None
    unit = UNITS[name]
    # Such as ("length 2", 1/10000) of cm^2, relative to square meters.
    return Unit(f"{unit.dimension} {power}", unit.size**power)


def product_formula(formula: str, factor: Fraction) -> str:
    r"""Returns the product of a formula and a number, as a formula."""
    return rf"({formula})*(\frac{{{factor.numerator}}}{{{factor.denominator}}})"
