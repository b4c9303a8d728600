"""A Hub token is used and never written."""

import pytest
import torch
from huggingface_hub import get_token

from leash_trl.hub_token import without_token


LOOKS_LIKE_ONE = "hf_" + "a1B2" * 8


def test_arguments_saved_beside_the_model_hold_no_token_which_huggingface_hub_has(make_args, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "another")
    args = make_args(hub_token=LOOKS_LIKE_ONE)
    assert get_token() == LOOKS_LIKE_ONE
    file = tmp_path / "training_args.bin"
    torch.save(args, file)
    assert LOOKS_LIKE_ONE.encode() not in file.read_bytes()
    assert LOOKS_LIKE_ONE not in str(args) + repr(args) + args.to_json_string()


def test_a_token_among_the_arguments_of_the_model_is_refused(make_args):
    with pytest.raises(ValueError, match="model_init_kwargs") as caught:
        make_args(model_init_kwargs={"token": LOOKS_LIKE_ONE})
    assert LOOKS_LIKE_ONE not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "token"),
    [
        (LOOKS_LIKE_ONE, None),
        ("hf_jwt_eyJh.eyJz-dWI_x.SflK", ""),
        ("odd", " odd\n"),
        ("<HUB_TOKEN>", " "),
    ],
)
def test_tokens_leave_messages_and_the_one_in_use_whatever_it_looks_like(text, token):
    assert without_token(f"Bearer {text}\\n is illegal", token) == "Bearer <HUB_TOKEN>\\n is illegal"


def test_a_token_set_after_the_trainer_exists_is_not_saved(make_trainer, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "another")
    trainer = make_trainer()
    trainer.args.hub_token = LOOKS_LIKE_ONE
    trainer.save_model(tmp_path)
    assert LOOKS_LIKE_ONE.encode() not in (tmp_path / "training_args.bin").read_bytes()
