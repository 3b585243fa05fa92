"""Models from a hub and to it, through huggingface_hub: its cache, its login, its settings (HF_HOME, HF_TOKEN, HF_ENDPOINT)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from vit.checkpoints.card import model_card
from vit.checkpoints.formats.native import FORMAT
from vit.checkpoints.reading import FOLDER_FILES, CheckpointError, read_checkpoint
from vit.errors import one_line
from vit.pretrained import CARD
from vit.runs import RunFiles, read_mapping, without_paths

_FILES = RunFiles(Path())
# Published of a run: never its training states, which hold the optimizer too and are many times as large.
PUBLISHED = [path.name for path in (
    _FILES.model, _FILES.model_config, _FILES.config, _FILES.summary, _FILES.metrics, _FILES.curves,
    _FILES.reconstructions, _FILES.attention, _FILES.dynamics_picture, _FILES.confusion, _FILES.reliability,
)]  # fmt: skip
# Of those, the ones that may hold paths of the machine, which are removed.
WITH_PATHS = (_FILES.config.name, _FILES.summary.name)


def download(name: str) -> Path:
    """Fetch a model's weights and settings, and nothing else, into huggingface_hub's cache.

    All files are of one commit, also when the repository changes meanwhile.

    Args:
        name: "ORGANISATION/NAME", or "ORGANISATION/NAME@REVISION".

    Returns:
        The folder where they are.

    Raises:
        CheckpointError: there is no such model, it may not be read, or there is no network and it is not in the cache.
    """
    from huggingface_hub import _CACHED_NO_EXIST, constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repository, _, asked = name.partition("@")
    revision = asked or None

    def fetch(file: str, needed: bool = True) -> Path | None:
        nonlocal revision
        try:
            path = Path(hf_hub_download(repository, file, revision=revision))
        except LocalEntryNotFoundError:  # nobody could be asked, but it may be known from before that there is none
            if try_to_load_from_cache(repository, file, revision=revision) is _CACHED_NO_EXIST:
                return None
            if (
                constants.HF_HUB_OFFLINE and not needed
            ):  # other tools that filled the cache did not note what there is not
                return None
            raise
        except EntryNotFoundError:
            return None
        revision = path.parent.name  # snapshots/COMMIT: from here on, whatever the branch does
        return path

    with _explained(f"hf/{name}"):
        fetch("config.json")
        fetch("preprocessor_config.json", needed=False)
        main = next(
            (path for file in FOLDER_FILES if (path := fetch(file, file == FOLDER_FILES[-1])) is not None), None
        )
        if main is None:
            raise CheckpointError(f"hf/{name} holds none of {', '.join(FOLDER_FILES)}")
        if main.name.endswith(".index.json"):
            for part in _parts(main):
                if fetch(part) is None:
                    raise CheckpointError(f"hf/{name} lacks {part}, which its index names")
        return main.parent


def push_to_hub(folder: str | Path, repository: str, private: bool = False) -> str:
    """Publish a run, or a model that `convert --to safetensors` wrote, with a model card, in one commit.

    A README.md that is in the folder is taken as the card; else `model_card` writes one.

    Args:
        folder: of the run.
        repository: "ORGANISATION/NAME"; it is made where it does not exist.
        private: whether it is made for its owner alone.

    Returns:
        Where it can be seen.

    Raises:
        CheckpointError: the folder holds no whole model of ours, it is to be private and the repository is public, or the hub
            refuses or cannot be reached. Nothing is uploaded then.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    folder = Path(folder)
    source = read_checkpoint(folder)
    ours = source.config.get("format") == FORMAT and source.verified
    if not ours or source.files != (
        folder / FOLDER_FILES[0],
    ):  # of a file, or under another name, the weights would stay here
        raise CheckpointError(
            f"{folder} is no folder with a model in the project's own format; `vit checkpoint convert` writes one"
        )
    if repository.count("/") != 1:
        raise CheckpointError(f"{repository!r} is no name of a model on the hub: ORGANISATION/NAME")
    files: dict[str, Path | bytes] = {name: folder / name for name in PUBLISHED if (folder / name).is_file()}
    files |= {name: _public(folder / name) for name in WITH_PATHS if name in files}
    card = folder / CARD
    files[CARD] = card if card.is_file() else model_card(folder, repository).encode()
    with _explained(repository):
        api = HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        if private and not api.repo_info(repository).private:  # one that exists stays as public as it is
            raise CheckpointError(f"{repository} exists and is public; make it private on the hub, or name another")
        operations = [
            CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
            for name, content in files.items()
        ]
        api.create_commit(repository, operations, commit_message=f"Add {source.config.get('data') or 'a'} model")
        return f"{api.endpoint}/{repository}"


def _public(path: Path) -> bytes:
    """config.yaml or summary.json without what says where things lie on this machine; a run's files stay as they are."""
    as_json = path.suffix == ".json"
    values = without_paths(read_mapping(path))
    return (json.dumps(values, indent=2) + "\n" if as_json else yaml.safe_dump(values, sort_keys=False)).encode()


def _parts(index: Path) -> list[str]:
    """The names of the files of a checkpoint in parts.

    Raises:
        CheckpointError: the index is damaged, or names what is no file beside it.
    """
    names = read_mapping(index, CheckpointError).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index} is damaged: no weight_map")
    for part in names.values():
        if not isinstance(part, str) or Path(part).name != part or part == "..":
            raise CheckpointError(f"{index} names the part {part!r}, which is not a file beside it")
    return sorted(set(names.values()))


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Whatever the hub's library raises, as one line that says what to do."""
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

    login = "`hf auth login`, or HF_TOKEN, says who you are"
    try:
        yield
    except GatedRepoError as error:
        raise CheckpointError(f"{name} is only given to those who accepted its terms; {login}") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"{name}: the hub has no such model, or does not show it to you; {login}") from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{name}: the hub has no such revision") from error
    except OfflineModeIsEnabled as error:
        raise CheckpointError(f"{name}: offline mode is on (HF_HUB_OFFLINE), so the hub is not asked") from error
    except LocalEntryNotFoundError as error:  # also where the hub answered, with an error of its own
        status = getattr(getattr(error.__cause__, "response", None), "status_code", None)
        reason = f"the hub answers {status}" if status else "no network, or offline mode"
        ways = "fetch it where there is a network, and give its folder"
        raise CheckpointError(f"{name} is not in the cache and cannot be fetched ({reason}); {ways}") from error
    except LocalTokenNotFoundError as error:
        raise CheckpointError(f"{name}: the hub wants to know who you are; {login}") from error
    except HFValidationError as error:
        raise CheckpointError(f"{name!r} is no name of a model on the hub: ORGANISATION/NAME") from error
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise CheckpointError(
                f"{name}: the hub does not allow it ({status}); {login}, with the right to write"
            ) from error
        raise CheckpointError(f"{name}: the hub answers: {one_line(str(error))[:200]}") from error
    except CheckpointError:
        raise
    except Exception as error:  # below the library are several others, for the network and for large files
        if isinstance(error, OSError) and error.filename and error.strerror:  # a full disk, a closed folder
            raise CheckpointError(f"{name}: {error.filename}: {error.strerror}") from error
        raise CheckpointError(f"{name}: the hub cannot be reached: {one_line(str(error))[:200]}") from error
