"""CIFAR from disk and from hosts that fail: whole or not at all, and nothing unchecked is read.

The data is a set of a few images in CIFAR's own layout.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.error import HTTPError, URLError
from urllib.request import Request

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


# what a host that fails raises or sends
FAILURES = {
    "refused": URLError(ConnectionRefusedError(111, "Connection refused")),
    "missing": HTTPError("", 404, "Not Found", None, None),  # type: ignore[arg-type]
    "wrong": b"<html>please log in</html>",
    "truncated": b"\x1f\x8b",
    "silent": TimeoutError("timed out"),
}


@pytest.fixture
def requests(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses requested; a host called like a failure fails so, any other one delivers."""
    requests: list[str] = []

    class Response(io.BytesIO):
        length = None

    def answer(request: Request, timeout: float) -> Response:
        requests.append(request.full_url)
        answer = FAILURES.get(request.host, tiny.archive)
        if isinstance(answer, Exception):
            raise answer
        return Response(answer)

    monkeypatch.setattr(cifar, "urlopen", answer)
    return requests


def use(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Let these be the authors' host and the mirrors."""
    authors, *mirrors = (f"http://{host}" for host in hosts)
    monkeypatch.setattr(cifar, "MIRRORS", mirrors)
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{authors}/{ARCHIVE}")


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


def test_folder_is_read_without_network(tmp_path, tiny, requests):
    write_folder(tmp_path, tiny)
    train, _ = load(tmp_path)
    np.testing.assert_array_equal(train.images.numpy(), tiny.train)
    assert requests == []


@pytest.mark.parametrize("failure", FAILURES)
def test_the_next_host_is_tried_after_a_failure(failure, tmp_path, requests, monkeypatch):
    use(monkeypatch, failure, "good")
    train, _ = load(tmp_path)
    assert len(train) == 10
    assert requests[1:] == [f"http://good/{ARCHIVE}"]
    assert names(tmp_path) == BOTH


def test_if_no_host_delivers_the_reason_names_each(tmp_path, requests, monkeypatch):
    use(monkeypatch, *FAILURES)
    problem = fetch_cifar("cifar10", tmp_path, download=True)
    for part in (str(tmp_path), *(f"{host}: " for host in FAILURES)):
        assert part in problem
    assert names(tmp_path) == set()


class Host(BaseHTTPRequestHandler):
    """A host that sends its content at once, or, on a path that begins with /slow, in pieces."""

    content = b""
    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.requests.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        content = self.content
        with suppress(ConnectionError):
            if self.path.startswith("/slow"):
                for _ in range(4):
                    self.wfile.write(content[:1])
                    self.wfile.flush()
                    time.sleep(0.1)
                    content = content[1:]
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server on this machine, as "127.0.0.1:port"."""
    Host.content = tiny.archive
    Host.requests = []
    monkeypatch.setattr(cifar, "PATIENCE", 0.2)
    with ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("hosts", "requests"),
    [
        ("fast mirror", "/fast"),
        ("slow mirror", "/slow /mirror"),
        # slow is better than nothing
        ("slow", "/slow /slow"),
    ],
)
def test_authors_host_comes_first_and_a_mirror_replaces_it_if_it_is_slow(
    hosts, requests, tmp_path, host, monkeypatch
):
    use(monkeypatch, *(f"{host}/{name}" for name in hosts.split()))
    train, _ = load(tmp_path)
    assert len(train) == 10
    assert Host.requests == [f"{path}/{ARCHIVE}" for path in requests.split()]
    assert names(tmp_path) == BOTH


def test_page_names_the_hosts_and_the_checksums_that_decide():
    page = (Path(__file__).parents[2] / "docs" / "built-in-data.md").read_text(encoding="utf-8")
    for data in (datasets.CIFAR10, datasets.CIFAR100):
        assert data.url.replace("http:", "https:") in page
        assert data.tgz_md5 in page
        for mirror in cifar.MIRRORS:
            assert f"{mirror.format(name=data.__name__.lower())}/{data.filename}" in page


def test_interrupt_leaves_nothing(tmp_path, requests, monkeypatch):
    def interrupt_copying(parts, *_) -> Iterator[bytes]:
        yield next(iter(parts))[:15]
        raise KeyboardInterrupt

    def interrupt_unpacking(source, to) -> None:
        (Path(to) / datasets.CIFAR10.base_folder).mkdir()
        raise KeyboardInterrupt

    use(monkeypatch, "good")
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
def test_a_folder_of_images_receives_no_archive(place, tmp_path, requests, monkeypatch):
    use(monkeypatch, "fine")
    photos = tmp_path / "photos"
    (photos / place).parent.mkdir(parents=True)
    (photos / place).touch()
    assert refusal(photos).startswith(f"{photos} holds images")
    assert not requests

    # the default folder, in which other data may lie
    monkeypatch.chdir(tmp_path)
    photos.rename("data")
    assert len(load(Path("data"))[0]) == 10


def test_no_download_makes_no_request(tmp_path, requests, monkeypatch):
    use(monkeypatch, "good")
    assert "not in" in fetch_cifar("cifar10", tmp_path / "absent", download=False)
    assert requests == []
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
def test_wrong_file_is_refused_before_unpickling(name, wrong, tmp_path, tiny, monkeypatch):
    path = write_folder(tmp_path, tiny) / name
    if wrong == "foreign pickle":
        path.write_bytes(pickle.dumps(Payload(tmp_path / "executed")))
    elif wrong == "flipped bit":
        content = bytearray(tiny.files[name])
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled"))
    assert str(path) in refusal(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_damaged_archive_is_refused_not_replaced(tmp_path, tiny, requests, monkeypatch):
    use(monkeypatch, "good")
    (tmp_path / ARCHIVE).write_bytes(tiny.archive[:-1])
    assert refusal(tmp_path).startswith(f"{tmp_path / ARCHIVE}: ")
    assert names(tmp_path) == {ARCHIVE}
    assert requests == []
