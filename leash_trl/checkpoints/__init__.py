"""What lies in a checkpoint's folder: the state of length control, and whether the files are complete."""
