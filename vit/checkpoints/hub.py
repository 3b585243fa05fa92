"""Models from a hub, through huggingface_hub.

Its cache, its login and its settings (HF_HOME, HF_TOKEN, HF_ENDPOINT) are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import snapshot_download
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

from vit.checkpoints.reading import FOLDER_FILES, shorten
from vit.errors import CheckpointError

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
        CheckpointError: there is no such model, it may not be read, or there is no network and it
            is not in the cache.
    """
    repository, _, revision = name.partition("@")
    with _errors_in_one_line(f"hf/{name}"):
        # safetensors, else a pickle of the same commit
        snapshot = snapshot_download(
            repository, revision=revision or None, allow_patterns=SETTINGS + SAFETENSORS
        )
        folder = Path(snapshot)
        if not _has_weights(folder):  # the name of the folder is the commit
            snapshot_download(repository, revision=folder.name, allow_patterns=PICKLES)
    if not _has_weights(folder):
        raise CheckpointError(f"hf/{name} holds none of {', '.join(FOLDER_FILES)}")
    return folder


def _has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FOLDER_FILES)


LOGIN = "log in with `hf auth login` or set HF_TOKEN"
# special cases first
REASONS = {
    GatedRepoError: f"you must accept its terms on the hub first; {LOGIN}",
    RepositoryNotFoundError: f"the hub has no such model, or does not show it to you; {LOGIN}",
    RevisionNotFoundError: "the hub has no such revision",
    HFValidationError: "this is not a model name on the hub: ORGANISATION/NAME",
    LocalTokenNotFoundError: f"the hub requires a login; {LOGIN}",
    OfflineModeIsEnabled: "offline mode is on (HF_HUB_OFFLINE), so the hub is not contacted",
    LocalEntryNotFoundError:
        "it is not in the cache and cannot be fetched; fetch it elsewhere and name its folder",
    HfHubHTTPError: f"the hub refuses it, or fails; {LOGIN}",
}  # fmt: skip


@contextmanager
def _errors_in_one_line(name: str) -> Iterator[None]:
    """Turn anything that the hub's library raises into one line that says what to do."""
    try:
        yield
    except CheckpointError:
        raise
    # the library uses several others, for the network and for large files
    except Exception as error:
        # what the hub answers, if it does
        detail = shorten(str(error), 200)
        response = getattr(error.__cause__ or error, "response", None)
        status = getattr(response, "status_code", None)
        if status:
            detail = f"the hub answers {status}"

        reason = "the hub cannot be reached"
        for kind, text in REASONS.items():
            if isinstance(error, kind):
                reason = text
                break
        raise CheckpointError(f"{name}: {reason} ({detail})") from error
