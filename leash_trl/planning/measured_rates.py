"""Tokens per second as `leash bench` measured them, refused where they are another model's or a CPU's."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


ARMS = {"rollout_rate": "vllm", "train_rate": "ours"}
"""What `leash bench` measures each rate with: vLLM, which recipes generate with, and the arm `ours`."""


@dataclass(frozen=True)
class Rate:
    """A rate, and who says so.

    Args:
        value (`float`):
            Completion tokens per second and GPU.
        source (`str`):
            The option or the file that it comes from.
    """

    value: float
    source: str


def read_rates(path: str, num_parameters: int) -> dict[str, Rate]:
    """
    Completion tokens per second and GPU, of those in `ARMS` that a report of `leash bench` holds.

    Args:
        path (`str`):
            A step.json or rollout.json.
        num_parameters (`int`):
            Elements of the model that is planned, which must be those of the model that was measured.

    Returns:
        `dict[str, Rate]`: One or both rates, by the names of `ARMS`.

    Raises:
        `ValueError`: If the file is not one of `leash bench`, has measured neither, or has measured on a CPU or with
            another number of parameters.
        `FileNotFoundError`: If there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"--bench {path}: no such file")
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        results = {name: report["results"][arm] for name, arm in ARMS.items() if arm in report["results"]}
        measured = {name: result for name, result in results.items() if "device" in result}
        rates = {name: _rate(path, name, report["settings"], result) for name, result in measured.items()}
        checks = [(result["device_type"], result["device"], result["num_parameters"]) for result in measured.values()]
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"--bench {path} is not a result of this version's leash bench ({type(error).__name__}: {error}); give a "
            "new step.json or rollout.json"
        ) from error
    if not rates:
        raise ValueError(
            f"--bench {path} measured neither the arm ours nor the engine vllm; run leash bench step, or leash bench "
            "rollout --engines vllm"
        )
    for device_type, device, measured_parameters in checks:
        _check_device(path, device_type, device)
        _check_model(path, report["settings"]["model"], measured_parameters, num_parameters)
    return rates


def _rate(path: str, name: str, settings: dict[str, Any], result: dict[str, Any]) -> Rate:
    source = f"{path} ({ARMS[name]}, {settings['model']} in {settings['dtype']}, {result['device']})"
    return Rate(float(result["completion_tokens_per_second"]), source)


def _check_device(path: str, device_type: str, device: str) -> None:
    if device_type == "cpu":
        raise ValueError(
            f"--bench {path} was measured on {device}, but the plan is for GPUs; run leash bench on one of them, or "
            "give --train_rate and --rollout_rate"
        )


def _check_model(path: str, model: str, measured: int, planned: int) -> None:
    if measured != planned:
        raise ValueError(
            f"--bench {path} measured model {model} with {measured:,} parameters, but the recipe's has {planned:,}; "
            "run leash bench with --model_name_or_path CONFIG_JSON of the recipe's model, or give --train_rate and "
            "--rollout_rate"
        )
