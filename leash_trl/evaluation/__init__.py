"""Evaluates models: samples and grades completions, and computes accuracy and tokens with intervals.

`frame` reads a run's folder into DataFrames of completions and of metrics, with `intervals`. `tables` builds every
table: of `leash eval`, of `leash compare`, of cards. `filter` makes a training set of the problems worth it. The other
modules sample and grade.
"""
