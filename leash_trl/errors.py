"""Errors that a user can resolve."""


class TrainingError(ValueError):
    """Raised if a training or an evaluation cannot start or continue as requested. The message says why, and what the
    user can do."""
