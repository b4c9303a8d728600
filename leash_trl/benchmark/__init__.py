"""Repeatable measurements of the training step and of rollout engines; `leash bench` runs them."""
