r"""Writes mathematical signs in one spelling: `2√3`, `x²`, `½` and `sqrt(3)` become LaTeX."""

import re
import unicodedata


SIGN_COMMANDS = {
    "π": r"\pi",
    "∞": r"\infty",
    "°": r"^\circ",
    "±": r"\pm",
    "∓": r"\mp",
    "×": r"\times",
    "∈": r"\in",
    "∪": r"\cup",
    "∩": r"\cap",
    "≤": r"\le",
    "≥": r"\ge",
    "≠": r"\ne",
    "≈": r"\approx",
    "⋅": r"\cdot",
    "·": r"\cdot",
    "∅": r"\emptyset",
    "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}",
    "→": r"\to",
    "θ": r"\theta",
    "⟨": r"\langle",
    "⟩": r"\rangle",
    "∖": r"\setminus",
    "≡": r"\equiv",
    "…": r"\ldots",
    "∠": r"\angle",
    "△": r"\triangle",
    "⊥": r"\perp",
    "∥": r"\parallel",
    "∼": r"\sim",
    "≅": r"\cong",
    "⊂": r"\subset",
    "⊃": r"\supset",
    "⊆": r"\subseteq",
    "⊇": r"\supseteq",
}
# What `str.translate` puts for a sign: commands, plain dashes, apostrophes and slashes, and half-width characters.
SIGNS: dict[int, int | str] = {ord(sign): f"{command} " for sign, command in SIGN_COMMANDS.items()}
SIGNS |= str.maketrans("−–—‒―﹣⁃’⁄÷", "-------'//")
SIGNS |= {ord("！") + offset: chr(ord("!") + offset) for offset in range(94)}  # full-width, in ASCII's order

