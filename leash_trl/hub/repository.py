"""A model repository on the Hub: which files go there, commits that are tried again, downloads, plain errors."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from time import sleep

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token, parse_hf_uri

from leash_trl.engines.checkpoint_path import ADAPTER_FILE, TRAINER_STATE_FILE
from leash_trl.hub.hub_token import without_token
from leash_trl.hub.recipe import RECIPE_FILE


CARD_FILE = "README.md"
CURVES_FILE = "training_curves.png"
EVAL_RESULTS_FILE = ".eval_results/leash_trl.yaml"
LAST_CHECKPOINT = "last-checkpoint"
# a push of a model deletes these, and the evaluation's results, unless it brings new ones
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*", "adapter_model.bin", ADAPTER_FILE)
TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "*.tiktoken"),
    *("*.jinja", "additional_chat_templates/*.jinja", "*processor_config.json"),
)
# `ref` is TRL's second adapter; of Python files only these are a model's own code
MODEL = (
    *(*WEIGHTS, *TOKENIZER, "config.json", "generation_config.json", "ref/adapter_*", TRAINER_STATE_FILE),
    *("modeling_*.py", "configuration_*.py", "tokenization_*.py", CARD_FILE, CURVES_FILE, RECIPE_FILE),
)
EVENTS = "runs/**/*tfevents*"  # where transformers puts TensorBoard's files, and from where the Hub shows them
# of transformers, DeepSpeed (`global_step*/`) and FSDP
TRAINING_STATE = (
    *("optimizer*", "optimizer*/*", "scheduler.pt", "scaler.pt", "rng_state*", "latest", "zero_to_fp32.py"),
    *("global_step*/*", "pytorch_model_fsdp*", "pytorch_model_fsdp*/*"),
)

# Seconds before further attempts: huggingface_hub itself repeats uploads of files, but not the commit.
WAITS = (1.0, 4.0, 15.0, 40.0)
LOGIN = "log in with `hf auth login`, or set HF_TOKEN, to a user who may do this"


def found_files(folder: Path, patterns: Iterable[str]) -> dict[str, Path]:
    """The files of a folder that match a pattern, as `Path.glob` reads it, by their paths in the folder."""
    paths = (path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in paths}


def model_files(folder: Path) -> dict[str, Path]:
    """The files of a run's or a checkpoint's folder that go to the root of a repository, by path there."""
    return found_files(folder, (*MODEL, EVENTS))


def checkpoint_files(folder: Path, path_in_repo: str) -> dict[str, Path]:
    """The files of a checkpoint, with all that resuming needs, by path in the repository."""
    found = found_files(folder, (*MODEL, *TRAINING_STATE))
    return {f"{path_in_repo}/{name}": path for name, path in found.items()}


def stale_files(in_repo: Iterable[str], files: Collection[str]) -> list[str]:
    """Files that a push deletes in a repository: those of the model or the checkpoint that it replaces.

    Args:
        in_repo (`Iterable[str]`):
            Paths of the files that the repository has.
        files (`Collection[str]`):
            Paths of the files that the push brings.

    Example:
        >>> stale_files(["adapter_config.json", "notes.txt", "old/model.safetensors"], ["model.safetensors"])
        ['adapter_config.json']
        >>> stale_files(["last-checkpoint/optimizer.pt"], ["last-checkpoint/model.safetensors"])
        ['last-checkpoint/optimizer.pt']
    """
    replaced = {_part(name) for name in files}
    return [name for name in in_repo if name not in files and _part(name) in replaced - {""}]


def _part(name: str) -> str:
    """What of a repository a file belongs to: `model`, a checkpoint by its folder, or nothing that a push replaces."""
    folder, slash, _ = name.partition("/")
    if slash and folder.startswith((LAST_CHECKPOINT, "checkpoint-")):
        return folder
    is_weights = not slash and any(fnmatch(name, pattern) for pattern in WEIGHTS)
    return "model" if is_weights or name == EVAL_RESULTS_FILE else ""


@dataclass(frozen=True)
class HubRepository:
    """A model repository to write to.

    Args:
        repo_id (`str`):
            `owner/name`.
        token (`str`, *optional*):
            Write token; by default that of `HF_TOKEN` or `hf auth login`.
        revision (`str`, *optional*):
            Branch to commit to; by default the repository's default branch.
    """

    repo_id: str
    token: str | None = field(default=None, repr=False)
    revision: str | None = None

    def create(self, private: bool | None = None) -> str:
        """Makes the repository and its branch if they are missing; `private` applies to a new repository.

        Returns:
            `str`: The repository's full id.

        Raises:
            `ValueError`: If the Hub refuses, or does not answer.
        """
        api = HfApi(token=self.token)
        try:
            full_id = api.create_repo(self.repo_id, private=private, exist_ok=True).repo_id
            if self.revision is not None:
                api.create_branch(full_id, branch=self.revision, exist_ok=True)
        except Exception as error:  # the Hub and the network have many ways to say no, and some quote the token
            reason = what_went_wrong(error, self.token)
            raise ValueError(f"cannot write to {self.repo_id} on the Hub ({reason}); {LOGIN}") from None
        return full_id

    def commit(self, files: Mapping[str, Path | bytes], message: str, waits: Sequence[float] = WAITS) -> CommitInfo:
        """Pushes files in one commit: all of them appear on the Hub at once, or none.

        The commit also deletes [`stale_files`]. `upload_folder` is not used, because it may split a folder into
        several commits.

        Args:
            files (`Mapping[str, Path | bytes]`):
                Content, or the local file, by path in the repository. Files that the Hub already has are not sent.
            message (`str`):
                Message of the commit.
            waits (`Sequence[float]`, *optional*):
                Seconds before each further attempt.

        Returns:
            `CommitInfo`: The commit, or the newest one if nothing has changed.
        """
        api = HfApi(token=self.token)
        try:
            stale = stale_files(api.list_repo_files(self.repo_id, revision=self.revision), files)
            added = [CommitOperationAdd(name, files[name]) for name in sorted(files)]
            changes = [*added, *map(CommitOperationDelete, stale)]
            return api.create_commit(self.repo_id, changes, commit_message=message, revision=self.revision)
        except Exception:
            if not waits:
                raise
        sleep(waits[0])
        return self.commit(files, message, waits[1:])


def what_went_wrong(error: BaseException, token: str | None = None) -> str:
    """An error of the Hub's client and its cause in one line, without tokens.

    Args:
        error (`BaseException`):
            An exception of a request to the Hub.
        token (`str`, *optional*):
            The token in use; by default that of `HF_TOKEN` or `hf auth login`.
    """
    said = [f"{type(each).__name__}: {each}" for each in (error, error.__cause__) if each is not None]
    return without_token(" ".join(" <- ".join(said).split()), token or get_token())


def pinned(checkpoint: str) -> str:
    """The place of a checkpoint on the Hub, `hf://owner/name[@revision][/last-checkpoint]`, with its newest commit as
    revision, so that all processes download the same; a folder stays as it is.

    Raises:
        `ValueError`: If it starts with `hf://` and is no such place, or the Hub does not return its commit.
    """
    if not checkpoint.startswith("hf://"):
        return checkpoint
    place = parse_hf_uri(checkpoint)
    try:
        return replace(place, revision=HfApi().model_info(place.id, revision=place.revision).sha).to_uri()
    except Exception as error:  # the Hub and the network have many ways to say no
        raise ValueError(f"{checkpoint}: {what_went_wrong(error)}") from None


def local_checkpoint(checkpoint: str) -> str:
    """The folder of a checkpoint; one on the Hub, as [`pinned`] gives it, is downloaded.

    The root of a repository holds weights, the state of length control and the step; its folder `last-checkpoint`
    (`hub_strategy="checkpoint"`) holds all that resuming needs.

    Raises:
        `ValueError`: If nothing is there.
    """
    if not checkpoint.startswith("hf://"):
        return checkpoint
    place = parse_hf_uri(pinned(checkpoint))
    path = place.path_in_repo
    # the root comes without checkpoints, whose optimizers are several times as large as the model
    others = None if path else [f"{LAST_CHECKPOINT}/*", "checkpoint-*/*"]
    root = HfApi().snapshot_download(
        place.id, revision=place.revision, allow_patterns=f"{path}/*" if path else None, ignore_patterns=others
    )
    if not Path(root, path).is_dir():
        raise ValueError(f"{checkpoint}: the repository has no folder {path!r}")
    return str(Path(root, path))
