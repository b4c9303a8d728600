"""A Hub token is used and never written."""

import copy
import pickle

import pytest

from leash_trl.hub.hub_token import HubToken, check_no_token, tokens_in, without_token


LOOKS_LIKE_ONE = "hf_" + "a1B2" * 8


def test_the_token_is_itself_in_memory_and_in_headers():
    token = HubToken("secret")
    assert f"Bearer {token}" == "Bearer secret"
    assert copy.deepcopy({"t": token})["t"] == copy.copy(token) == "secret"


def test_the_token_is_nothing_in_a_pickle_and_a_placeholder_in_print():
    assert pickle.loads(pickle.dumps(HubToken("secret"))) is None
    assert "secret" not in repr({"hub_token": HubToken("secret")})


def test_arguments_saved_beside_the_model_hold_no_token(make_args, tmp_path):
    import torch

    args = make_args(hub_token=LOOKS_LIKE_ONE)
    assert args.hub_token == LOOKS_LIKE_ONE
    torch.save(args, tmp_path / "training_args.bin")
    assert LOOKS_LIKE_ONE.encode() not in (tmp_path / "training_args.bin").read_bytes()
    loaded = torch.load(tmp_path / "training_args.bin", weights_only=False)
    assert (loaded.hub_token, loaded.target_length) == (None, 12)
    assert LOOKS_LIKE_ONE not in str(args) + repr(args) + args.to_json_string()


def test_a_token_that_is_set_later_stays_out_too(make_args):
    args = make_args()
    args.set_push_to_hub("me/x", token=LOOKS_LIKE_ONE)
    assert args.hub_token == LOOKS_LIKE_ONE
    assert pickle.loads(pickle.dumps(args)).hub_token is None


def test_a_token_among_the_arguments_of_the_model_is_refused(make_args):
    with pytest.raises(ValueError, match=r"model_init_kwargs holds a secret under token.*HF_TOKEN") as caught:
        make_args(model_init_kwargs={"token": LOOKS_LIKE_ONE})
    assert LOOKS_LIKE_ONE not in str(caught.value)


def test_what_looks_like_a_token_leaves_messages():
    assert without_token(f"Bearer {LOOKS_LIKE_ONE}\\n is illegal") == "Bearer <HUB_TOKEN>\\n is illegal"
    assert without_token("Bearer odd", " odd\n") == "Bearer <HUB_TOKEN>"
    assert without_token("nothing here", "") == "nothing here"
    assert tokens_in({"a": 1, "b": LOOKS_LIKE_ONE}) == ["b"]


def test_files_are_searched_for_the_token(tmp_path):
    (tmp_path / "x").write_bytes(b"..secret..")
    check_no_token({"x": tmp_path / "x", "y": b"fine"}, None)
    check_no_token({"y": b"fine"}, "secret")
    for files in ({"x": tmp_path / "x"}, {"x": b"a secret"}):
        with pytest.raises(ValueError, match="x holds your Hub token"):
            check_no_token(files, "secret\n")
