"""Selects the files of a model repository on the Hub, commits them, downloads checkpoints, and reports errors."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import (
    CommitInfo,
    CommitOperation,
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    get_token,
    parse_hf_uri,
)

from leash_trl.hub_token import without_token
from leash_trl.run_folder import ADAPTER_FILE, RECIPE_FILE, TRAINER_STATE_FILE


CARD_FILE = "README.md"
CURVES_FILE = "training_curves.png"
LAST_CHECKPOINT = "last-checkpoint"
# A push of a model replaces these files in the repository, and deletes those that the model does not have.
WEIGHT_PATTERNS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin*",
    "adapter_model.bin",
    ADAPTER_FILE,
)
MODEL_PATTERNS = (
    *WEIGHT_PATTERNS,
    "config.json",
    "generation_config.json",
    "ref/adapter_*",  # the reference adapter of TRL
    # the tokenizer
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    # chat templates and the processor
    "*.jinja",
    "additional_chat_templates/*.jinja",
    "*processor_config.json",
    # code of a model that brings its own
    "modeling_*.py",
    "configuration_*.py",
    "tokenization_*.py",
    # the record of the run
    TRAINER_STATE_FILE,
    CARD_FILE,
    CURVES_FILE,
    RECIPE_FILE,
)
# TensorBoard event files, where transformers writes them and the Hub reads them
EVENT_FILE_PATTERN = "runs/**/*tfevents*"
TRAINING_STATE_PATTERNS = (
    # of transformers
    "optimizer*",
    "optimizer*/*",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*",
    # of DeepSpeed
    "latest",
    "zero_to_fp32.py",
    "global_step*/*",
    # of FSDP
    "pytorch_model_fsdp*",
    "pytorch_model_fsdp*/*",
)


def matching_files(folder: Path, patterns: Iterable[str], path_in_repo: str = "") -> dict[str, Path]:
    """Returns the files of a folder that match any of the glob patterns, keyed by path in the repository."""
    files = {}
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_file():
                # such as "last-checkpoint/optimizer.pt", or "config.json" in the root of the repository
                name = path_in_repo / path.relative_to(folder)
                files[name.as_posix()] = path
    return files


def model_files(folder: Path) -> dict[str, Path]:
    """Returns the files of a run or checkpoint for the root of a repository, keyed by path in the repository."""
    return matching_files(folder, (*MODEL_PATTERNS, EVENT_FILE_PATTERN))


def checkpoint_files(folder: Path, path_in_repo: str) -> dict[str, Path]:
    """Returns all files of a checkpoint that resuming needs, keyed by path in the repository."""
    return matching_files(folder, (*MODEL_PATTERNS, *TRAINING_STATE_PATTERNS), path_in_repo)


def stale_files(in_repo: Iterable[str], files: Collection[str]) -> list[str]:
    """Returns the files in a repository that a push deletes: old files of the model or checkpoint that it replaces.

    Example:
        >>> stale_files(["adapter_config.json", "notes.txt", "old/model.safetensors"], ["model.safetensors"])
        ['adapter_config.json']
        >>> stale_files(["last-checkpoint/optimizer.pt"], ["last-checkpoint/model.safetensors"])
        ['last-checkpoint/optimizer.pt']
    """
    # such as {"model", "last-checkpoint"}; files of no part, such as notes of the user, are never deleted
    replaced_parts = {_part_of_repository(name) for name in files} - {""}
    return [name for name in in_repo if name not in files and _part_of_repository(name) in replaced_parts]


def _part_of_repository(name: str) -> str:
    """Returns the part of a repository that a file belongs to: `model` for the weights in the root, the folder of a
    checkpoint, or empty text for any other file. A push replaces all files of a part together."""
    folder, slash, _ = name.partition("/")
    if slash and folder.startswith((LAST_CHECKPOINT, "checkpoint-")):
        return folder  # such as "last-checkpoint"
    is_in_root = not slash
    if is_in_root and any(fnmatch(name, pattern) for pattern in WEIGHT_PATTERNS):
        return "model"
    return ""


@dataclass(frozen=True)
class HubRepository:
    """A model repository on the Hub that files are pushed to.

    `token` defaults to that of `HF_TOKEN` or `hf auth login`, and `revision` to the repository's default branch.
    """

    repo_id: str
    token: str | None = field(default=None, repr=False)
    revision: str | None = None

    def create(self, private: bool | None = None) -> str:
        """Creates the repository and its branch if they do not exist, and returns the full id of the repository.

        `private` applies to a new repository only.
        """
        api = HfApi(token=self.token)
        with errors_to_one_line(f"cannot write to {self.repo_id} on the Hub; log in with `hf auth login`", self.token):
            # `repo_id` may lack the owner; the Hub then creates a repository of the user who is logged in.
            full_id = api.create_repo(self.repo_id, private=private, exist_ok=True).repo_id
            if self.revision is not None:
                api.create_branch(full_id, branch=self.revision, exist_ok=True)
        return full_id

    def commit(self, files: Mapping[str, Path | bytes], message: str) -> CommitInfo:
        """Pushes files in one commit: all of them appear on the Hub at once, or none.

        The commit also deletes [`stale_files`]. `upload_folder` is not used because it may split a folder into several
        commits.

        `files` maps paths in the repository to contents or local files. Files that the Hub already has are not
        uploaded; if no file has changed, the newest commit is returned.
        """
        api = HfApi(token=self.token)
        with errors_to_one_line(f"pushing to {self.repo_id} failed", self.token):
            # Old files would still be loaded, such as an adapter beside weights that are now merged.
            stale = stale_files(api.list_repo_files(self.repo_id, revision=self.revision), files)
            additions = [CommitOperationAdd(name, content) for name, content in sorted(files.items())]
            deletions = [CommitOperationDelete(name) for name in stale]
            changes: list[CommitOperation] = [*additions, *deletions]
            return api.create_commit(self.repo_id, changes, commit_message=message, revision=self.revision)


@contextmanager
def errors_to_one_line(failure: str, token: str | None = None) -> Iterator[None]:
    """Converts any error inside the context, and its cause, to a `ValueError` of one line that contains no token.

    The line begins with `failure`; `token` is the token in use, by default the one of this machine.
    """
    try:
        yield
    except Exception as error:  # the Hub's client raises many types of errors, which have no base class of their own
        reason = f"{type(error).__name__}: {error}"
        cause = error.__cause__
        if cause is not None:
            # such as "LocalEntryNotFoundError: cannot find ... <- ConnectError: Name or service not known"
            reason += f" <- {type(cause).__name__}: {cause}"
        reason_in_one_line = " ".join(reason.split())
        # Some errors quote the token, so it is removed from the message, and `from None` drops the error itself.
        raise ValueError(without_token(f"{failure} ({reason_in_one_line})", token or get_token())) from None


def local_checkpoint(checkpoint: str) -> str:
    """Returns the local folder of a checkpoint. A checkpoint on the Hub is given as
    `hf://owner/name[@revision][/last-checkpoint]`, and is downloaded; raises `ValueError` if this fails.

    The root of a repository contains the weights, the state of length control and the step; the folder
    `last-checkpoint` (`hub_strategy="checkpoint"`) also contains the optimizer and all else that resuming needs.
    """
    if not checkpoint.startswith("hf://"):
        return checkpoint
    api = HfApi()
    with errors_to_one_line(f"cannot resume from {checkpoint}"):
        uri = parse_hf_uri(checkpoint)
        # such as "last-checkpoint/*"; `path_in_repo` is empty for the root of the repository
        included = f"{uri.path_in_repo}/*" if uri.path_in_repo else None
        # The root is downloaded without checkpoints, whose optimizers are several times as large as the model.
        excluded = None if included else [f"{LAST_CHECKPOINT}/*", "checkpoint-*/*"]
        # The commit is looked up first: with the name of a branch, huggingface_hub would return an older download if
        # the Hub cannot be reached.
        commit = api.model_info(uri.id, revision=uri.revision).sha
        root = api.snapshot_download(uri.id, revision=commit, allow_patterns=included, ignore_patterns=excluded)
        return str(Path(root, uri.path_in_repo))
