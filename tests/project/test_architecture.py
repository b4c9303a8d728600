"""The law of the house: which room may reach which, straight, through others or lazily, and what importing loads."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

import leash_trl


PACKAGE = Path(leash_trl.__file__).parent
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
LAW = yaml.safe_load((ROOT / "tests" / "fixtures" / "rooms.yaml").read_text())
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imported_names(tree):
    """The modules and packages that are imported anywhere but for types."""
    names = set()
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                # `from leash_trl import NAME` loads the module that the package names for it
                is_module = submodule in MODULES
                names.add(submodule if is_module else leash_trl._MODULES.get(alias.name, node.module))
        nodes.extend(ast.iter_child_nodes(node))
    return names


@functools.cache
def imports(module):
    """What a module imports: ours and the packages that hold them by name, others by their first part."""
    reached = set()
    for name in imported_names(ast.parse(MODULES[module].read_text())):
        top, *parts = name.split(".")
        if name not in MODULES:
            reached.add(top)
            continue
        for end in range(len(parts)):
            package = ".".join([top, *parts[: end + 1]])
            if package == name or not is_inside(module, package):
                reached.add(package)
    return frozenset(reached - {"leash_trl"})


@functools.cache
def paths_to_everything(start):
    """For each module that can be reached, one chain of imports that reaches it."""
    paths = {start: [start]}
    waiting = [start]
    for module in waiting:
        if module in MODULES:
            for name in sorted(imports(module) - paths.keys()):
                paths[name] = [*paths[module], name]
                waiting.append(name)
    return paths


def is_inside(name, package):
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("room", LAW["may not reach"])
def test_no_room_reaches_what_the_law_forbids(room):
    forbidden = set()
    for entry in LAW["may not reach"][room]:
        forbidden |= {*LAW["groups"].get(entry, [entry])}
    modules = [module for module in MODULES if is_inside(module, f"leash_trl.{room}")]
    assert modules
    for module in modules:
        for name, path in paths_to_everything(module).items():
            assert not any(is_inside(name, package) for package in forbidden), " -> ".join(path)


def room_of(module):
    return module.removeprefix("leash_trl").removeprefix(".").partition(".")[0]


def test_rooms_stand_in_an_order_and_the_command_line_is_last():
    reached = {room: set() for room in ROOMS}
    for module in MODULES:
        room = room_of(module)
        if room in reached:
            rooms = {room_of(name) for name in paths_to_everything(module) if name in MODULES}
            reached[room] |= rooms & reached.keys() - {room}
    *_, last = graphlib.TopologicalSorter(reached).static_order()  # a CycleError names the circle
    assert last == "cli"


def test_modules_stand_in_an_order():
    graph = {name: imports(name) & MODULES.keys() - {name} for name in MODULES}
    graphlib.TopologicalSorter(graph).prepare()  # a CycleError names the circle


@pytest.mark.parametrize(
    "code",
    [
        # what keeps `import leash_trl` under 0.3 s and `leash --help` under 0.5 s, without timing them
        "import leash_trl",
        "from leash_trl.cli.main import build_parser; build_parser().format_help()",
        "import leash_trl.run_folder",
        "import leash_trl.figures.report, leash_trl.figures.training",
    ],
)
def test_the_face_the_help_and_figures_load_nothing_heavy(code):
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(' '.join(sys.modules))"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", *LAW["groups"]["heavy"]}
    if "figures" not in code:
        heavy |= {"numpy", "matplotlib"}
    assert not heavy & {*loaded}


def test_public_names_are_exactly_the_documented_ones():
    assert leash_trl.__all__ == [
        "LeashGRPOConfig",
        "LeashGRPOTrainer",
        "LengthControl",
        "LengthControlCallback",
        "LengthControlledReward",
        "LengthGroupedGRPOConfig",
        "LengthGroupedGRPOTrainer",
        "Rollouts",
        "shrinking_rollout",
    ]
    for name in leash_trl.__all__:
        assert getattr(leash_trl, name).__name__ == name
    with pytest.raises(AttributeError, match="LeashTrainer"):
        _ = leash_trl.LeashTrainer
