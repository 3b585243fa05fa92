"""Models from and to a hub, through huggingface_hub: its cache, its login, its settings (HF_HOME, HF_TOKEN, HF_ENDPOINT)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from huggingface_hub import CommitOperationAdd, HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from vit.checkpoints.card import model_card
from vit.checkpoints.formats.native import FORMAT
from vit.checkpoints.reading import FOLDER_FILES, read_checkpoint, shorten
from vit.load_options import CheckpointError
from vit.pretrained import CARD
from vit.report.record import read_folder
from vit.runs import RunFiles

_FILES = RunFiles(Path())
# published files of a run; never its training states, which include the optimizer and are many times as large
PUBLISHED = [CARD, *(path.name for path in (
    _FILES.model, _FILES.model_config, _FILES.config, _FILES.summary, _FILES.metrics, _FILES.curves,
    _FILES.reconstructions, _FILES.attention, _FILES.dynamics_picture, _FILES.confusion, _FILES.reliability,
))]  # fmt: skip
# fetched files: settings, and weights as safetensors or else as a pickle
SETTINGS = ["config.json", "preprocessor_config.json"]
SAFETENSORS = ["model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]
PICKLES = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"]


def download(name: str) -> Path:
    """Fetch only a model's weights and settings into huggingface_hub's cache, all from one commit.

    Args:
        name: "ORGANISATION/NAME", or "ORGANISATION/NAME@REVISION".

    Returns:
        Their folder.

    Raises:
        CheckpointError: there is no such model, it may not be read, or there is no network and it is not in the cache.
    """
    repository, _, revision = name.partition("@")
    with _errors_in_one_line(f"hf/{name}"):
        folder = Path(snapshot_download(repository, revision=revision or None, allow_patterns=SETTINGS + SAFETENSORS))
        if not _has_weights(folder):  # the name of the folder is the commit
            snapshot_download(repository, revision=folder.name, allow_patterns=PICKLES)
    if not _has_weights(folder):
        raise CheckpointError(f"hf/{name} holds none of {', '.join(FOLDER_FILES)}")
    return folder


def _has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FOLDER_FILES)


def push_to_hub(folder: str | Path, repository: str, private: bool = False) -> str:
    """Publish a run, or a model that `convert --to safetensors` wrote, with a model card, in one commit.

    A README.md in the folder is its card; else `model_card` writes one. Paths of this machine are left out.

    Args:
        folder: the run folder.
        repository: "ORGANISATION/NAME"; created if it does not exist.
        private: whether only its owner may see it.

    Returns:
        Its address.

    Raises:
        CheckpointError: the folder holds no complete model in our format, the repository is public although `private` is set,
            or the hub refuses or cannot be reached. Nothing is uploaded then.
    """
    folder = Path(folder)
    source = read_checkpoint(folder)
    # a single file, or weights under another name, would be published incompletely
    if source.config.get("format") != FORMAT or not source.verified or source.files != (folder / FOLDER_FILES[0],):
        raise CheckpointError(
            f"{folder} holds no model in the project's own format; `vit checkpoint convert` writes one"
        )
    if repository.count("/") != 1:
        raise CheckpointError(f"{repository!r} is not a model name on the hub: ORGANISATION/NAME")
    run = read_folder(folder).public()
    files: dict[str, str | bytes] = {name: str(folder / name) for name in PUBLISHED if (folder / name).is_file()}
    if run.sections:
        files[run.files.config.name] = yaml.safe_dump(run.sections, sort_keys=False).encode()
    if run.summary:
        files[run.files.summary.name] = (json.dumps(run.summary, indent=2) + "\n").encode()
    if CARD not in files:
        files[CARD] = model_card(folder, repository).encode()
    operations = [CommitOperationAdd(name, content) for name, content in files.items()]
    with _errors_in_one_line(repository):
        api = HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        if private and not api.repo_info(repository).private:  # an existing one does not become private
            raise CheckpointError(f"{repository} exists and is public; make it private on the hub, or name another")
        api.create_commit(repository, operations, commit_message=f"Add {source.config.get('data') or 'a'} model")
    return f"{api.endpoint}/{repository}"


LOGIN = "log in with `hf auth login` or set HF_TOKEN"
REASONS = {  # special cases first
    GatedRepoError: f"you must accept its terms on the hub first; {LOGIN}",
    RepositoryNotFoundError: f"the hub has no such model, or does not show it to you; {LOGIN}",
    RevisionNotFoundError: "the hub has no such revision",
    HFValidationError: "this is not a model name on the hub: ORGANISATION/NAME",
    LocalTokenNotFoundError: f"the hub requires a login; {LOGIN}",
    OfflineModeIsEnabled: "offline mode is on (HF_HUB_OFFLINE), so the hub is not contacted",
    LocalEntryNotFoundError: "it is not in the cache and cannot be fetched; fetch it elsewhere and name its folder",
    HfHubHTTPError: f"the hub refuses it, or fails; {LOGIN}",
}


@contextmanager
def _errors_in_one_line(name: str) -> Iterator[None]:
    """Turn anything that the hub's library raises into one line that says what to do."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # the library uses several others, for the network and for large files
        status = getattr(getattr(error.__cause__ or error, "response", None), "status_code", None)
        detail = f"the hub answers {status}" if status else shorten(str(error), 200)
        reason = next((text for kind, text in REASONS.items() if isinstance(error, kind)), "the hub cannot be reached")
        raise CheckpointError(f"{name}: {reason} ({detail})") from error
