"""Evaluation: sampled completions in, accuracy and tokens with intervals out."""
