"""Evaluation: sampled completions in, accuracy and tokens with intervals out.

Of `leash eval` and `leash filter`: `sampling_run` samples and grades by a strategy of `decoding`, `samples` is what
lies on disk, `resuming` goes on where a run was stopped. `results` makes rows of it, with the `metrics` (what each
number is) and `intervals` (how its interval is made), `changes` the differences from a baseline, `export` and
`hub_results` the files, `pass_rate_filter` a training set.

Of the gym: `evaluate` measures a model in memory, `comparison` and its table are those of `leash compare`.
"""
