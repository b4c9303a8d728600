"""Keeps the user's Hub token out of files, logs and error messages."""

import re
from pathlib import Path
from typing import Any


TOKEN_PATTERN = re.compile(r"hf_[A-Za-z0-9]{16,}")
PLACEHOLDER = "<HUB_TOKEN>"
LOOKED_INTO_BYTES = 5 * 2**20  # only small files are searched for a token, not weights


class HubToken(str):
    """A token that stays itself in memory, but is `None` in a pickle and a placeholder in a `repr`.

    `training_args.bin`, which transformers writes beside every model, is a pickle of the training arguments.

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


def tokens_in(mapping: Any) -> list[str]:
    """Keys of a mapping whose values hold a Hub token; a text counts as one value, `None` as no values.

    Example:
        >>> tokens_in({"token": "hf_" + "x" * 20, "revision": "main"})
        ['token']
    """
    values = mapping if isinstance(mapping, dict) else {"its text": mapping}
    return [str(key) for key, value in values.items() if isinstance(value, str) and TOKEN_PATTERN.search(value)]


def check_no_token(files: dict[str, Path | bytes], token: str | None) -> None:
    """Raises `ValueError` if a file that is about to be pushed holds the token.

    Args:
        files (`dict[str, Path | bytes]`):
            Content, or the local file, by path in the repository.
        token (`str`, *optional*):
            The token for the push.
    """
    if not token or not token.strip():
        return
    for name, content in files.items():
        if isinstance(content, Path):
            content = content.read_bytes() if content.stat().st_size <= LOOKED_INTO_BYTES else b""
        if token.strip().encode() in content:
            raise ValueError(
                f"{name} holds your Hub token and is not pushed; delete the file or take the token out, and give it "
                "by HF_TOKEN or `hf auth login` instead"
            )
