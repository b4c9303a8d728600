"""`LeashGRPOTrainer` and `LengthControlledReward`, with the configuration, checks and callbacks around their steps."""
