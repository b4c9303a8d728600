"""Estimates the memory of one GPU in a training step for `leash plan`, by arithmetic alone, without a device."""
