"""Analysis: logs in, curves and figures out."""
