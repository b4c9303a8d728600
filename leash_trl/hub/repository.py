"""A model repository on the Hub: which files go there, commits, downloads, plain errors."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperation, CommitOperationAdd, CommitOperationDelete, HfApi, parse_hf_uri

from leash_trl.hub.hub_token import without_token
from leash_trl.run_folder import ADAPTER_FILE, RECIPE_FILE, TRAINER_STATE_FILE


CARD_FILE = "README.md"
CURVES_FILE = "training_curves.png"
LAST_CHECKPOINT = "last-checkpoint"
# a push of a model deletes these, unless it brings new ones
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*", "adapter_model.bin", ADAPTER_FILE)
# `ref` is TRL's second adapter; of Python files only these are a model's own code
MODEL = (
    *(*WEIGHTS, "config.json", "generation_config.json", "ref/adapter_*", TRAINER_STATE_FILE),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "*.tiktoken"),
    *("*.jinja", "additional_chat_templates/*.jinja", "*processor_config.json"),
    *("modeling_*.py", "configuration_*.py", "tokenization_*.py", CARD_FILE, CURVES_FILE, RECIPE_FILE),
)
EVENTS = "runs/**/*tfevents*"  # where transformers puts TensorBoard's files, and from where the Hub shows them
# of transformers, DeepSpeed (`global_step*/`) and FSDP
TRAINING_STATE = (
    *("optimizer*", "optimizer*/*", "scheduler.pt", "scaler.pt", "rng_state*", "latest", "zero_to_fp32.py"),
    *("global_step*/*", "pytorch_model_fsdp*", "pytorch_model_fsdp*/*"),
)


def found_files(folder: Path, patterns: Iterable[str], path_in_repo: str = "") -> dict[str, Path]:
    """The files of a folder that match a pattern, as `Path.glob` reads it, by path in the repository."""
    paths = (path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return {(path_in_repo / path.relative_to(folder)).as_posix(): path for path in paths}


def model_files(folder: Path) -> dict[str, Path]:
    """The files of a run's or a checkpoint's folder that go to the root of a repository, by path there."""
    return found_files(folder, (*MODEL, EVENTS))


def checkpoint_files(folder: Path, path_in_repo: str) -> dict[str, Path]:
    """The files of a checkpoint, with all that resuming needs, by path in the repository."""
    return found_files(folder, (*MODEL, *TRAINING_STATE), path_in_repo)


def stale_files(in_repo: Iterable[str], files: Collection[str]) -> list[str]:
    """Files that a push deletes in a repository: those of the model or the checkpoint that it replaces.

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
    return "model" if not slash and any(fnmatch(name, pattern) for pattern in WEIGHTS) else ""


@dataclass(frozen=True)
class HubRepository:
    """A model repository to write to.

    `token` is by default that of `HF_TOKEN` or `hf auth login`, `revision` the repository's default branch.
    """

    repo_id: str
    token: str | None = field(default=None, repr=False)
    revision: str | None = None

    def create(self, private: bool | None = None) -> str:
        """The full id of the repository, made with its branch if missing; `private` applies to a new one."""
        api = HfApi(token=self.token)
        with plain_errors(f"cannot write to {self.repo_id} on the Hub; log in with `hf auth login`", self.token):
            full_id = api.create_repo(self.repo_id, private=private, exist_ok=True).repo_id
            if self.revision is not None:
                api.create_branch(full_id, branch=self.revision, exist_ok=True)
        return full_id

    def commit(self, files: Mapping[str, Path | bytes], message: str) -> CommitInfo:
        """Pushes files in one commit: all of them appear on the Hub at once, or none.

        The commit also deletes [`stale_files`]. `upload_folder` is not used, because it may split a folder into
        several commits.

        `files` are contents, or local files, by path in the repository. Files that the Hub already has are not sent;
        if nothing has changed, the newest commit comes back.
        """
        api = HfApi(token=self.token)
        with plain_errors(f"pushing to {self.repo_id} failed", self.token):
            stale = stale_files(api.list_repo_files(self.repo_id, revision=self.revision), files)
            changes: list[CommitOperation] = [CommitOperationAdd(name, files[name]) for name in sorted(files)]
            changes += map(CommitOperationDelete, stale)
            return api.create_commit(self.repo_id, changes, commit_message=message, revision=self.revision)


@contextmanager
def plain_errors(problem: str, token: str | None = None) -> Iterator[None]:
    """Makes every error of the Hub's client inside, with its cause, a `ValueError` of one line without tokens.

    The line begins with `problem`; `token` is the one in use, where it does not look like one.
    """
    try:
        yield
    except Exception as error:  # the Hub and the network have many ways to say no, and some quote the token
        said = " <- ".join(f"{type(each).__name__}: {each}" for each in (error, error.__cause__) if each is not None)
        raise ValueError(without_token(f"{problem} ({' '.join(said.split())})", token)) from None


def local_checkpoint(checkpoint: str) -> str:
    """The folder of a checkpoint; one on the Hub, `hf://owner/name[@revision][/last-checkpoint]`, is downloaded.

    The root of a repository holds weights, the state of length control and the step; its folder `last-checkpoint`
    (`hub_strategy="checkpoint"`) holds all that resuming needs.
    """
    if not checkpoint.startswith("hf://"):
        return checkpoint
    api = HfApi()
    with plain_errors(f"cannot resume from {checkpoint}"):
        place = parse_hf_uri(checkpoint)
        # the root comes without checkpoints, whose optimizers are several times as large as the model
        others = None if place.path_in_repo else [f"{LAST_CHECKPOINT}/*", "checkpoint-*/*"]
        wanted = f"{place.path_in_repo}/*" if place.path_in_repo else None
        # a branch's name would fall back to an older download if the Hub does not answer
        revision = api.model_info(place.id, revision=place.revision).sha
        root = api.snapshot_download(place.id, revision=revision, allow_patterns=wanted, ignore_patterns=others)
        return str(Path(root, place.path_in_repo))
