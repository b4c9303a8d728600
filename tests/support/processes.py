"""Forks of the test's own process: what it has imported they do not import again, which takes longest."""

import multiprocessing
import os
import socket
import traceback
from multiprocessing.connection import wait

import torch
from accelerate.state import AcceleratorState, GradientState


FORK = multiprocessing.get_context("fork")
TIMEOUT = 300  # seconds


def exit_code(work):
    """The exit code of a process that does the work."""
    process = FORK.Process(target=work)
    process.start()
    return _end(process, TIMEOUT)


def _end(process, timeout):
    process.join(timeout)
    process.kill()
    process.join()
    return process.exitcode


def in_two_processes(work, folder):
    """What the work returns in each of two processes that train together over gloo, as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [folder / f"rank{rank}.pt" for rank in range(2)]
    ranks = [FORK.Process(target=_as_rank, args=(work, rank, port, file)) for rank, file in enumerate(files)]
    for process in ranks:
        process.start()
    wait([process.sentinel for process in ranks], TIMEOUT)
    # both leave at once, but one whose partner has died would wait for ever
    assert [_end(process, 10) for process in ranks] == [0, 0]
    return [torch.load(file) for file in files]


def _as_rank(work, rank, port, file):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    code = 1
    try:
        torch.save(work(), file)
        torch.distributed.barrier()  # the first to leave would pull the connection from under the other
        code = 0
    except BaseException:
        traceback.print_exc()
    # gloo's threads hold tensors of Python's and can abort a process that winds down the interpreter:
    # https://github.com/pytorch/pytorch/pull/179291
    os._exit(code)
