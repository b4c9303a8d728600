"""A Hub token is used and never written."""

import copy

import pytest
import torch

from leash_trl.hub_token import HubToken, without_token


LOOKS_LIKE_ONE = "hf_" + "a1B2" * 8


def test_the_token_is_itself_in_memory_and_in_headers():
    token = HubToken("secret")
    assert f"Bearer {token}" == "Bearer secret"
    assert copy.deepcopy({"t": token})["t"] == copy.copy(token) == "secret"


@pytest.mark.parametrize("is_set_later", [False, True])
def test_arguments_saved_beside_the_model_hold_no_token(is_set_later, make_args, tmp_path):
    args = make_args(hub_token=None if is_set_later else LOOKS_LIKE_ONE)
    if is_set_later:
        args.set_push_to_hub("me/x", token=LOOKS_LIKE_ONE)
    assert args.hub_token == LOOKS_LIKE_ONE
    file = tmp_path / "training_args.bin"
    torch.save(args, file)
    assert LOOKS_LIKE_ONE.encode() not in file.read_bytes()
    loaded = torch.load(file, weights_only=False)
    assert loaded.hub_token is None
    assert loaded.target_length == 12
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
