"""The page for one machine with 8 GPUs: installed parsers know its options, and `leash plan` prints its figures."""

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from conftest import ROOT
from trl import TrlParser
from trl.scripts.vllm_serve import ScriptArguments

from leash_trl.cli.arguments import parse_known
from leash_trl.cli.main import main
from leash_trl.cli.plan import PlanArguments, parse_plan
from leash_trl.cli.training_arguments import given_fields
from leash_trl.planning.plan import PAPER_MODELS


PAGE = (ROOT / "recipes" / "one_machine_8_gpus.md").read_text()
SHARDINGS = {"ddp": "none", "deepspeed_zero2": "zero2", "deepspeed_zero3": "zero3", "fsdp2": "fsdp"}


class Command(NamedTuple):
    """One command of the page: its variables, its name, the words after it, and the output that the page shows."""

    environment: dict[str, str]
    name: str
    words: list[str]
    output: list[str]


def read_command(block: str, output: str = "") -> Command:
    words = shlex.split(block.replace("\\\n", " "), comments=True)
    first = next(index for index, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    environment = dict(word.split("=", 1) for word in words[:first])
    return Command(environment, " ".join(words[first : first + 2]), words[first + 2 :], output.splitlines())


COMMANDS = [
    read_command(block, output)
    for block, output in re.findall(r"```bash\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, re.DOTALL)
]


def named(name: str) -> list[Command]:
    return [command for command in COMMANDS if command.name == name]


def processes(launch) -> int:
    """Processes that `accelerate launch` would start: the configuration file's, unless the command says how many."""
    return launch.num_processes or yaml.safe_load(Path(launch.config_file).read_text())["num_processes"]


def parse(command: Command):
    """What the command's own parsers make of it; they exit or raise over an option that they do not know."""
    if command.name == "leash plan":
        arguments, rest = parse_known(PlanArguments, command.words, "leash plan")
        return arguments, given_fields(rest, prog="leash plan")
    if command.name == "trl vllm-serve":
        return TrlParser(ScriptArguments).parse_args_and_config(command.words)[0]
    arguments = launch_command_parser().parse_args(command.words)
    assert (arguments.training_script, arguments.module) == ("leash_trl", True)
    assert arguments.training_script_args[0] == "train"
    return arguments, given_fields(arguments.training_script_args[1:])


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_every_command_is_of_a_kind_that_is_checked():
    counts = {"pip install": 1, "leash plan": 6, "trl vllm-serve": 2, "accelerate launch": 5}
    assert Counter(command.name for command in COMMANDS) == counts


@pytest.mark.parametrize("command", named("leash plan"), ids=lambda command: " ".join(command.words[1:6]))
def test_the_plan_prints_what_the_page_shows(command, capsys):
    assert main(["plan", *command.words]) == 0
    printed = capsys.readouterr().out.splitlines()
    following = iter(printed)
    # the page leaves lines out, but keeps their order, the batches and the verdict
    assert [line for line in command.output if line not in following] == []
    assert any(line.startswith("generation batch: ") for line in command.output)
    assert command.output[-1] == printed[-1]


@pytest.mark.parametrize("index", range(5))
def test_each_launch_is_the_one_that_was_planned_and_makes_the_recipes_batches(index):
    command = named("accelerate launch")[index]
    before = COMMANDS[: COMMANDS.index(command)]
    plan_arguments, plan_fields = parse([command for command in before if command.name == "leash plan"][-1])
    launch, fields = parse(command)
    assert processes(launch) == plan_arguments.num_gpus
    assert SHARDINGS[Path(launch.config_file).stem] == plan_arguments.sharding
    only_of_training = {name for name in fields if name.startswith(("vllm_server", "vllm_group"))} | {"ddp_timeout"}
    assert {name: fields[name] for name in fields.keys() - only_of_training} == plan_fields  # the recipe's included

    words = launch.training_script_args[1:]
    _, training_args, _ = parse_plan([*words, "--num_gpus", str(plan_arguments.num_gpus), "--gpu_memory", "80"])
    recipe = yaml.safe_load(Path(words[words.index("--config") + 1]).read_text())
    update = plan_arguments.num_gpus * training_args.per_device_train_batch_size
    update *= training_args.gradient_accumulation_steps
    updates = recipe["steps_per_generation"] / recipe["gradient_accumulation_steps"]
    assert (update, training_args.generation_batch_size) == (256, updates * 256)


@pytest.mark.parametrize("server", named("trl vllm-serve"), ids=lambda command: command.words[1])
def test_the_server_serves_what_the_trainer_after_it_asks_for(server):
    trainer = COMMANDS[COMMANDS.index(server) + 1]
    served, (launch, fields) = parse(server), parse(trainer)
    assert (served.model, served.max_model_len) == (fields["model_name_or_path"], fields["vllm_max_model_length"])
    assert (served.host, served.port) == (fields["vllm_server_host"], fields["vllm_server_port"])
    gpus, others = (command.environment["CUDA_VISIBLE_DEVICES"].split(",") for command in (server, trainer))
    assert sorted([*gpus, *others]) == [str(gpu) for gpu in range(8)]
    assert len(gpus) == served.tensor_parallel_size * served.data_parallel_size
    assert len(others) == processes(launch)
    # two listen on one machine, and a third port takes the weights
    assert len({served.port, launch.main_process_port, fields["vllm_group_port"]}) == 3
    assert f"http://{served.host}:{served.port}/health" in PAGE
    # and its GPUs divide the model's heads
    sizes, shares = PAPER_MODELS[served.model], served.tensor_parallel_size
    heads = sizes["num_key_value_heads"]
    assert sizes["num_attention_heads"] % shares == 0
    assert max(heads, shares) % min(heads, shares) == 0
