"""Errors that a user can resolve."""


class TrainingError(ValueError):
    """Raised if training, or an evaluation, cannot start or continue as requested; the message says why and what to
    do."""
