"""Grades completions against reference answers.

`answer` finds the answer in a completion. `grading` then uses the other modules in turn: `latex` writes mathematical
signs in one spelling, `multiple_choice` reads the letter of a choice, `words` compares the words beside the values,
`commitment` finds the number, list or words to which an answer commits, `parsing` parses this text (with `rational`
for numbers and `units` for units), and `equality` compares the parsed answer with the reference answer. `pool` sends
undecided comparisons to processes of `worker`, where `algebra` compares formulas and calls math-verify.
"""
