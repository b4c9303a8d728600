"""Estimates memory of one GPU, and updates, tokens and hours of a run, for `leash plan`, by arithmetic alone."""
