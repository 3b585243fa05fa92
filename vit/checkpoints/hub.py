"""Models from a hub, through huggingface_hub.

Its cache, its login and its settings (HF_HOME, HF_TOKEN, HF_ENDPOINT) are used.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download

from vit.checkpoints.reading import FOLDER_FILES
from vit.errors import CheckpointError, shortened

# fetched files: settings and weights as safetensors, in parts with an index; or else a pickle
FETCHED = (
    ["config.json", "preprocessor_config.json", "model.safetensors*", "model-*.safetensors"],
    ["pytorch_model.bin*", "pytorch_model-*.bin"],
)


def download(name: str) -> Path:
    """Fetch only a model's weights and settings into huggingface_hub's cache, all from one commit.

    Args:
        name: "hf/ORGANISATION/NAME", or "hf/ORGANISATION/NAME@REVISION", or "timm/NAME".

    Returns:
        Their folder.
    """
    repository, _, revision = name.removeprefix("hf/").partition("@")
    if name.startswith("timm/"):
        from vit.checkpoints.formats.timm_models import hub_name  # with timm: takes seconds

        repository = hub_name(name)
    try:
        # safetensors, else a pickle of the same commit, which the name of the folder is
        for patterns in FETCHED:
            folder = Path(
                snapshot_download(repository, revision=revision or None, allow_patterns=patterns)
            )
            revision = folder.name
            if any((folder / name).is_file() for name in FOLDER_FILES):
                return folder
        # without a network, the library returns what its cache has of the commit
        raise FileNotFoundError(
            f"no {', '.join(FOLDER_FILES)} is in the cache ({folder}), nor fetched: "
            "the hub cannot be reached, or its repository has none"
        )
    # the library uses several other libraries, for the network and for large files
    except Exception as error:
        problem = f"{type(error).__name__}: {shortened(str(error), 600)}"
        raise CheckpointError(f"{name}: {problem}") from error
