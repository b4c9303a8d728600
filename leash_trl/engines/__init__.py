"""Engines that sample completions for prompts: one interface for vLLM and transformers."""
