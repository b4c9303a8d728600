"""DAPO's dynamic sampling: groups without signal give way to fresh prompts, for a bounded number of rounds.

What each round does is decided from the rewards of all processes, so every process decides alike.
"""

from collections.abc import Mapping, Sized
from typing import Any

import torch


PADDED_LEFT = ("prompt_ids", "prompt_mask")
PADDED_WITH_ONE = ("tool_mask",)
REPLACEABLE = {
    *PADDED_LEFT,
    *PADDED_WITH_ONE,
    "completion_ids",
    "completion_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
}


class PromptStream:
    """Rows of a data set in seeded random order, pass after pass; the same on every process.

    Args:
        dataset (`Dataset`):
            Data set with a length and rows by index.
        seed (`int`):
            Seed of the order.
    """

    def __init__(self, dataset: Any, seed: int):
        self._dataset = dataset
        self._seed = seed
        self._order: list[int] = []
        self._pass = -1
        self.num_drawn = 0

    def check(self) -> None:
        """Raises `ValueError` if the data set is a stream, which has no rows by index."""
        if not isinstance(self._dataset, Sized):
            raise ValueError(
                "dynamic_sampling_rounds and monitor rollouts draw training prompts at random, which a streamed data "
                "set does not allow; load it with dataset_streaming: false"
            )

    def draw(self, count: int) -> list[dict]:
        """The next `count` rows."""
        rows = []
        for position in range(self.num_drawn, self.num_drawn + count):
            number, index = divmod(position, len(self._dataset))
            if number != self._pass:
                generator = torch.Generator().manual_seed(self._seed + number)
                self._order = torch.randperm(len(self._dataset), generator=generator).tolist()
                self._pass = number
            rows.append(self._dataset[self._order[index]])
        self.num_drawn += count
        return rows


def groups_per_process(has_signal: torch.Tensor, num_processes: int) -> int:
    """How many fresh groups every process has to sample, so that the one with most dead groups can replace them all.

    Args:
        has_signal (`torch.Tensor` of shape `(P,)`):
            Whether each group has signal, the groups of a process side by side.
        num_processes (`int`):
            Number of processes.

    Example:
        >>> groups_per_process(torch.tensor([True, False, False, False]), num_processes=2)
        2
    """
    return int((~has_signal).view(num_processes, -1).sum(dim=1).max())


def replacements(has_signal: torch.Tensor, is_fresh_alive: torch.Tensor, num_processes: int) -> list[int]:
    """Where each group comes from: below P an old group, from P on a fresh one of the same process.

    Args:
        has_signal (`torch.Tensor` of shape `(P,)`):
            Whether each old group has signal, the groups of a process side by side.
        is_fresh_alive (`torch.Tensor` of shape `(F,)`):
            The same for the fresh groups.
        num_processes (`int`):
            Number of processes.

    Example:
        >>> replacements(torch.tensor([True, False, False]), torch.tensor([False, True]), num_processes=1)
        [0, 4, 2]
    """
    sources = list(range(len(has_signal)))
    share, fresh_share = len(has_signal) // num_processes, len(is_fresh_alive) // num_processes
    for process in range(num_processes):
        dead = [g for g in range(process * share, (process + 1) * share) if not has_signal[g]]
        alive = [f for f in range(process * fresh_share, (process + 1) * fresh_share) if is_fresh_alive[f]]
        for group, fresh in zip(dead, alive, strict=False):
            sources[group] = len(has_signal) + fresh
    return sources


def group_rows(groups: list[int], num_generations: int) -> torch.Tensor:
    """`torch.Tensor` of shape `(len(groups) * G,)`: The rows of whole groups."""
    return torch.tensor([group * num_generations + i for group in groups for i in range(num_generations)])


def local_rows(
    sources: list[int], num_groups: int, fresh_share: int, process: int, num_processes: int, num_generations: int
) -> torch.Tensor:
    """Rows of one process's own batch followed by its own fresh batch, for the groups that are this process's.

    Args:
        sources (`list[int]`):
            From [`replacements`].
        num_groups (`int`):
            P, groups of all processes.
        fresh_share (`int`):
            Fresh groups that each process has sampled.
        process (`int`), num_processes (`int`):
            Which process of how many.
        num_generations (`int`):
            G, completions per prompt.

    Example:
        >>> local_rows([0, 5, 2, 3], 4, 1, process=1, num_processes=2, num_generations=1).tolist()
        [0, 1]
        >>> local_rows([0, 4, 2, 3], 4, 1, process=0, num_processes=2, num_generations=1).tolist()
        [0, 2]
    """
    share = num_groups // num_processes
    own = sources[process * share : (process + 1) * share]
    groups = [
        source - process * share if source < num_groups else source - num_groups - process * fresh_share + share
        for source in own
    ]
    return group_rows(groups, num_generations)


def merged_batch(old: Mapping, fresh: Mapping, rows: torch.Tensor, pad_token_id: int) -> dict:
    """One process's padded training batch from rows of `old` followed by `fresh`.

    Args:
        old (`Mapping`), fresh (`Mapping`):
            What TRL's `_generate_and_score_completions` returns: tensors of shape `(B,)` or `(B, T)`.
        rows (`torch.Tensor` of shape `(B,)`):
            Rows to keep.
        pad_token_id (`int`):
            Fills ids; masks and log-probabilities are filled as TRL fills them.

    Raises:
        `ValueError`: If the batch holds something that cannot be replaced row by row, such as images.
    """
    merged = dict(old)  # the order stays: TRL takes the batch size from the first entry
    for key in old:
        if key == "num_items_in_batch":
            continue
        if key not in REPLACEABLE:
            raise ValueError(f"dynamic_sampling_rounds cannot replace {key!r} (images?); set it to 0")
        fill = pad_token_id if key.endswith("_ids") else float(key in PADDED_WITH_ONE)
        width = max(old[key].shape[-1], fresh[key].shape[-1])
        parts = [old[key], fresh[key]]
        if old[key].ndim > 1:
            parts = [_widened(part, width, fill, on_the_left=key in PADDED_LEFT) for part in parts]
        merged[key] = torch.cat(parts)[rows.to(old[key].device)]
    return merged


def _widened(values: torch.Tensor, width: int, fill: float, on_the_left: bool) -> torch.Tensor:
    missing = width - values.shape[-1]
    return torch.nn.functional.pad(values, (missing, 0) if on_the_left else (0, missing), value=fill)


def wasted_share(num_generated: int, num_kept: int) -> float:
    """Share of the generated completions that are not trained on."""
    return 1.0 - num_kept / num_generated
