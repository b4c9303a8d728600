"""Decoding strategies: plain sampling, budget forcing and early exit, each as a series of requests to an engine."""
