"""The commands of `leash`, one module each."""
