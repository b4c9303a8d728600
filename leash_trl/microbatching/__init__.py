"""Speeds up TRL's training step by choosing which completions share a micro-batch. Independent of length control."""
