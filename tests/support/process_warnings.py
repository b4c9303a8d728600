"""What the main process warns of."""

import warnings

import pytest
from transformers import TrainingArguments


def warnings_of(function, *args):
    """Calls a function in two processes; returns the warnings of the main one, if the other has none."""
    lines = []
    for process in (1, 0):
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            patch.setattr(TrainingArguments, "process_index", process)
            assert lines == []
            function(*args)
        lines = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert not any("\n" in line for line in lines)
    return lines
