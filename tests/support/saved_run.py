"""The folder of a run or a checkpoint as a trainer leaves it, in a few bytes."""

import json

import yaml


RECIPE = {
    "model_name_or_path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "dataset_name": "open-r1/DAPO-Math-17k-Processed",
    "target_length": 4096,
    "lambda_lr": 0.05,
}


def trainer_state(step, **state):
    """What `trainer_state.json` holds after `step` updates; `state` replaces entries of length control."""
    rows = [
        {"step": i, "leash/mean_length": 8000.0 - 100 * i, "leash/generated_tokens": 1000.0 * i, "leash/lambda": 0.1}
        for i in range(1, step + 1)
    ]
    entry = {
        "method": "leash",
        "state": {"multipliers": {"": {"lam": 0.25}}},
        "version": step,
        "length_of": "completion",
        "target_length": 4096,
    }
    entry |= state
    return {"global_step": step, "log_history": rows, "stateful_callbacks": {"LengthControl": entry}}


def save(folder, step, recipe=None, **files):
    """Writes model, state and recipe into a folder; `config_json=b"..."` replaces or adds `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "model.safetensors": f"weights {step}".encode(),
        "leash_recipe.yaml": yaml.safe_dump(RECIPE if recipe is None else recipe).encode(),
        "trainer_state.json": json.dumps(trainer_state(step)).encode(),
        **files,
    }
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def save_checkpoint(run, step, **files):
    """The same for a checkpoint of a run, with what resuming needs."""
    moments = {"optimizer.pt": f"moments {step}".encode(), "scheduler.pt": b"s", "rng_state.pth": b"r"}
    return save(run / f"checkpoint-{step}", step, **moments, **files)
