r"""One spelling for the signs of mathematics: `2√3`, `x²`, `½` and `sqrt(3)` become the LaTeX that they stand for."""

import re
import unicodedata
from fractions import Fraction


SIGNS: dict[int, str] = {
    **{ord("！") + offset: chr(ord("!") + offset) for offset in range(94)},  # full-width forms
    **dict.fromkeys(map(ord, "−–—‒―﹣⁃"), "-"),
    **dict.fromkeys(map(ord, "\u00a0\u2009\u202f\u2007\u2002\u2003"), " "),
    **{ord("π"): r"\pi ", ord("∞"): r"\infty ", ord("°"): r"^\circ ", ord("±"): r"\pm ", ord("∓"): r"\mp "},
    **{ord("×"): r"\times ", ord("÷"): "/", ord("∈"): r"\in ", ord("∪"): r"\cup ", ord("∩"): r"\cap "},
    **{ord("≤"): r"\le ", ord("≥"): r"\ge ", ord("≠"): r"\ne ", ord("≈"): r"\approx ", ord("⋅"): r"\cdot "},
    **{ord("·"): r"\cdot ", ord("∅"): r"\emptyset ", ord("ℝ"): r"\mathbb{R}", ord("→"): r"\to ", ord("θ"): r"\theta "},
    **{ord("⟨"): r"\langle ", ord("⟩"): r"\rangle ", ord("∖"): r"\setminus ", ord("’"): "'", ord("⁄"): "/"},
}
UNSEEN = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
RAISED, LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ"
SCRIPTS = re.compile(f"([{RAISED}]+)|([{LOWERED}]+)")
PLAIN_SCRIPTS = str.maketrans(RAISED + LOWERED, "0123456789+-()n" * 2)
VULGAR = re.compile("[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒]")
OTHER_DIGIT = re.compile(r"(?![0-9])\d")
ROOT = re.compile(r"([√∛]|(?<![\\A-Za-z])sqrt)\s*(?:\(([^()]*)\)|(\d+|[A-Za-z](?![A-Za-z])))")
NAMES = r"sqrt|pi|ln|log|exp|sinh|cosh|tanh|sin|cos|tan|cot|csc|arcsin|arccos|arctan"
BARE_NAME = re.compile(rf"(?<![\\A-Za-z])({NAMES})(?=\s*[({{\d^_\\+\-*/)]|\s+[a-z]\b|\s*$)")
POWER = re.compile(r"(?<=[\w)])\*\*(?=[\w(-])")
NATURAL_LOG = re.compile(r"\\log_(?:e(?![A-Za-z])|\{e\})")
LOOSE_MARK = re.compile(r"(?<=\d)\s?\{ ?, ?\}\s?(?=\d)")
REPEATING = re.compile(r"(\d{0,9})\.(\d{0,9})(?:\\(?:overline|bar|dot)\s*\{(\d{1,9})\}|\((\d{1,9})\)(?![\w(^]))")

UNITS: dict[str, tuple[str, Fraction]] = {
    name: (dimension, Fraction(factor))
    for dimension, units in {
        "length": {"mm millimeter millimetre": "0.001", "cm centimeter centimetre": "0.01", "m meter metre": "1"}
        | {"km kilometer kilometre": "1000", "in inch inche": "0.0254", "ft foot feet": "0.3048", "yd yard": "0.9144"}
        | {"mi mile": "1609.344"},
        "mass": {
            "mg milligram": "0.001",
            "g gram": "1",
            "kg kilogram": "1000",
            "lb pound": "453.592",
            "oz": "28.3495",
        },
        "time": {"s sec second": "1", "min minute": "60", "h hr hour": "3600", "day": "86400", "week": "604800"},
        "volume": {"ml milliliter": "0.001", "l liter litre": "1"},
        "money": {"dollar usd $": "1", "cent ¢": "0.01"},
        "angle": {"degree deg °": "1"},
        "radian": {"radian rad": "1"},
        "prime": {"'": "1"},
        "percent": {"% percent pct percentage": "1"},
        "times": {"thousand": "1000", "million": "1000000", "billion": "1000000000", "trillion": "1000000000000"},
    }.items()
    for names, factor in units.items()
    for name in names.split()
}


def _vulgar(match: re.Match[str]) -> str:
    return r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", match[0]).split("⁄"))


def _root(match: re.Match[str]) -> str:
    return f"\\sqrt{'[3]' if match[1] == '∛' else ''}{{{match[2] or match[3]}}}"


def _repeating(match: re.Match[str]) -> str:
    before, period = (match[1] or "0") + match[2], match[3] or match[4]
    nines = 10 ** len(period) - 1
    return rf"\frac{{{int(before) * nines + int(period)}}}{{{nines * 10 ** len(match[2])}}}"


def latex(text: str) -> str:
    r"""A text with its signs of mathematics in LaTeX.

    Example:
        >>> latex("2√3 − x²"), latex("1½"), latex(r"0.\overline{3}")
        ('2\\sqrt{3} - x^{2}', '1\\frac{1}{2}', '\\frac{3}{9}')
    """
    text = VULGAR.sub(_vulgar, UNSEEN.sub("", text))
    text = SCRIPTS.sub(lambda match: f"{'^' if match[1] else '_'}{{{match[0].translate(PLAIN_SCRIPTS)}}}", text)
    text = OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text.translate(SIGNS))
    text = ROOT.sub(_root, POWER.sub("^", text))
    text = NATURAL_LOG.sub(r"\\ln ", text)
    text = LOOSE_MARK.sub("{,}", text)
    return REPEATING.sub(_repeating, BARE_NAME.sub(r"\\\1", text))


def unit_of(name: str) -> str:
    """The key of [`UNITS`] for a unit's name, singular or plural; empty where it is not known."""
    name = name.lower()
    return next((key for key in (name, name.removesuffix("s")) if key in UNITS), "")
