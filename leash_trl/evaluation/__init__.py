"""Evaluates models: samples and grades completions, and computes accuracy and tokens with intervals.

For `leash eval` and `leash filter`, `sampling_run` samples and grades by a strategy of `decoding`, `samples` reads and
writes the files, `resuming` continues a stopped run. `results` computes rows from the samples with `metrics` and
`intervals`, `changes` the differences from a baseline. `export` and `hub_results` write the files, `pass_rate_filter`
a training set.

For the gym, `evaluate` measures a model in memory; `comparison` and `comparison_table` serve `leash compare`.
"""
