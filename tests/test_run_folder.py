"""What a folder is: a model, an adapter, a run that has not ended, a whole checkpoint."""

import json

import pytest

from leash_trl.model_paths import complete_model_path, model_path
from leash_trl.run_folder import complete_checkpoints, length_control_state, read_trainer_state, target_spans


ENTRY = {"method": "leash", "state": {"lam": 0.25}}
STATE = {"global_step": 4, "stateful_callbacks": {"LengthControl": ENTRY}}


@pytest.fixture
def run(tmp_path):
    """A run that was killed while it saved checkpoint-12."""
    for name in (2, 10, 12, 14, "best"):
        (tmp_path / f"checkpoint-{name}").mkdir()
    for step, text in {2: json.dumps(STATE), 10: json.dumps(STATE), 12: '{"global_step": 12, "log_hi'}.items():
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    return tmp_path


def test_whole_checkpoints_are_those_with_a_trainer_state_newest_first_by_number(run):
    assert [path.name for path in complete_checkpoints(run)] == ["checkpoint-10", "checkpoint-2"]
    assert list(complete_checkpoints(run / "nowhere")) == []


def test_the_state_of_a_run_and_of_its_length_control_is_read_or_absent(run):
    assert read_trainer_state(run / "checkpoint-2") == STATE
    assert length_control_state(run / "checkpoint-2") == ENTRY
    for name in ("checkpoint-12", "checkpoint-14"):
        assert read_trainer_state(run / name) is length_control_state(run / name) is None
    (run / "checkpoint-14" / "trainer_state.json").write_text('{"global_step": 14}')
    assert length_control_state(run / "checkpoint-14") is None


def test_a_log_that_has_no_row_yet_has_no_targets():
    assert target_spans([]) == []


def test_an_adapter_alone_is_a_checkpoint_but_no_complete_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    assert model_path(str(tmp_path)) == str(tmp_path)
    with pytest.raises(ValueError, match=f"leash merge {tmp_path}"):
        complete_model_path(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert complete_model_path(str(tmp_path)) == str(tmp_path)


def test_a_name_of_the_hub_beside_a_folder_of_its_owner_says_why_it_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen").mkdir()
    with pytest.raises(ValueError, match=r"\A.*Qwen/Qwen3-0.6B.*'Qwen' is a folder.*\Z"):
        model_path("Qwen/Qwen3-0.6B")
