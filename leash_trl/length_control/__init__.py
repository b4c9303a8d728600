"""Length control: rollouts in, shaped rewards out, and how the controller's state moves. Pure; no trainer in sight."""
