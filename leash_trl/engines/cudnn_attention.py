"""cuDNN's attention, which torch prefers on Hopper and whose backward pass is faulty there with some versions."""

import logging

import torch


logger = logging.getLogger(__name__)

# Versions as torch.backends.cudnn.version() gives them: torch prefers cuDNN's attention from the first one on, as its
# wheels do since torch 2.11, and the second one, 9.26, mends the fault.
FIRST_PREFERRED, FIRST_MENDED = 91501, 92600
REMEDY = "torch.backends.cuda.enable_cudnn_sdp(False)"


def is_cudnn_attention_faulty() -> bool:
    """Whether torch may choose cuDNN's attention here, and its gradients of the queries may be NaN.

    They are NaN on Hopper where a mask is given, the number of keys is 64 modulo 128, and a query's logsumexp is below
    -88.7: a position of left padding, which sees no key, is such a query.

    Source: [pytorch #196678](https://github.com/pytorch/pytorch/issues/196678).
    """
    if not torch.cuda.is_available() or not torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]
        return False
    is_hopper = torch.cuda.get_device_capability() == (9, 0)
    return is_hopper and FIRST_PREFERRED <= _cudnn_version() < FIRST_MENDED


def _cudnn_version() -> int:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version or 0


def avoid_faulty_cudnn_attention() -> None:
    """Switches cuDNN's attention off for this process where it is faulty, so that torch chooses another one."""
    if is_cudnn_attention_faulty():
        torch.backends.cuda.enable_cudnn_sdp(False)
        logger.warning("cuDNN %s can give NaN gradients on this GPU: called %s", _cudnn_version(), REMEDY)
