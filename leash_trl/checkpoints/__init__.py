"""A checkpoint's folder on disk: the state of length control, and whether all files are complete."""
