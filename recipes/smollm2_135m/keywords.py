"""Counts the paper's keywords for summary, rethinking and planning in the completions of evaluated runs.

`python recipes/smollm2_135m/keywords.py FOLDER_OF_LEASH_EVAL ...` prints a row for each run: mean tokens, and keywords
of each group per completion.

Source: appendix of [LEASH](https://huggingface.co/papers/2512.21540), table "Keyword groups used for behavior
analysis". The paper's table lists "first" and "First", which are one keyword here, as are "second" and "step". In the
paper's figure, summary is 6.8 times as frequent as rethink; in 16 public traces of R1 and Qwen3, 4.4 times
(mathematics) and 4.3 times (other tasks). Counts are therefore not comparable with those of the paper.
"""

import re
import sys

import pandas as pd

from leash_trl.evaluation.runs import load_evaluated_run
from leash_trl.evaluation.tables import markdown


KEYWORDS = {
    "summary": ("so", "therefore", "thus", "conclude", "overall"),
    "rethink": (
        "check again",
        "double-check",
        "re-evaluate",
        "re-examine",
        "reanalyze",
        "reassess",
        "recheck",
        "reconsider",
        "reevaluate",
        "reevaluation",
        "reexamine",
        "rethink",
        "think again",
        "verify again",
        "wait",
    ),
    "plan": ("first", "second", "step"),
}


def pattern(keywords: tuple[str, ...]) -> re.Pattern:
    """Returns what matches the keywords as whole words: "also" does not contain "so".

    A hyphen may be any of three in Unicode, and a space any white space.
    """
    forms = [keyword.replace("-", "[-‐‑]").replace(" ", r"\s+") for keyword in keywords]
    return re.compile(rf"(?<!\w)(?:{'|'.join(forms)})(?!\w)", re.IGNORECASE)


PATTERNS = {group: pattern(keywords) for group, keywords in KEYWORDS.items()}


def keyword_counts(text: str) -> dict[str, int]:
    """Returns the number of keywords of each group in a text, including the thinking."""
    return {group: len(keywords.findall(text)) for group, keywords in PATTERNS.items()}


def main(folders: list[str]) -> None:
    """Prints the table, with the means over all completions of each run."""
    rows = []
    for folder in folders:
        run = load_evaluated_run(folder)
        counts = pd.DataFrame([keyword_counts(text) for text in run.samples["text"]])
        row = {"run": run.label, "tokens": f"{run.samples['num_tokens'].mean():.1f}"}
        row.update({group: f"{mean:.2f}" for group, mean in counts.mean().items()})
        rows.append(row)
    print(markdown(pd.DataFrame(rows)))


if __name__ == "__main__":
    main(sys.argv[1:])
