"""Decoding strategies: what an engine is asked, step by step, for one completion."""
