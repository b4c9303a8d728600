r"""Where the answer of a completion stands: one documented rule, text in, text out."""

import re


THINK_START, THINK_END = "<think>", "</think>"
ANSWER_LINE = re.compile(r"^[^\w\n]*answer[^\w\n]*?:(.+)$", re.IGNORECASE | re.MULTILINE)
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is a printed one, as in \{1, 2\}


def visible_text(completion: str) -> str:
    """The part of a completion that may hold its answer.

    Returns:
        `str`: What follows the last `</think>`; nothing if thinking was opened and never closed; else the whole text
        (templates that open `<think>` in the prompt and models that do not think look the same from here).

    Example:
        >>> visible_text("It is 3, wait.</think>The answer is 4.")
        'The answer is 4.'
        >>> visible_text("<think>It is 3, wait")
        ''
    """
    if THINK_END in completion:
        return completion.rpartition(THINK_END)[2]
    return "" if THINK_START in completion else completion


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete `\boxed{...}` or `\fbox{...}`, braces balanced; `None` if there is none.

    Example:
        >>> last_boxed(r"so \boxed{1}, no, \boxed{\frac{1}{2}}")
        '\\frac{1}{2}'
    """
    boxes = {match.end() - 1 for match in BOX.finditer(text)}
    open_braces: list[int] = []
    last_start, content = -1, None
    for brace in BRACE.finditer(text):
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif brace[0] == "}" and open_braces and (start := open_braces.pop()) in boxes and start > last_start:
            last_start, content = start, text[start + 1 : brace.start()].strip()
    return content


def final_answer(completion: str) -> str | None:
    r"""The answer that a completion commits to, as LaTeX or plain text.

    The last `\boxed{}` of the visible text comes first, then the last line of DAPO's form `Answer: ...`.

    Returns:
        `str` or `None`: The answer without its box; `None` if there is none. Thinking that the completion itself
        opened and did not finish holds none.

    Example:
        >>> final_answer("<think>hm</think>So it is\nAnswer: $34$")
        '$34$'
    """
    text = visible_text(completion)
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    lines = [line for match in ANSWER_LINE.findall(text) if (line := match.strip("* \t\r"))]
    return lines[-1] if lines else None
