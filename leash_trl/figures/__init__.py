"""Draws figures of training runs, evaluated runs and comparisons, and builds a report page that contains them."""
