"""Keeps the user's Hub token out of saved files, logs and error messages."""

import re
from typing import Any


TOKEN_PATTERN = re.compile(r"hf_[\w.-]{16,}")
PLACEHOLDER = "<HUB_TOKEN>"


class HubToken(str):
    """A string with the token's value, which is pickled as `None` and whose `repr` is a placeholder.

    transformers masks tokens in `to_dict` and `str`. But `training_args.bin` is a pickle of the training arguments,
    and every dataclass that inherits from `TrainingArguments` generates a new `repr`, which shows all fields.

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
    """Returns the text with `token`, and every string in the format of a Hub token, replaced by a placeholder.

    Error messages of HTTP libraries quote malformed headers, including `Authorization`.

    Example:
        >>> without_token("Illegal header value b'Bearer secret'", "secret")
        "Illegal header value b'Bearer <HUB_TOKEN>'"
    """
    if token and token.strip():
        text = text.replace(token.strip(), PLACEHOLDER)
    return TOKEN_PATTERN.sub(PLACEHOLDER, text)
