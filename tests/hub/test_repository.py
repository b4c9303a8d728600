"""A repository on the Hub: the newest is read, and what cannot be written or read is one line without the token."""

from pathlib import Path

import pytest
from saved_run import save_checkpoint

from leash_trl.hub import repository
from leash_trl.hub.repository import HubRepository, errors_to_one_line, local_checkpoint


@pytest.fixture
def hub(hub, tmp_path):
    """A Hub with one repository, whose root is a model and whose `last-checkpoint` resumes."""
    folder = save_checkpoint(tmp_path, 1)
    HubRepository("me/x").create()
    files = repository.model_files(folder) | repository.checkpoint_files(folder, "last-checkpoint")
    HubRepository("me/x").commit(files, "push")
    return hub


@pytest.mark.parametrize("path", ["", "/last-checkpoint"])
def test_a_place_on_the_hub_becomes_a_folder(hub, path):
    folder = local_checkpoint(f"hf://me/x{path}")
    assert local_checkpoint(folder) == folder
    names = {name.relative_to(folder).as_posix() for name in Path(folder).rglob("*") if name.is_file()}
    assert {"model.safetensors", "trainer_state.json", "leash_recipe.yaml"} <= names
    assert ("optimizer.pt" in names) == bool(path)
    assert not [name for name in names if name.startswith("last-checkpoint")]
    # an older download is not taken for the newest commit
    hub.fail("/api/models/me/x", 503, times=99)
    with pytest.raises(ValueError, match=f"hf://me/x{path}"):
        local_checkpoint(f"hf://me/x{path}")


@pytest.mark.parametrize("place", ["me", "me/x; touch", "me/nothing", "me/x@gone"])
def test_places_on_the_hub_that_hold_no_checkpoint_are_one_line(hub, place):
    with pytest.raises(ValueError, match=f"hf://{place}") as caught:
        local_checkpoint(f"hf://{place}")
    assert "\n" not in str(caught.value)


def test_the_token_of_the_environment_leaves_messages_whatever_it_looks_like(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "token-of-our-own-hub")
    with pytest.raises(ValueError, match="cannot write") as error, errors_to_one_line("cannot write"):
        raise RuntimeError("Illegal header value b'Bearer token-of-our-own-hub'")
    assert "token-of-our-own-hub" not in str(error.value)


@pytest.mark.parametrize("token", ["", "hf_" + "b" * 30 + "\n", "hf_" + "b" * 30])
def test_without_write_access_the_repository_is_named_and_the_token_is_not(hub, token, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(ValueError, match="me/y") as caught:
        HubRepository("me/y", token).create()
    assert "\n" not in str(caught.value)
    assert "bbb" not in str(caught.value)
