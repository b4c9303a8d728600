"""The methods of length control: they turn rollouts into shaped rewards and update their own state."""
