"""Evaluates models: samples and grades completions, and computes accuracy and tokens with intervals.

`frame` reads a run's folder into DataFrames of completions and of metrics, whose intervals `intervals` computes.
`tables` builds the tables of `leash eval` and model cards. `filter` selects the problems that are worth training on.
The other modules sample and grade completions.
"""
