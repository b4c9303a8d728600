"""Evaluates models: samples and grades completions, and computes accuracy and tokens with intervals.

`runs` reads a run's folder into DataFrames of completions and of metrics. `metrics` has a function for each metric,
`changes` compares a run with its baseline, and `intervals` computes the intervals of both. `tables` builds the tables
of `leash eval` and model cards. `filter` selects the problems that are worth training on. The other modules sample and
grade completions.
"""
