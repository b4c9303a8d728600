"""Which completions share a micro-batch: TRL's gradients, computed faster. Knows no length control."""
