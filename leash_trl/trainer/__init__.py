"""`LeashGRPOTrainer`, its configuration, and the checks, callbacks and checkpoints around its steps."""
