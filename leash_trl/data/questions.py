"""Identifies the question of a data set row."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image


def question_of(row: Mapping[str, Any]) -> int:
    """Returns a number in [0, 2**63) that identifies a row's prompt and images and is the same in every process and
    run.

    For a row without a prompt, it identifies the row.
    """
    prompt, images = row.get("prompt", row), row.get("images", row.get("image"))
    pictures = images if isinstance(images, list) or images is None else [images]
    text = json.dumps([prompt, pictures] if pictures else prompt, sort_keys=True, default=_content)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _content(value: Any) -> Any:
    """Returns a replacement for a value that JSON cannot hold. (The `repr` of an image contains its address in
    memory.)"""
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.getpalette(), _content(value.tobytes())
    if isinstance(value, np.ndarray | torch.Tensor):
        array = np.asarray(value)
        return str(array.dtype), array.shape, _content(array.tobytes())
    return hashlib.blake2b(value).hexdigest() if isinstance(value, bytes) else repr(value)
