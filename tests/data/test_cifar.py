"""CIFAR from disk and from hosts that fail: whole or not at all, and nothing unchecked is read.

The data is a set of a few images in CIFAR's own layout.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from tiny import Payload, names
from torchvision import datasets

from vit.data import ImageSet, cifar, content_hash
from vit.data.cifar import fetch_cifar, load_cifar
from vit.errors import DataError

ARCHIVE = "cifar-10-python.tar.gz"
BOTH = {ARCHIVE, "cifar-10-batches-py"}
CLASSES = {"cifar10": ["cat", "dog", "frog"], "cifar100": ["apple", "bee", "cup"]}


@dataclass
class Tiny:
    """A data set as files, archive and arrays.

    It has 5 batches of 2 training images (for CIFAR-100, 1 of 10) and 4 test images.
    """

    files: dict[str, bytes]
    archive: bytes
    train: np.ndarray
    test: np.ndarray
    labels: list[int]


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def make_tiny(name: str, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    real = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (count, 3072), dtype=np.uint8) for count in (10, 4))
    labels = [number % 3 for number in range(10)]
    key = "labels" if name == "cifar10" else "fine_labels"
    count = len(real.train_list)
    parts = [slice(i * 10 // count, (i + 1) * 10 // count) for i in range(count)]
    batches = [batch for batch, _ in real.train_list]
    files = {
        batch: pickle.dumps({"data": train[part], key: labels[part]})
        for batch, part in zip(batches, parts, strict=True)
    }
    files[real.test_list[0][0]] = pickle.dumps({"data": test, key: labels[:4]})
    files[real.meta["filename"]] = pickle.dumps(
        {real.meta["key"]: CLASSES[name], "coarse_label_names": ["other"]}
    )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for file, content in files.items():
            member = tarfile.TarInfo(f"{real.base_folder}/{file}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    archive = packed.getvalue()

    class Patched(real):  # type: ignore[misc, valid-type]
        url = "http://127.0.0.1:1/"
        tgz_md5 = md5(archive)
        train_list = [[batch, md5(files[batch])] for batch, _ in real.train_list]  # noqa: RUF012
        test_list = [[batch, md5(files[batch])] for batch, _ in real.test_list]  # noqa: RUF012
        meta = {**real.meta, "md5": md5(files[real.meta["filename"]])}  # noqa: RUF012

    monkeypatch.setattr(datasets, real.__name__, Patched)
    return Tiny(files, archive, train.reshape(-1, 3, 32, 32), test.reshape(-1, 3, 32, 32), labels)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make_tiny("cifar10", monkeypatch)


class Host(BaseHTTPRequestHandler):
    """Hosts by the first part of the path: one that delivers, and some that fail."""

    content = b""
    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        name = self.path.split("/")[1]
        self.requests.append(name)
        if name == "missing":
            return self.send_error(404)
        content = {"wrong": b"<html>please log in</html>", "cut": self.content[:9]}
        self.send_response(200)
        # a host that is cut off has promised more
        self.send_header("Content-Length", str(len(content.get(name, self.content))))
        self.end_headers()
        with suppress(ConnectionError):
            if name == "silent":
                self.wfile.write(self.content[:9])
                self.wfile.flush()
                time.sleep(1)
                return None
            self.wfile.write(content.get(name, self.content))

    def log_message(self, *_: object) -> None:
        pass


FAILURES = ("refused", "missing", "wrong", "cut", "silent")


@pytest.fixture
def host(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A function that lets these be the mirrors and, last, the authors' host, on this machine."""
    Host.content = tiny.archive
    Host.requests = []
    monkeypatch.setattr(cifar, "SILENCE", 0.3)
    with ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever).start()
        here = f"http://127.0.0.1:{server.server_address[1]}"

        def use(*names: str) -> None:
            # nothing listens at the port of a host that refuses
            places = [
                f"http://127.0.0.1:1/{name}" if name == "refused" else f"{here}/{name}"
                for name in names
            ]
            monkeypatch.setattr(cifar, "MIRRORS", places[:-1])
            monkeypatch.setattr(datasets.CIFAR10, "url", f"{places[-1]}/{ARCHIVE}")

        yield use
        server.shutdown()


def load(root: Path, name: str = "cifar10", download: bool = True) -> tuple[ImageSet, ImageSet]:
    assert fetch_cifar(name, root, download) == ""
    return load_cifar(name, root)


