"""Draws figures of training runs, evaluated runs and comparisons, and builds the page with all of them."""
