"""Checkpoints on the Hub: recipe, model card, commits. What a run pushes and how; not how it trains."""
