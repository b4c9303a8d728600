"""TRL's gradients, computed faster: decides which completions share a micro-batch. Knows no length control."""
