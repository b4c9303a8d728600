"""Rows as published data sets have them, written here."""

import json

from leash_trl.data.prompts import DAPO_HEADS, DAPO_TAIL


def write_rows(path, rows):
    """Path of a new JSONL file of these rows."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def user(text):
    """One message of the user."""
    return [{"content": text, "role": "user"}]


def dapo_row(question, gold, index="9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"):
    """A row of DAPO-Math-17k."""
    return {
        "data_source": "math_dapo",
        "prompt": user(f"{DAPO_HEADS[0]}{question}{DAPO_TAIL}"),
        "ability": "MATH",
        "reward_model": {"ground_truth": gold, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


DAPO = dapo_row("What is $6 \\cdot 7$?", "42")
DAPO_PROCESSED = {**DAPO, "prompt": "What is $6 \\cdot 7$?", "solution": "42", "source_prompt": DAPO["prompt"]}
SLIME = {"prompt": user(f"{DAPO_HEADS[1]}What is $6 \\cdot 7$?{DAPO_TAIL}"), "label": "42"}
DEEPMATH = {
    "question": "Evaluate $\\lim_{x \\to 0} \\frac{\\sin x}{x}$.",
    "final_answer": "1",
    "difficulty": 4.5,
    "r1_solution_1": "<think>long</think>",
}
AIME24 = {"id": 60, "problem": "Find the remainder.", "solution": "So it is $\\boxed{033}$.", "answer": "033"}
MATH_ARENA = {"problem_idx": 3, "answer": 70, "problem": "Find the sum of all integer bases $b>9$ ..."}
AIMO_AMC = {"id": 4, "problem": "How many digits?", "answer": 142.0, "url": "artofproblemsolving"}
MATH500 = {
    "problem": "Convert the point $(0,3)$ to polar coordinates.",
    "solution": "We have that $r = 3$ ...",
    "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
    "level": 2,
    "unique_id": "test/precalculus/807.json",
}
GPQA = {
    "Record ID": "rec0001",
    "Question": "Which product forms?\n",
    "Correct Answer": " bicyclo[2.2.1]heptane\n",
    "Incorrect Answer 1": "benzene",
    "Incorrect Answer 2": "toluene [title]and  more",
    "Incorrect Answer 3": "phenol",
    "Explanation": "Diels-Alder.",
}
MMLU_PRO = {
    "question_id": 70,
    "question": "Find the characteristic of the ring 2Z.",
    "options": ["N/A", "30", "0", "N/A"],
    "answer": "C",
    "answer_index": 2,
    "category": "math",
}
GSM8K = {"question": "How many eggs?", "answer": "She has 16 - 7 = <<16-7=9>>9 eggs.\n#### 9"}
TRL = {"prompt": "What is 2 + 2?", "solution": "4", "target_length": 4096}
