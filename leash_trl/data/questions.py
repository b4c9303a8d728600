"""Identifies the question of a data set row."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from datasets.fingerprint import Hasher

from leash_trl.completions.prompts import template_arguments


def question_of(row: Mapping[str, Any]) -> int:
    """Returns a number in [0, 2**63) that identifies a row's prompt, images and arguments of the chat template, and is
    the same in every process and run.

    For a row without a prompt, it identifies the row.
    """
    prompt = row.get("prompt", row)
    images = row.get("images", row.get("image"))
    if images is not None and not isinstance(images, list):
        images = [images]
    question = [prompt, images] if images else prompt
    arguments = template_arguments(row)
    if arguments:
        question = [question, arguments]
    text = json.dumps(question, sort_keys=True, default=Hasher.hash)  # of images, by their pixels
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    # without the lowest of 64 bits, so that it fits into a signed integer of torch
    return int.from_bytes(digest, "big") >> 1
