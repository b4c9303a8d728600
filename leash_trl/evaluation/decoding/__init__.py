"""Decoding strategies: how an engine is asked until a completion is whole."""