# Control characters, blanks without width, and marks of the direction of writing.
INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ"
LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ"
PLAIN_SCRIPTS = str.maketrans(RAISED + LOWERED, "0123456789+-()n" * 2)
SCRIPTS = re.compile(f"([{RAISED}]+)|([{LOWERED}]+)")  # x⁻¹, x₁
VULGAR_FRACTION = re.compile("[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒]")
# √3, ∛8, √x, sqrt(x+1)
ROOT = re.compile(r"([√∛]|(?<![\\A-Za-z])sqrt)\s*(?:\(([^()]*)\)|(\d+|[A-Za-z](?![A-Za-z])))")
FUNCTION_NAMES = r"sqrt|pi|ln|log|exp|sinh|cosh|tanh|sin|cos|tan|cot|csc|arcsin|arccos|arctan"
# sin(x), ln 2, log x, 2pi: a name without a backslash before what it may be applied to
BARE_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({FUNCTION_NAMES})(?=\s*[({{\d^_\\+\-*/)]|\s+[a-z]\b|\s*$)")
PYTHON_POWER = re.compile(r"(?<=[\w)])\*\*(?=[\w(-])")  # x**2
# 0.1\overline{6} and 0.1(6)
REPEATING_DECIMAL = re.compile(
    r"(\d{0,9})\.(\d{0,9}?)(?:\\(?:overline|bar|dot)\s*\{(\d{1,9})\}|\((\d{1,9})\)(?![\w(^]))"
)
THOUSANDS_COMMA = re.compile(r"(?<=\d)(?:,\\!\s*|\{,\}|\{,\\!\})(?=\d{3}(?!\d))")  # 1{,}234, 1,\!234
# \left, \Big, \displaystyle, \!, \textcolor{red}
LAYOUT_COMMAND = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![A-Za-z])|\\!|\\(?:textcolor|phantom)\{\w+\}"
)
ESCAPED_SIGNS = {
    r"\{": "«",  # the braces of a set, unlike those of LaTeX's arguments
    r"\}": "»",
    r"\%": "%",
    r"\$": "$",
    "<=": "≤",
    ">=": "≥",
    "!=": "≠",
}
COMMAND = re.compile(r"\\([A-Za-z]+)")  # \leq
# What stands for each command, without its backslash.
COMMAND_REPLACEMENTS = {
    "le": "≤",
    "leq": "≤",
    "leqslant": "≤",
    "ge": "≥",
    "geq": "≥",
    "geqslant": "≥",
    "ne": "≠",
    "neq": "≠",
    "lt": "<",
    "gt": ">",
    "to": "=",
    "equiv": "=",
    "approx": "≈",
    "times": "*",
    "cdot": "*",
    "div": "/",
    "dots": r"\ldots",
    "cdots": r"\ldots",
    "dotsc": r"\ldots",
    "dotsb": r"\ldots",
    "dotsm": r"\ldots",
    "mid": "|",
    "langle": "(",
    "rangle": ")",
    "dfrac": r"\frac",
    "tfrac": r"\frac",
    "varnothing": r"\emptyset",
    "degree": r"^\circ",
}
# Commands that set their argument as text or in another font, but do not change its meaning: \text, \mathbf
UPRIGHT = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|sf|it)|boldsymbol|mbox|operatorname|underline|emph)\s*"
# Pattern and replacement, with an example; they apply one after another.
RESPELLINGS = [
    # 2{,}5 is 2.5
    (r"(?<=\d)\{,\}(?=\d)", "."),
    # the unit of 5\,\mathrm{N}, but not the number e or i in \mathrm
    (r"(?<=[\d}])((?:\\[,;: ]|\s)*)\\mathrm\s*\{\s*([A-Za-z])\s*\}(?<!\{[ie]\})", r'\1 "\2" '),
    # one letter is a variable or a digit: \mathbf{x}, \text{i}, \text{A}_{16}
    (rf"{UPRIGHT}(?<!text)\{{\s*(\w)\s*\}}|\\text\s*\{{\s*([ie]|[A-F](?=\}}_))\s*\}}", r"\1\2"),
    # \text{ and girls}: the conjunction stays outside the quotes
    (UPRIGHT + r"\{\s*(and|or)\b\s*((?=[^{}]*[^\W\d_])[^{}]*?)\s*\}", r' \1 "\2" '),
    # \text{ girls}
    (UPRIGHT + r"\{(?!\s*(?:and|or)\b)\s*((?=[^{}]*[^\W\d_])[^{}]*?)\s*\}", r' "\1" '),
    # \mathbf{12}, \text{ and }
    (UPRIGHT + r"\{([^{}]*)\}", r" \1 "),
    # 1, 2, ...
    (r"\.{3,}", r"\\ldots "),
    # blanks: 5\,cm, x \quad y, 5~cm
    (r"\\[,;: ]|\\q?quad(?![A-Za-z])|~|\s+", " "),
    # 3 x 10^4
    (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", "*"),
    # \frac12, here its numerator
    (r"\\frac\s*(\d)\s*(?=[\d{])", r"\\frac{\1}"),
    # \frac{1}2
    (r"(\\frac\s*\{[^{}]*\}\s*)(\d)", r"\1{\2}"),
    # \sqrt3
    (r"\\sqrt\s*(\d)(?!\d)", r"\\sqrt{\1}"),
    # the ratios 2 : 3, 2{:}3 and 2 \colon 3
    (r"\s*(?:\{:\}|:|\\colon(?![A-Za-z]))\s*", ":"),
    # blanks before a power or another blank
    (r" +(?=\^)|(?<= ) +", ""),
]
RESPELLING_PATTERNS = [(re.compile(pattern), replacement) for pattern, replacement in RESPELLINGS]


def _vulgar_fraction(match: re.Match[str]) -> str:
    # NFKC writes ½ as 1 and 2 with Unicode's fraction slash between them, which is not the slash of ASCII.
    numerator, denominator = unicodedata.normalize("NFKC", match[0]).split("⁄")
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def _script(match: re.Match[str]) -> str:
    sign = "^" if match[1] else "_"
    content = match[0].translate(PLAIN_SCRIPTS)
    return f"{sign}{{{content}}}"


def _root(match: re.Match[str]) -> str:
    degree = "[3]" if match[1] == "∛" else ""
    radicand = match[2] or match[3]
    return rf"\sqrt{degree}{{{radicand}}}"


def _repeating_decimal(match: re.Match[str]) -> str:
    r"""Returns a fraction: 0.1(6) is (1 * 9 + 6) / (9 * 10)."""
    # 0.1\overline{6} and 0.1(6) have the decimals 1 and the period 6.
    whole = match[1] or "0"
    decimals = match[2]
    period = match[3] or match[4]
    nines = 10 ** len(period) - 1
    numerator = int(whole + decimals) * nines + int(period)
    denominator = nines * 10 ** len(decimals)
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def with_latex_commands(text: str) -> str:
    r"""Returns a text with its mathematical signs as LaTeX commands.

    Example:
        >>> with_latex_commands("2√3 − x²"), with_latex_commands("1½"), with_latex_commands(r"0.\overline{3}")
        ('2\\sqrt{3} - x^{2}', '1\\frac{1}{2}', '\\frac{3}{9}')
    """
    text = INVISIBLE.sub("", text)
    # ½ becomes \frac{1}{2}.
    text = VULGAR_FRACTION.sub(_vulgar_fraction, text)
    # x² becomes x^{2}, and x₁ becomes x_{1}.
    text = SCRIPTS.sub(_script, text)
    # π becomes \pi, and a minus sign of Unicode that of ASCII.
    text = text.translate(SIGNS)
    # x**2 becomes x^2.
    text = PYTHON_POWER.sub("^", text)
    # √3 and sqrt(3) become \sqrt{3}.
    text = ROOT.sub(_root, text)
    # sin(x) becomes \sin(x).
    text = BARE_FUNCTION.sub(r"\\\1", text)
    # 0.1(6) becomes \frac{15}{90}.
    return REPEATING_DECIMAL.sub(_repeating_decimal, text)


def normalized(text: str) -> str:
    """Returns a text in one spelling, with words in quotes, sets in guillemets, and no spacing commands."""
    # 1{,}234 becomes 1'234, since a comma would separate the members of a list.
    text = THOUSANDS_COMMA.sub("'", text)
    # Sizes, colors and the like, as in \left( and \displaystyle.
    text = LAYOUT_COMMAND.sub("", text)
    # The \{ of a set becomes «, and <= becomes ≤.
    for sign, replacement in ESCAPED_SIGNS.items():
        text = text.replace(sign, replacement)
    # \dfrac becomes \frac, \leq becomes ≤, and other commands stay.
    text = COMMAND.sub(lambda command: COMMAND_REPLACEMENTS.get(command[1], command[0]), text)
    # Each pattern has an example in `RESPELLINGS`, such as \text{ girls}, which becomes "girls" with its quotes.
    for pattern, replacement in RESPELLING_PATTERNS:
        text = pattern.sub(replacement, text)
    # A point is removed at the end only, because .5 begins with one.
    return text.rstrip(" .,;").lstrip()
