"""Keeps the user's Hub token out of files, logs and error messages."""

import re
from typing import Any


TOKEN_PATTERN = re.compile(r"hf_[\w.-]{16,}")
PLACEHOLDER = "<HUB_TOKEN>"


class HubToken(str):
    """A token that stays itself in memory, but is `None` in a pickle and a placeholder in a `repr`.

    transformers masks tokens in `to_dict` and `str`, but `training_args.bin` is a pickle of the training arguments,
    and their `repr`, which every dataclass below transformers' makes anew, shows all fields.

    Example:
        >>> import pickle
        >>> token = HubToken("secret")
        >>> token == "secret", pickle.loads(pickle.dumps({"hub_token": token}))
        (True, {'hub_token': None})
    """

    def __reduce__(self) -> Any:
        return type(None), ()

    def __repr__(self) -> str:
        return PLACEHOLDER

    def __copy__(self) -> "HubToken":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "HubToken":
        return self


def without_token(text: str, token: str | None = None) -> str:
    """The text with the token, and everything that looks like one, replaced.

    HTTP libraries quote a malformed header, `Authorization` included, in their errors.

    Example:
        >>> without_token("Illegal header value b'Bearer secret'", "secret")
        "Illegal header value b'Bearer <HUB_TOKEN>'"
    """
    if token and token.strip():
        text = text.replace(token.strip(), PLACEHOLDER)
    return TOKEN_PATTERN.sub(PLACEHOLDER, text)
