"""Pure arithmetic behind `leash plan`: what a training step holds in a GPU's memory, and how long it takes.

Nothing here loads a model or looks at a device; every formula is in one place with its source.
"""
