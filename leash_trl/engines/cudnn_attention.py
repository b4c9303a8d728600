"""cuDNN's attention, which torch prefers on data-center GPUs and which is faulty there in some versions."""

import logging
import sys

import torch


logger = logging.getLogger(__name__)

# By major compute capability, as torch.backends.cudnn.version() gives versions: torch prefers cuDNN's attention from
# 9.15.1 on, which its wheels hold since torch 2.11. No release that mends the fault of Blackwell is known.
FAULTY_VERSIONS = {9: range(91501, 92600), 10: range(91900, sys.maxsize)}
REMEDY = "torch.backends.cuda.enable_cudnn_sdp(False)"


def is_cudnn_attention_faulty() -> bool:
    """Whether torch may choose cuDNN's attention here, in a version with a fault.

    On Hopper, gradients of the queries are NaN where a mask is given, the number of keys is 64 modulo 128, and a
    query's logsumexp is below -88.7; a position of left padding, which sees no key, is such a query. On Blackwell,
    decoding gives wrong tokens for models with fewer than 8 heads of keys and values.

    Source: pytorch issues [#196678](https://github.com/pytorch/pytorch/issues/196678) and
    [#193893](https://github.com/pytorch/pytorch/issues/193893).
    """
    if not torch.cuda.is_available() or not torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]
        return False
    major, _ = torch.cuda.get_device_capability()
    return _cudnn_version() in FAULTY_VERSIONS.get(major, ())


def _cudnn_version() -> int:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version or 0


def avoid_faulty_cudnn_attention() -> None:
    """Switches cuDNN's attention off for this process where it is faulty, so that torch chooses another one."""
    if is_cudnn_attention_faulty():
        torch.backends.cuda.enable_cudnn_sdp(False)
        logger.warning("the attention of cuDNN %s is faulty on this GPU: called %s", _cudnn_version(), REMEDY)
