"""Reads the machine for a benchmark: its device, clock, peak memory, and rate of multiplying matrices."""

import platform
import resource
import statistics
import sys
import time
from pathlib import Path

import torch


def benchmark_device() -> torch.device:
    """The first CUDA device, or else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def device_name(device: torch.device) -> str:
    """The name of the device, on a CPU with the number of torch's threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads()
    return f"{names[0] if names else platform.machine()} CPU, {threads} {'thread' if threads == 1 else 'threads'}"


def now(device: torch.device) -> float:
    """Seconds on a clock, after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class PeakMemory:
    """The peak of memory since this object was made.

    On CUDA it is the memory of all tensors, weights included (`torch.cuda.max_memory_allocated`). On a CPU it is the
    rise of the process's greatest resident size (`ru_maxrss`); Linux starts it at the size of the parent process,
    which therefore must be small.

    Args:
        device (`torch.device`):
            Where tensors live.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._level = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            self._level = self._highest()

    @property
    def kind(self) -> str:
        """The kind of memory measured."""
        return "torch.cuda.max_memory_allocated" if self._device.type == "cuda" else "rise of ru_maxrss"

    def _highest(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def read_gib(self) -> float:
        """The peak so far, in GiB."""
        return (self._highest() - self._level) / 2**30


def matrix_rate(device: torch.device, dtype: str) -> float:
    """FLOP/s of multiplying two large square matrices: the median of ten products after two."""
    size = 8192 if device.type == "cuda" else 1024
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    seconds = []
    for _ in range(12):
        start = now(device)
        left @ right
        seconds.append(now(device) - start)
    return 2 * size**3 / statistics.median(seconds[2:])
