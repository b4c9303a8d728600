"""Identifies the question of a data set row."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from datasets.fingerprint import Hasher

from leash_trl.completions.prompts import template_arguments


def question_hash(row: Mapping[str, Any]) -> int:
    """Returns a number in [0, 2**63) that identifies a row's prompt, images and arguments of the chat template, and is
    the same in every process and run.

    For a row without a prompt, the number identifies the row.
    """
    prompt = row.get("prompt", row)
    # TRL reads a list from the column `images`, or a single image from the column `image`.
    images = row.get("images", row.get("image"))
    if images is not None and not isinstance(images, list):
        images = [images]
    # The same prompt with other images, or with other arguments of the chat template, is another question.
    question = [prompt, images] if images else prompt
    arguments = template_arguments(row)
    if arguments:
        question = [question, arguments]
    # JSON has no images; `Hasher.hash` replaces each of them by a digest of its pixels.
    text = json.dumps(question, sort_keys=True, default=Hasher.hash)
    # Python's own `hash` of a text would differ from process to process.
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    # The lowest of the 64 bits is dropped, so that the number fits into a signed 64-bit integer of torch.
    return int.from_bytes(digest, "big") >> 1
