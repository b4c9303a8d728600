"""Writes model cards, pushes models and checkpoints to the Hub, and downloads checkpoints from the Hub."""
