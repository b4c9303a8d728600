"""The law of the house: who may import whom, and how long importing may take."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import leash_trl


PACKAGE = Path(leash_trl.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"trl", "transformers", "datasets", "accelerate", "peft", "vllm"}

# part of the package -> what nothing in it may import
FORBIDDEN = {
    "length_control": HEAVY
    | {f"leash_trl.{room}" for room in ("rewards", "data", "gym", "cli", "evaluation", "analysis")},
    "leash_grpo_trainer": {
        f"leash_trl.{room}" for room in ("rewards", "data", "evaluation", "analysis", "gym", "cli")
    },
    **{
        layer: {f"leash_trl.{room}" for room in ("rewards", "data", "evaluation", "analysis", "gym", "cli")}
        for layer in ("advised_grpo_trainer", "setup_checks", "publishing_grpo_trainer", "resumable_grpo_trainer")
    },
    **dict.fromkeys(("advice", "completion_sample"), HEAVY),
    "hub": {"trl", "transformers", "datasets", "accelerate", "peft", "vllm", "torch", "leash_trl.leash_grpo_trainer"},
    "leash_grpo_config": {"leash_trl.leash_grpo_trainer", "leash_trl.cli"},
    "callbacks": {"leash_trl.leash_grpo_trainer", "leash_trl.cli"},
    "microbatch": HEAVY,
    "batch_fields": HEAVY,
    "loss_weights": HEAVY | {"torch"},
    "length_grouped_grpo_trainer": {
        f"leash_trl.{room}"
        for room in ("rewards", "data", "evaluation", "analysis", "gym", "cli", "leash_grpo_trainer")
    },
    "planning": HEAVY | {"torch", "leash_trl.leash_grpo_trainer", "leash_trl.leash_grpo_config"},
    "analysis": {"torch", "leash_trl.leash_grpo_trainer"} | HEAVY,
    "rewards": {"trl", "transformers", "leash_trl.leash_grpo_trainer"},
}


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_imports_what_the_law_forbids(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    forbidden = set(FORBIDDEN.get(room, set()))
    if room != "cli" and path.name != "__main__.py":
        forbidden.add("leash_trl.cli")
    broken = {(name, f) for name in imports(path) for f in forbidden if is_inside(name, f)}
    assert not broken


def test_no_file_is_named_for_nothing():
    assert not {path.name for path in FILES} & {"utils.py", "helpers.py", "common.py", "base.py", "misc.py"}


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize(
    "code",
    [
        "import leash_trl",
        "from leash_trl.cli.main import build_parser; build_parser().format_help()",
        "import leash_trl.length_control.dual, leash_trl.controller_state",
    ],
)
def test_the_face_and_the_help_load_nothing_heavy(code):
    # what keeps `import leash_trl` under 0.3 s and `leash --help` under 0.5 s, without timing them
    assert not loaded_by(code) & (HEAVY | {"torch", "numpy", "matplotlib"})


def test_length_control_needs_torch_only():
    loaded = loaded_by("import leash_trl.length_control.leash, leash_trl.length_control.statistics")
    assert "torch" in loaded
    assert not loaded & HEAVY


def test_public_names_are_exactly_the_documented_ones():
    assert leash_trl.__all__ == ["LeashGRPOConfig", "LeashGRPOTrainer", "LengthControl", "Rollouts"]
    for name in leash_trl.__all__:
        assert getattr(leash_trl, name).__name__ == name
    with pytest.raises(AttributeError, match="LeashTrainer"):
        _ = leash_trl.LeashTrainer
