"""`LeashGRPOTrainer`, its configuration, and what happens around its steps."""
