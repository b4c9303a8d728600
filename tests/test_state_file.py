"""`leash_state.json`: what is damaged in it is one line with the entry, its value and the remedy."""

import json

import pytest

from leash_trl.checkpoints.state_file import STATE_FILE, read_state, restore_method
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.leash_predictive import LeashPredictive


def written(folder, **entries):
    (folder / STATE_FILE).write_text(json.dumps({"method": "leash", "controller": {"lambda": 0.1}, **entries}))
    return folder


@pytest.mark.parametrize(
    "entries",
    [
        {"counters": 3},
        {"settings": []},
        {"batching": None},
        {"files": "all"},
        {"global_step": "a"},
        {"micro_step": -7},
        {"micro_step": True},
        {"target_length": "z"},
    ],
)
def test_a_damaged_entry_is_named_with_its_value_and_the_remedy(entries, tmp_path):
    (name, value), *_ = entries.items()
    with pytest.raises(ValueError, match="cannot resume from") as raised:
        read_state(written(tmp_path, **entries))
    assert f"{STATE_FILE} holds {name}={value!r}, which is not" in str(raised.value)
    assert "pass the folder as the model instead of resuming" in str(raised.value)


def test_entries_that_older_releases_did_not_write_may_be_missing(tmp_path):
    assert read_state(written(tmp_path))["controller"] == {"lambda": 0.1}
    whole = {"counters": {}, "settings": {}, "batching": {}, "files": [], "global_step": 0, "micro_step": 5}
    assert read_state(written(tmp_path, **whole, target_length=None))["micro_step"] == 5


def test_a_missing_value_of_the_method_is_called_missing(tmp_path):
    state = LeashPredictive().state_dict()
    del state["used"]
    with pytest.raises(
        ValueError, match=r"the saved state has no used, which this release needs.*start a run of its own"
    ):
        restore_method(LeashPredictive(), {"controller": state}, tmp_path)


def test_a_damaged_value_of_the_method_has_a_remedy(tmp_path):
    with pytest.raises(
        ValueError, match=r"lambda='x', which is not.*mend leash_state.json, or start a run of its own"
    ):
        restore_method(Leash(), {"controller": {"lambda": "x"}}, tmp_path)
