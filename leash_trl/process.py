"""What a command changes in its process until the process ends: environment variables, warnings, `sys.path`, and the
objects that the garbage collector looks at.

All such changes are made here, so that somebody who calls a command from Python can see them.
"""

import gc
import importlib
import os
import sys
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any


def import_quickly(name: str) -> ModuleType:
    """Imports a module without garbage collection, and returns the module.

    Modules and what they define stay until the process ends, so Python would search them for garbage in vain. This
    search takes a third of the time in which a process imports torch and TRL and ends.
    """
    if name not in sys.modules:
        gc.disable()
        try:
            importlib.import_module(name)
        finally:
            # Later collections ignore all objects that exist now, most of which belong to modules.
            gc.freeze()
            gc.enable()
    return sys.modules[name]


def set_environment(variables: Mapping[str, Any]) -> None:
    """Sets the environment variables of a recipe, for this process and its children."""
    for name, value in variables.items():
        os.environ[name] = str(value)


def use_one_thread() -> None:
    """Lets each child process compute with one thread and tokenize without parallelism, unless the user set these
    environment variables: several runs at once use the cores better than several threads in one run."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def ignore_future_warnings(module: str = "") -> None:
    """Ignores warnings about future versions of libraries, which a user of a command cannot act on.

    Args:
        module (`str`): Regular expression for the names of the modules whose warnings are ignored; empty for all
            modules.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module=module)


def warn_in_one_line(prog: str) -> None:
    """Shows each warning in one line that begins with `prog`, the name of a command, without the line of code that
    warns."""

    def formatted(message: Warning | str, *args: Any, **kwargs: Any) -> str:
        # The first line break ends the line of a progress bar, to which the warning would otherwise be appended.
        return f"\n{prog}: warning: {message}\n"

    warnings.formatwarning = formatted


def silence_experimental_notices() -> None:
    """Keeps TRL from warning that rollout functions are experimental."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def put_first_on_import_path(folder: str) -> None:
    """Makes Python look for modules in a folder before all others, until the process ends: a function of the user may
    import a module of this folder only when it is called."""
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
