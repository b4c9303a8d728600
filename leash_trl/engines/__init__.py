"""Engines: prompts in, sampled completions out."""
