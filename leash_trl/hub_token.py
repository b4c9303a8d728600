"""Keeps the user's Hub token out of saved recipes and error messages."""

import re


TOKEN_PATTERN = re.compile(r"hf_[\w.-]{16,}")
PLACEHOLDER = "<HUB_TOKEN>"


def without_token(text: str, token: str | None = None) -> str:
    """Returns the text with `token`, and every string in the format of a Hub token, replaced by a placeholder.

    Error messages of HTTP libraries quote malformed headers, including `Authorization`.

    Example:
        >>> without_token("Illegal header value b'Bearer secret'", "secret")
        "Illegal header value b'Bearer <HUB_TOKEN>'"
    """
    # A token from a file or a variable may end in a line break, which the message that quotes it does not have.
    if token and token.strip():
        text = text.replace(token.strip(), PLACEHOLDER)
    return TOKEN_PATTERN.sub(PLACEHOLDER, text)
