"""Grades completions against reference answers.

`answer` finds the answer in a completion. `grading` then asks the following in turn: `latex` writes mathematical signs
in one spelling, `multiple_choice` reads the letter of a choice, `commitment` finds what an answer in words commits to,
`parsing` parses it (with `rational` for numbers and `units` for units), and `equality` compares it with the reference
answer. What is still open goes through `pool` to processes of `worker`, where `algebra` compares formulas and asks
math-verify.
"""