def refusal(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(root)
    return str(caught.value)


def write_folder(root: Path, tiny: Tiny) -> Path:
    folder = root / datasets.CIFAR10.base_folder
    folder.mkdir(parents=True)
    for name, content in tiny.files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", CLASSES)
def test_archive_beside_is_unpacked_and_read(name, tmp_path, monkeypatch):
    tiny = make_tiny(name, monkeypatch)
    dataset = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    (tmp_path / dataset.filename).write_bytes(tiny.archive)
    train, test = load(tmp_path, name, download=False)
    for split, images, labels in (
        (train, tiny.train, tiny.labels),
        (test, tiny.test, tiny.labels[:4]),
    ):
        assert (split.images.dtype, split.labels.dtype) == (torch.uint8, torch.int64)
        assert split.images.is_contiguous()
        np.testing.assert_array_equal(split.images.numpy(), images)
        assert split.labels.tolist() == labels
        assert split.class_names == tuple(CLASSES[name])
    assert train.content_hash == content_hash(train.images, train.labels) != test.content_hash
    assert names(tmp_path) == {dataset.filename, dataset.base_folder}
    assert names(tmp_path / dataset.base_folder) == set(tiny.files)


def test_folder_is_read_without_network(tmp_path, tiny, host):
    write_folder(tmp_path, tiny)
    train, _ = load(tmp_path)
    np.testing.assert_array_equal(train.images.numpy(), tiny.train)
    assert Host.requests == []


@pytest.mark.parametrize("failure", FAILURES)
def test_the_next_host_is_asked_after_a_failure_and_the_authors_last(failure, tmp_path, host):
    host(failure, "mirror", "authors")
    train, _ = load(tmp_path)
    assert len(train) == 10
    assert [name for name in Host.requests if name != failure] == ["mirror"]
    assert names(tmp_path) == BOTH


def test_if_no_host_delivers_the_reason_names_each(tmp_path, host):
    host(*FAILURES)
    problem = fetch_cifar("cifar10", tmp_path, download=True)
    assert str(tmp_path) in problem
    assert problem.count("127.0.0.1") == len(FAILURES)
    assert names(tmp_path) == set()


def test_without_a_network_all_hosts_are_known_soon(tmp_path, host, monkeypatch):
    """Packets that nobody answers: each host has `REACHED` seconds."""
    host(*FAILURES)
    waited = []

    def unanswered(address, timeout):
        waited.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(cifar.socket, "create_connection", unanswered)
    assert "timed out" in fetch_cifar("cifar10", tmp_path, download=True)
    assert sum(waited) / len(FAILURES) * 3 < 10
    assert Host.requests == []


def test_a_proxy_reaches_what_this_machine_does_not(tmp_path, host, monkeypatch):
    host("authors")
    monkeypatch.setenv("http_proxy", datasets.CIFAR10.url.rpartition("/authors/")[0])
    monkeypatch.setattr("urllib.request._opener", None)  # which has read the environment
    monkeypatch.setattr(datasets.CIFAR10, "url", f"http://nowhere.invalid/{ARCHIVE}")
    assert len(load(tmp_path)[0]) == 10


KILLED = """
import os, signal, sys
from pathlib import Path
import torchvision
from vit.data import cifar

def killed(parts, *_, **__):
    yield next(iter(parts))[:15]
    os.kill(os.getpid(), signal.SIGKILL)

cifar.MIRRORS = ()
torchvision.datasets.CIFAR10.url = sys.argv[2]
cifar.track = killed
cifar.fetch_cifar("cifar10", Path(sys.argv[1]), True)
"""


def test_after_a_download_that_was_killed_the_next_run_downloads(tmp_path, host):
    host("authors")
    command = [sys.executable, "-c", KILLED, str(tmp_path), datasets.CIFAR10.url]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert not BOTH & names(tmp_path)
    assert len(load(tmp_path)[0]) == 10
    assert Host.requests == ["authors"] * 2


def test_page_names_the_hosts_and_the_checksums_that_decide():
    page = (Path(__file__).parents[2] / "docs" / "built-in-data.md").read_text(encoding="utf-8")
    for data in (datasets.CIFAR10, datasets.CIFAR100):
        assert data.url.replace("http:", "https:") in page
        assert data.tgz_md5 in page
        for mirror in cifar.MIRRORS:
            assert f"{mirror.format(name=data.__name__.lower())}/{data.filename}" in page


def test_interrupt_leaves_nothing(tmp_path, host, monkeypatch):
    def interrupt_copying(parts, *_, **__) -> Iterator[bytes]:
        yield next(iter(parts))[:15]
        raise KeyboardInterrupt

    def interrupt_unpacking(source, to) -> None:
        (Path(to) / datasets.CIFAR10.base_folder).mkdir()
        raise KeyboardInterrupt

    host("good")
    for function, interrupt, remaining in (
        ("track", interrupt_copying, set()),
        ("extract_archive", interrupt_unpacking, {ARCHIVE}),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(cifar, function, interrupt)
            with pytest.raises(KeyboardInterrupt):
                load(tmp_path)
        assert names(tmp_path) == remaining


@pytest.mark.parametrize("place", ["a.JPG", "cat/a.png", "train/cat/a.png"])
def test_a_folder_of_images_receives_no_archive(place, tmp_path, host, monkeypatch):
    host("fine")
    photos = tmp_path / "photos"
    (photos / place).parent.mkdir(parents=True)
    (photos / place).touch()
    assert refusal(photos).startswith(f"{photos} holds images")
    assert not Host.requests

    # the default folder, in which other data may lie
    monkeypatch.chdir(tmp_path)
    photos.rename("data")
    assert len(load(Path("data"))[0]) == 10


def test_no_download_makes_no_request(tmp_path, host):
    host("good")
    assert "not in" in fetch_cifar("cifar10", tmp_path / "absent", download=False)
    assert Host.requests == []
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("data_batch_1", "foreign pickle"),
        ("batches.meta", "foreign pickle"),
        ("data_batch_1", "flipped bit"),
        ("batches.meta", "missing"),
    ],
)
def test_wrong_file_is_refused_before_unpickling(name, wrong, tmp_path, tiny):
    path = write_folder(tmp_path, tiny) / name
    if wrong == "foreign pickle":
        path.write_bytes(pickle.dumps(Payload(tmp_path / "executed")))
    elif wrong == "flipped bit":
        content = bytearray(tiny.files[name])
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    assert str(path.parent) in refusal(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_damaged_archive_is_refused_not_replaced(tmp_path, tiny, host):
    host("good")
    (tmp_path / ARCHIVE).write_bytes(tiny.archive[:-1])
    assert refusal(tmp_path).startswith(f"{tmp_path / ARCHIVE}: ")
    assert names(tmp_path) == {ARCHIVE}
    assert Host.requests == []
