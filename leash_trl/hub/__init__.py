"""What goes with a model to the Hub and back: recipe, model card, commits, downloads; and the merging of adapters."""
