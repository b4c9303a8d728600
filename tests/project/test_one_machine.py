"""The page for one machine with 8 GPUs: installed parsers know its options, and `leash plan` prints its figures."""

import re
import shlex
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


def read_command(block: str, output: str) -> Command:
    words = shlex.split(block.replace("\\\n", " "), comments=True)
    first = next(index for index, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    environment = dict(word.split("=", 1) for word in words[:first])
    return Command(environment, " ".join(words[first : first + 2]), words[first + 2 :], output.splitlines())


BLOCK = re.compile(r"```bash\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
COMMANDS = [read_command(*block) for block in BLOCK.findall(PAGE)]
PLANS, LAUNCHES, SERVERS = (
    [index for index, command in enumerate(COMMANDS) if command.name == name]
    for name in ("leash plan", "accelerate launch", "trl vllm-serve")
)


def parse_launch(command: Command):
    """What the launcher and `leash train` make of a command; they exit or raise over an option not known to them."""
    launch = launch_command_parser().parse_args(command.words)
    assert (launch.training_script, launch.module) == ("leash_trl", True)
    assert launch.training_script_args[0] == "train"
    return launch, given_fields(launch.training_script_args[1:])


def processes(launch) -> int:
    """Processes that `accelerate launch` would start: the configuration file's, unless the command says how many."""
    return launch.num_processes or yaml.safe_load(Path(launch.config_file).read_text())["num_processes"]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_every_command_but_the_installation_is_checked():
    assert len(COMMANDS) - 1 == len(PLANS) + len(LAUNCHES) + len(SERVERS) > 0


@pytest.mark.parametrize("index", PLANS)
def test_the_plan_prints_what_the_page_shows(index, capsys):
    command = COMMANDS[index]
    assert main(["plan", *command.words]) == 0
    printed = capsys.readouterr().out.splitlines()
    following = iter(printed)
    # the page leaves lines out, but keeps their order, the batches and the verdict
    assert [line for line in command.output if line not in following] == []
    assert any(line.startswith("generation batch: ") for line in command.output)
    assert command.output[-1] == printed[-1]


@pytest.mark.parametrize("index", LAUNCHES)
def test_each_launch_is_the_one_that_was_planned_and_makes_the_recipes_batches(index):
    planned = COMMANDS[max(plan for plan in PLANS if plan < index)].words
    arguments, training_args, _ = parse_plan(planned)
    launch, fields = parse_launch(COMMANDS[index])
    assert processes(launch) == arguments.num_gpus
    assert SHARDINGS[Path(launch.config_file).stem] == arguments.sharding
    only_of_training = {name for name in fields if name.startswith(("vllm_server", "vllm_group"))} | {"ddp_timeout"}
    plan_fields = given_fields(parse_known(PlanArguments, planned, "leash plan")[1], prog="leash plan")
    assert {name: fields[name] for name in fields.keys() - only_of_training} == plan_fields  # the recipe's included

    recipe = yaml.safe_load(Path(planned[planned.index("--config") + 1]).read_text())
    updates = recipe["steps_per_generation"] / recipe["gradient_accumulation_steps"]
    assert training_args.generation_batch_size == updates * 256
    assert training_args.steps_per_generation == updates * training_args.gradient_accumulation_steps


@pytest.mark.parametrize("index", SERVERS)
def test_the_server_serves_what_the_trainer_after_it_asks_for(index):
    server, trainer = COMMANDS[index : index + 2]
    (served,) = TrlParser(ScriptArguments).parse_args_and_config(server.words)
    launch, fields = parse_launch(trainer)
    assert (served.model, served.max_model_len) == (fields["model_name_or_path"], fields["vllm_max_model_length"])
    assert (served.host, served.port) == (fields["vllm_server_host"], fields["vllm_server_port"])
    gpus, others = (command.environment["CUDA_VISIBLE_DEVICES"].split(",") for command in (server, trainer))
    assert sorted([*gpus, *others]) == [str(gpu) for gpu in range(8)]
    assert len(gpus) == served.tensor_parallel_size * served.data_parallel_size
    assert len(others) == processes(launch)
    # two listen on one machine, and a third port takes the weights
    assert len({served.port, launch.main_process_port, fields["vllm_group_port"]}) == 3
    assert PAPER_MODELS[served.model]["num_attention_heads"] % served.tensor_parallel_size == 0
