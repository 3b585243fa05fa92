"""CIFAR from disk and from hosts that fail: whole or not at all, and nothing unchecked is read.

The data is a set of a few images in CIFAR's own layout.
"""

import hashlib
import io
import pickle
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tiny import Payload, names, noise
from torch import Tensor
from torchvision import datasets

from vit.data import ImageSet, cifar, content_hash
from vit.data.cifar import fetch_cifar, load_cifar
from vit.errors import DataError

ARCHIVE = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
CLASSES = {"cifar10": ["cat", "dog", "frog"], "cifar100": ["apple", "bee", "cup"]}


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def make_tiny(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, Tensor]:
    """A data set of 10 training images and 4 test images: its archive and pixels."""
    real = getattr(datasets, name.upper())
    images = noise(14, size=(32, 32))
    key = "labels" if name == "cifar10" else "fine_labels"
    train = [batch for batch, _ in real.train_list]
    parts = [*torch.arange(10).chunk(len(train)), torch.arange(10, 14)]
    files = {real.meta["filename"]: pickle.dumps({real.meta["key"]: CLASSES[name]})}
    for batch, rows in zip([*train, real.test_list[0][0]], parts, strict=True):
        content = {"data": images[rows].flatten(1).numpy(), key: (rows % 3).tolist()}
        files[batch] = pickle.dumps(content)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for file, content in files.items():
            member = tarfile.TarInfo(f"{real.base_folder}/{file}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    archive = packed.getvalue()
    monkeypatch.setattr(real, "tgz_md5", md5(archive))
    for files_of in ("train_list", "test_list"):
        sums = [[batch, md5(files[batch])] for batch, _ in getattr(real, files_of)]
        monkeypatch.setattr(real, files_of, sums)
    monkeypatch.setattr(real, "meta", real.meta | {"md5": md5(files[real.meta["filename"]])})
    return archive, images


class Host(BaseHTTPRequestHandler):
    """Hosts by the first part of the path: one that delivers, and some that fail."""

    content = b""
    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        name = self.path.split("/")[1]
        self.requests.append(name)
        if name == "missing":
            return self.send_error(404)
        content = b"<html>please log in</html>" if name == "wrong" else self.content
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        # who is cut off or falls silent has promised more
        self.wfile.write(content[: 9 if name in ("cut", "silent") else None])
        if name == "silent":
            self.wfile.flush()
            time.sleep(1)
        return None

    def log_message(self, *_: object) -> None:
        pass


FAILURES = ("refused", "missing", "wrong", "cut", "silent")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A function that lets these be the mirrors and, last, the authors' host, on this machine."""
    Host.content, _ = make_tiny("cifar10", monkeypatch)
    Host.requests = []
    monkeypatch.setattr(cifar, "SILENCE", 0.3)
    with ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        here = f"http://127.0.0.1:{server.server_address[1]}"

        def use(*names: str) -> None:
            # nothing listens at the port of a host that refuses
            place = {"refused": "http://127.0.0.1:1"}
            urls = [f"{place.get(name, here)}/{name}/{ARCHIVE}" for name in names]
            monkeypatch.setattr(cifar, "MIRRORS", urls[:-1])
            monkeypatch.setattr(datasets.CIFAR10, "url", urls[-1])

        yield use
        server.shutdown()


def load(root: Path, name: str = "cifar10") -> tuple[ImageSet, ImageSet]:
    assert fetch_cifar(name, root, download=True) == ""
    return load_cifar(name, root)


@pytest.mark.parametrize("name", CLASSES)
def test_archive_beside_is_unpacked_and_read_without_network(name, tmp_path, monkeypatch):
    archive, images = make_tiny(name, monkeypatch)
    monkeypatch.setattr(cifar, "urlopen", None)
    dataset = getattr(datasets, name.upper())
    (tmp_path / dataset.filename).write_bytes(archive)
    # the second time from the folder alone
    for _ in range(2):
        train, test = load(tmp_path, name)
        for split, start, stop in ((train, 0, 10), (test, 10, 14)):
            assert torch.equal(split.images, images[start:stop])
            assert split.images.is_contiguous()
            assert split.labels.tolist() == [number % 3 for number in range(start, stop)]
            assert split.class_names == tuple(CLASSES[name])
            assert split.content_hash == content_hash(split.images, split.labels)
        (tmp_path / dataset.filename).unlink(missing_ok=True)
        assert names(tmp_path) == {dataset.base_folder}


@pytest.mark.parametrize("failure", FAILURES)
def test_the_next_host_is_asked_after_a_failure_and_the_authors_last(failure, tmp_path, host):
    host(failure, "mirror", "authors")
    train, _ = load(tmp_path)
    assert len(train) == 10
    assert [name for name in Host.requests if name != failure] == ["mirror"]
    assert names(tmp_path) == {ARCHIVE, FOLDER}


def test_if_no_host_delivers_the_reason_names_each(tmp_path, host):
    host(*FAILURES)
    problem = fetch_cifar("cifar10", tmp_path, download=True)
    assert str(tmp_path) in problem
    assert problem.count("127.0.0.1") == len(FAILURES)
    for reason in ("Connection refused", "404", "wrong content", "timed out"):
        assert reason in problem
    assert names(tmp_path) == set()


def test_without_download_no_host_is_asked_and_a_damaged_archive_is_refused(tmp_path, host):
    host("good")
    assert "not in" in fetch_cifar("cifar10", tmp_path / "absent", download=False)
    (tmp_path / ARCHIVE).write_bytes(Host.content[:-1])
    with pytest.raises(DataError, match=f"{tmp_path / ARCHIVE}: "):
        load(tmp_path)
    assert names(tmp_path) == {ARCHIVE}
    assert Host.requests == []


def test_a_folder_of_images_receives_no_archive(tmp_path, host, monkeypatch):
    host("fine")
    photos = tmp_path / "photos"
    (photos / "train" / "cat").mkdir(parents=True)
    (photos / "train" / "cat" / "a.JPG").touch()
    with pytest.raises(DataError, match=f"{photos} contains images"):
        load(photos)
    assert not Host.requests

    # the default folder, in which other data may lie
    monkeypatch.chdir(tmp_path)
    photos.rename("data")
    assert len(load(Path("data"))[0]) == 10


@pytest.mark.parametrize("name", ["data_batch_1", "batches.meta"])
def test_a_wrong_file_is_not_unpickled_and_is_unpacked_again_or_refused(name, tmp_path, host):
    host("fine")
    pixels = load(tmp_path)[0].images
    path = tmp_path / FOLDER / name
    for again in (True, False):
        path.write_bytes(pickle.dumps(Payload(tmp_path / "executed")))
        if again:
            assert torch.equal(load(tmp_path)[0].images, pixels)
        else:
            (tmp_path / ARCHIVE).unlink()
            with pytest.raises(DataError, match=FOLDER):
                load(tmp_path)
    assert not (tmp_path / "executed").exists()
