r"""Writes mathematical signs in one spelling: `2√3`, `x²`, `½` and `sqrt(3)` become LaTeX."""

import re
import unicodedata


COMMANDS = (
    r"π \pi ∞ \infty ° ^\circ ± \pm ∓ \mp × \times ∈ \in ∪ \cup ∩ \cap ≤ \le ≥ \ge ≠ \ne ≈ \approx ⋅ \cdot · \cdot "
    r"∅ \emptyset ℝ \mathbb{R} ℤ \mathbb{Z} → \to θ \theta ⟨ \langle ⟩ \rangle ∖ \setminus ≡ \equiv … \ldots "
    r"∠ \angle △ \triangle ⊥ \perp ∥ \parallel ∼ \sim ≅ \cong ⊂ \subset ⊃ \supset ⊆ \subseteq ⊇ \supseteq"
)
SIGNS: dict[int, int | str] = {
    **{ord("！") + offset: chr(ord("!") + offset) for offset in range(94)},  # full-width forms
    **{ord(sign): f"{command} " for sign, command in re.findall(r"(\S) (\S+)", COMMANDS)},
    **str.maketrans("−–—‒―﹣⁃’⁄÷", "-------'//"),
}
UNSEEN = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
RAISED, LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ"
SCRIPTS = re.compile(f"([{RAISED}]+)|([{LOWERED}]+)")
PLAIN_SCRIPTS = str.maketrans(RAISED + LOWERED, "0123456789+-()n" * 2)
VULGAR = re.compile("[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒]")
ROOT = re.compile(r"([√∛]|(?<![\\A-Za-z])sqrt)\s*(?:\(([^()]*)\)|(\d+|[A-Za-z](?![A-Za-z])))")
NAMES = r"sqrt|pi|ln|log|exp|sinh|cosh|tanh|sin|cos|tan|cot|csc|arcsin|arccos|arctan"
BARE_NAME = re.compile(rf"(?<![\\A-Za-z])({NAMES})(?=\s*[({{\d^_\\+\-*/)]|\s+[a-z]\b|\s*$)")
POWER = re.compile(r"(?<=[\w)])\*\*(?=[\w(-])")
REPEATING = re.compile(r"(\d{0,9})\.(\d{0,9}?)(?:\\(?:overline|bar|dot)\s*\{(\d{1,9})\}|\((\d{1,9})\)(?![\w(^]))")
THOUSANDS = re.compile(r"(?<=\d)(?:,\\!\s*|\{,\}|\{,\\!\})(?=\d{3}(?!\d))")
LAYOUT = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![A-Za-z])|\\!|\\(?:textcolor|phantom)\{\w+\}")
ESCAPED = {r"\{": "«", r"\}": "»", r"\%": "%", r"\$": "$", "<=": "≤", ">=": "≥", "!=": "≠"}
SAME_COMMANDS = (
    r"le ≤ leq ≤ leqslant ≤ ge ≥ geq ≥ geqslant ≥ ne ≠ neq ≠ lt < gt > to = equiv = approx ≈ times * cdot * div /"
    r" dots \ldots cdots \ldots dotsc \ldots dotsb \ldots dotsm \ldots"
    r" mid | langle ( rangle ) dfrac \frac tfrac \frac varnothing \emptyset degree ^\circ"
)
SPELLING = dict(re.findall(r"(\S+) (\S+)", SAME_COMMANDS))
COMMAND = re.compile(r"\\([A-Za-z]+)")
UPRIGHT = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|sf|it)|boldsymbol|mbox|operatorname|underline|emph)\s*"
PATTERNS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=\d)\{,\}(?=\d)", "."),  # 2{,}5
        (r"(?<=[\d}])((?:\\[,;: ]|\s)*)\\mathrm\s*\{\s*([A-Za-z])\s*\}(?<!\{[ie]\})", r'\1 "\2" '),  # 5 N
        (rf"{UPRIGHT}(?<!text)\{{\s*(\w)\s*\}}|\\text\s*\{{\s*([ie]|[A-F](?=\}}_))\s*\}}", r"\1\2"),  # x, i, A_{16}
        (UPRIGHT + r"\{\s*(and|or)\b\s*((?=[^{}]*[^\W\d_])[^{}]*?)\s*\}", r' \1 "\2" '),  # and girls
        (UPRIGHT + r"\{(?!\s*(?:and|or)\b)\s*((?=[^{}]*[^\W\d_])[^{}]*?)\s*\}", r' "\1" '),  # girls
        (UPRIGHT + r"\{([^{}]*)\}", r" \1 "),  # \mathbf{12}, \text{ and }
        (r"\.{3,}", r"\\ldots "),
        (r"\\[,;: ]|\\q?quad(?![A-Za-z])|~|\s+", " "),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", "*"),  # 3 x 10^4
        (r"\\frac\s*(\d)\s*(?=[\d{])", r"\\frac{\1}"),  # \frac12
        (r"(\\frac\s*\{[^{}]*\}\s*)(\d)", r"\1{\2}"),  # \frac{1}2
        (r"\\sqrt\s*(\d)(?!\d)", r"\\sqrt{\1}"),  # \sqrt3
        (r"\s*(?:\{:\}|:|\\colon(?![A-Za-z]))\s*", ":"),
        (r" +(?=\^)|(?<= ) +", ""),
    )
]


def _vulgar(match: re.Match[str]) -> str:
    return r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", match[0]).split("⁄"))


def _root(match: re.Match[str]) -> str:
    return f"\\sqrt{'[3]' if match[1] == '∛' else ''}{{{match[2] or match[3]}}}"


def _repeating(match: re.Match[str]) -> str:
    before, period = (match[1] or "0") + match[2], match[3] or match[4]
    nines = 10 ** len(period) - 1
    return rf"\frac{{{int(before) * nines + int(period)}}}{{{nines * 10 ** len(match[2])}}}"


def with_commands(text: str) -> str:
    r"""Returns a text with its mathematical signs as LaTeX commands.

    Example:
        >>> with_commands("2√3 − x²"), with_commands("1½"), with_commands(r"0.\overline{3}")
        ('2\\sqrt{3} - x^{2}', '1\\frac{1}{2}', '\\frac{3}{9}')
    """
    text = VULGAR.sub(_vulgar, UNSEEN.sub("", text))
    text = SCRIPTS.sub(lambda match: f"{'^' if match[1] else '_'}{{{match[0].translate(PLAIN_SCRIPTS)}}}", text)
    text = ROOT.sub(_root, POWER.sub("^", text.translate(SIGNS)))
    return REPEATING.sub(_repeating, BARE_NAME.sub(r"\\\1", text))


def normalized(text: str) -> str:
    """Returns a text in one spelling, with words in quotes, sets in guillemets, and no spacing commands."""
    text = LAYOUT.sub("", THOUSANDS.sub("'", text))
    for sign, replacement in ESCAPED.items():
        text = text.replace(sign, replacement)
    text = COMMAND.sub(lambda command: SPELLING.get(command[1], command[0]), text)
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    return text.rstrip(" .,;").lstrip()
