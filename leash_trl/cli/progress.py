"""The progress bar of a training run: the four numbers that matter instead of a dictionary of sixty."""

from transformers import ProgressCallback


SHOWN = {
    "lambda": "leash/lambda",
    "length": "leash/mean_length",
    "accuracy": "leash/accuracy",
    "satisfied": "leash/satisfaction_rate",
}


class LeashProgressCallback(ProgressCallback):
    """transformers' progress bar, with lambda, mean length, accuracy and satisfaction rate beside it."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Shows the numbers beside the bar instead of printing the dictionary."""
        if not state.is_world_process_zero or self.training_bar is None:
            return
        values = {label: logs[key] for label, key in SHOWN.items() if logs.get(key) is not None}
        if values:
            self.training_bar.set_postfix({label: f"{value:.4g}" for label, value in values.items()})
