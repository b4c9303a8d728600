"""Turns off cuDNN's attention, which torch prefers on data-center GPUs, in versions with a fault."""

import logging
import sys

import torch


logger = logging.getLogger(__name__)

# By major compute capability, in the format of torch.backends.cudnn.version(). Torch prefers cuDNN's attention from
# version 9.15.1 on, which its wheels include since torch 2.11. For Blackwell, no release without the fault is known.
FAULTY_VERSIONS = {
    9: range(91501, 92600),  # Hopper
    10: range(91900, sys.maxsize),  # Blackwell
}
REMEDY = "torch.backends.cuda.enable_cudnn_sdp(False)"


def is_cudnn_attention_faulty() -> bool:
    """Returns whether torch may use cuDNN's attention on this GPU in a faulty version.

    On Hopper, gradients of the queries are NaN if there is a mask, the number of keys is 64 modulo 128, and the
    logsumexp of a query is below -88.7, which is the case for left padding, whose queries see no key. On Blackwell,
    decoding returns wrong tokens for models with fewer than 8 key-value heads.

    Source: pytorch issues [#196678](https://github.com/pytorch/pytorch/issues/196678) and
    [#193893](https://github.com/pytorch/pytorch/issues/193893).
    """
    if not torch.cuda.is_available():
        return False
    if not torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]
        return False
    # The compute capability is a pair such as (9, 0), whose first number is that of the architecture.
    major, _ = torch.cuda.get_device_capability()
    faulty_versions = FAULTY_VERSIONS.get(major, ())
    return torch.backends.cudnn.version() in faulty_versions  # type: ignore[no-untyped-call]


def avoid_faulty_cudnn_attention() -> None:
    """Turns cuDNN's attention off in this process if it is faulty, so that torch uses another implementation."""
    if is_cudnn_attention_faulty():
        torch.backends.cuda.enable_cudnn_sdp(False)
        version = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        logger.warning("the attention of cuDNN %s is faulty on this GPU, so %s was called", version, REMEDY)
