"""What we lean on inside TRL and transformers."""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest
import trl
from packaging.requirements import Requirement
from trl import GRPOTrainer
from trl.chat_template_utils import parse_response
from trl.trainer.utils import RepeatSampler

import leash_trl
from leash_trl import LeashGRPOTrainer
from leash_trl.microbatching import batch_fields, length_grouped_grpo_trainer, loss_weights
from leash_trl.microbatching.length_grouped_grpo_trainer import LengthGroupedGRPOTrainer


LOSS_SOURCE = inspect.getsource(GRPOTrainer._compute_loss)
PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
MAKEFILE = PYPROJECT.with_name("Makefile")


def parameters(method) -> list[str]:
    return list(inspect.signature(method).parameters)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_generate", ["self", "prompts"]),
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("save_model", ["self", "output_dir", "_internal_call"]),
        ("_push_from_checkpoint", ["self", "checkpoint_folder"]),
        ("set_initial_training_values", ["self", "args", "dataloader"]),
        ("init_hf_repo", ["self", "token", "private"]),
        ("create_model_card", ["self", "model_name", "dataset_name", "tags"]),
    ],
)
def test_hook_has_the_arguments_we_use(name, expected):
    assert parameters(getattr(GRPOTrainer, name)) == expected


def test_a_training_batch_has_the_fields_and_the_loss_logs_the_means_we_know(make_trainer):
    trainer = make_trainer(num_iterations=2, length_grouped_microbatches=False, skip_zero_signal=False, max_steps=1)
    trainer.train()
    assert trainer._buffered_inputs[0].keys() == batch_fields.FIELDS - {
        "tool_mask",
        "ref_per_token_logps",
        "sampling_per_token_logps",
        "importance_sampling_ratio",
    }
    names = {*length_grouped_grpo_trainer.TOKEN_MEANS, *length_grouped_grpo_trainer.CLIP_MEANS}
    logged = {*re.findall(r'_metrics\[mode\]\["([^"]+)"\]\.append\(global_masked_mean', LOSS_SOURCE)}
    assert logged == names | {*length_grouped_grpo_trainer.ROW_MEANS}


def test_replies_are_parsed_from_ids_after_a_prompt():
    assert parameters(parse_response)[:3] == ["tokenizer", "ids", "prefix"]


def test_every_loss_is_known():
    types = re.findall(r'"(\w+)"', " ".join(re.findall(r"self\.loss_type (?:==|in) (.*?):", LOSS_SOURCE)))
    assert {*types} == loss_weights.LOSS_TYPES


def test_what_we_read_in_the_sampler_exists():
    sampler = RepeatSampler(["a", "b"], mini_repeat_count=1, seed=0)
    assert (sampler.shuffle, sampler.seed, sampler.num_samples) == (True, 0, 2)
    assert sampler.generator is not None


PRIVATE_MEMBERS = {
    "_prepare_inputs": "overridden: splits a generation batch into micro-batches, every steps_per_generation steps",
    "_buffered_inputs": "replaced: the micro-batches, read by _prepare_inputs",
    "_step": "read and restored: micro-steps so far, which say when to generate",
    "_get_per_token_logps_and_entropies": "overridden: computes parts of like length; gives values, entropies, loss",
    "_metrics": "written: values that the next log row averages",
    "_generate_and_score_completions": "overridden: one generation batch, whose advantages are swapped",
    "_generate": "overridden: returns completion ids second and the tool mask third",
    "_calculate_rewards": "overridden: a column of rewards of all processes for each function",
    "_pending_extra_logs": "cleared: what reward functions gave to log_extra, before a batch is graded again",
    "_pending_metrics": "cleared: the same of log_metric",
    "_logs": "written: columns of the completions table",
    "_push_from_checkpoint": "overridden without super: is called once for each saved checkpoint",
    "_tag_names": "set: tags of the model card",
}
"""Every private member of TRL's and transformers' trainers that the package leans on, and what for."""

REPLACED = {"_push_from_checkpoint", "push_to_hub", "init_hf_repo"}  # they make several commits where ours make one


def private_members_of_trl() -> set[str]:
    source = "".join(
        inspect.getsource(parent)
        for parent in GRPOTrainer.__mro__
        if parent.__module__.startswith(("trl.", "transformers."))
    )
    names = {*dir(GRPOTrainer), *re.findall(r"self\.(_\w+)\s*(?::[^=\n]+)?=", source)}
    return {name for name in names if re.match("_[a-z]", name)}


def used_members(path: Path) -> set[str]:
    """What a file's trainers define or take of themselves, what it takes of a `trainer`, and names in texts."""
    names = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("trainer"):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"(\w*Trainer\.)?_\w+", str(node.value)):
            names.add(node.value.rpartition(".")[2])
    for trainer in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and "GRPOTrainer" in node.name):
        for node in ast.walk(trainer):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "super()"):
                names.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.Name):
                names.add(node.name if isinstance(node, ast.FunctionDef) else node.id)
    return names


def test_the_private_members_we_lean_on_are_these():
    used = set().union(*(used_members(path) for path in Path(leash_trl.__file__).parent.rglob("*.py")))
    assert used & private_members_of_trl() == PRIVATE_MEMBERS.keys()


@pytest.mark.parametrize("trainer_class", [LeashGRPOTrainer, LengthGroupedGRPOTrainer])
def test_every_override_calls_super(trainer_class):
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(trainer_class))).body
    overridden = [node for node in tree.body if isinstance(node, ast.FunctionDef) and hasattr(GRPOTrainer, node.name)]
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}

    def calls_of(function: ast.FunctionDef) -> set[str]:
        return {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}

    for method in overridden:
        helpers = [functions[name] for name in functions if f"self.{name}" in calls_of(method)]
        calls = set().union(*map(calls_of, [method, *helpers]))
        assert (f"super().{method.name}" in calls) != (method.name in REPLACED), method.name
    assert len(overridden) > 3


def test_there_are_two_trainer_classes():
    found = {
        node.name
        for path in Path(leash_trl.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any("Trainer" in ast.unparse(base) for base in node.bases)
        if not any("Callback" in ast.unparse(base) for base in node.bases)
    }
    assert found == {"LeashGRPOTrainer", "LengthGroupedGRPOTrainer"}


def test_lengths_agree_with_trls_own_metric(make_trainer):
    trainer = make_trainer(max_steps=2)
    trainer.train()
    for row in trainer.state.log_history[:2]:
        assert row["leash/mean_length"] == pytest.approx(row["completions/mean_length"], rel=1e-6)
        assert row["leash/max_length"] == row["completions/max_length"]
        assert row["leash/task_reward"] == pytest.approx(row["reward"], abs=1e-6)


def test_the_tested_release_is_the_oldest_that_is_claimed():
    (requirement,) = re.findall(r'"(trl[^"\[]+)"', PYPROJECT.read_text())[:1]
    claimed = Requirement(requirement).specifier
    tested = re.search(r"^TRL \?= trl==(\d+\.\d+)\.\d+$", MAKEFILE.read_text(), re.MULTILINE)[1]
    before = f"1.{int(tested.removeprefix('1.')) - 1}.0"
    assert [claimed.contains(version) for version in (before, f"{tested}.0", "1.99", "2.0")] == [
        False,
        True,
        True,
        False,
    ]
    assert claimed.contains(trl.__version__, prereleases=True)
