"""Pure arithmetic behind `leash plan`: what a training step holds in a GPU's memory. Looks at no device."""
