"""Everything about the Hub: recipe and model card, commits, downloads of checkpoints; also the merging of adapters."""
