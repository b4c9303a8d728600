"""The arithmetic of `leash plan`: the memory of one GPU in a training step. Pure, looks at no device."""
