"""CIFAR from disk and from a server on this machine, with a data set of a few images in CIFAR's own layout."""

from __future__ import annotations

import hashlib
import io
import pickle
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets
from torchvision.datasets.utils import extract_archive

from vit.data import cifar
from vit.data.cifar import CifarUnavailable, load_cifar
from vit.data.images import DataError, content_hash

CLASSES = {"cifar10": ["cat", "dog", "frog"], "cifar100": ["apple", "bee", "cup"]}


@dataclass
class Tiny:
    """A data set of 5 batches of 2 training images (or 1 of 10) and 4 test images, as files, archive and arrays."""

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
    files = {
        batch: pickle.dumps({"data": train[i * 10 // count : (i + 1) * 10 // count],
                             key: labels[i * 10 // count : (i + 1) * 10 // count]})
        for i, (batch, _) in enumerate(real.train_list)
    }  # fmt: skip
    files[real.test_list[0][0]] = pickle.dumps({"data": test, key: labels[:4]})
    files[real.meta["filename"]] = pickle.dumps({real.meta["key"]: CLASSES[name], "coarse_label_names": ["other"]})
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


@dataclass
class Server:
    """Answers /HOW/... in the way HOW says."""

    url: str
    content: bytes = b""
    requests: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def server(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(self.path)
            how = self.path.split("/")[1]
            body = b"<html>please log in</html>" if how == "wrong" else server.content
            if how == "silent":
                server.closing.wait(20)
                return
            self.send_response(404 if how == "missing" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:100] if how in ("truncated", "stalling") else body)
            if how == "stalling":
                server.closing.wait(20)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(cifar, "TIMEOUT", 0.5)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{http.server_port}", tiny.archive)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.closing.set()
    http.shutdown()
    thread.join()
    http.server_close()


def use(monkeypatch: pytest.MonkeyPatch, *urls: str) -> None:
    """Let the mirrors and, last, the data set's own host be `urls`."""
    monkeypatch.setattr(cifar, "MIRRORS", urls[:-1])
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{urls[-1]}/{datasets.CIFAR10.filename}")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write_folder(root: Path, tiny: Tiny) -> Path:
    folder = root / datasets.CIFAR10.base_folder
    folder.mkdir(parents=True)
    for name, content in tiny.files.items():
        (folder / name).write_bytes(content)
    return folder


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_archive_beside_is_unpacked_and_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = make_tiny(name, monkeypatch)
    dataset = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    (tmp_path / dataset.filename).write_bytes(tiny.archive)
    train, test = load_cifar(name, tmp_path, download=False)
    assert train.images.dtype == torch.uint8
    assert train.images.is_contiguous()
    assert train.labels.dtype == torch.int64
    np.testing.assert_array_equal(train.images.numpy(), tiny.train)
    np.testing.assert_array_equal(test.images.numpy(), tiny.test)
    assert train.labels.tolist() == tiny.labels
    assert test.labels.tolist() == tiny.labels[:4]
    assert train.class_names == test.class_names == tuple(CLASSES[name])
    assert train.content_hash == content_hash(train.images, train.labels) != test.content_hash
    assert names(tmp_path) == {dataset.filename, dataset.base_folder}
    assert names(tmp_path / dataset.base_folder) == set(tiny.files)


def test_folder_is_read_without_network(tmp_path: Path, tiny: Tiny, server: Server) -> None:
    write_folder(tmp_path, tiny)
    train, _ = load_cifar("cifar10", tmp_path, download=True)
    np.testing.assert_array_equal(train.images.numpy(), tiny.train)
    assert server.requests == []


def test_download(tmp_path: Path, tiny: Tiny, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, f"{server.url}/good", f"{server.url}/also-good")
    root = tmp_path / "new" / "data"
    train, test = load_cifar("cifar10", root, download=True)
    np.testing.assert_array_equal(train.images.numpy(), tiny.train)
    assert len(test) == 4
    assert server.requests == ["/good/cifar-10-python.tar.gz"]
    assert names(root) == {"cifar-10-python.tar.gz", "cifar-10-batches-py"}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("refused", "Connection refused"),
        ("missing", "HTTP 404"),
        ("wrong", "wrong content"),
        ("truncated", "broke off after 100 of"),
        ("silent", "no answer"),
        ("stalling", "no answer"),
    ],
)
def test_next_mirror(
    how: str,
    reason: str,
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use(monkeypatch, closed_port() if how == "refused" else f"{server.url}/{how}", f"{server.url}/good")
    train, _ = load_cifar("cifar10", tmp_path, download=True)
    assert len(train) == 10
    assert server.requests[-1] == "/good/cifar-10-python.tar.gz"
    assert reason in caplog.text
    assert names(tmp_path) == {"cifar-10-python.tar.gz", "cifar-10-batches-py"}


def test_no_mirror_delivers(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, closed_port(), *(f"{server.url}/{how}" for how in ("missing", "wrong", "truncated", "silent")))
    with pytest.raises(CifarUnavailable) as caught:
        load_cifar("cifar10", tmp_path, download=True)
    message = str(caught.value)
    for part in ("refused", "HTTP 404", "wrong content", "broke off", "no answer", str(tmp_path), "put cifar-10"):
        assert part in message
    assert "\n" not in message
    assert names(tmp_path) == set()


def test_endless_content_is_cut_off(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, f"{server.url}/good")
    monkeypatch.setattr(cifar, "MAX_BYTES", 100)
    with pytest.raises(CifarUnavailable, match="far too long"):
        load_cifar("cifar10", tmp_path, download=True)
    assert names(tmp_path) == set()


def test_interrupt_leaves_no_partial_file(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(url: str) -> Iterator[bytes]:
        yield b"the first bytes"
        raise KeyboardInterrupt

    monkeypatch.setattr(cifar, "_received", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_cifar("cifar10", tmp_path, download=True)
    assert names(tmp_path) == set()


def test_interrupted_unpacking_leaves_no_folder(tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(archive: Path, to: str) -> None:
        (Path(to) / datasets.CIFAR10.base_folder).mkdir()
        raise KeyboardInterrupt

    (tmp_path / "cifar-10-python.tar.gz").write_bytes(tiny.archive)
    monkeypatch.setattr(cifar, "extract_archive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_cifar("cifar10", tmp_path, download=False)
    assert names(tmp_path) == {"cifar-10-python.tar.gz"}


def test_two_processes_may_unpack_at_once(tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def beaten(archive: Path, to: str) -> None:
        extract_archive(archive, to)
        write_folder(tmp_path, tiny)  # by the other one

    (tmp_path / "cifar-10-python.tar.gz").write_bytes(tiny.archive)
    monkeypatch.setattr(cifar, "extract_archive", beaten)
    assert len(load_cifar("cifar10", tmp_path, download=False)[0]) == 10
    assert names(tmp_path) == {"cifar-10-python.tar.gz", "cifar-10-batches-py"}


def test_no_download_makes_no_request(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, f"{server.url}/good")
    with pytest.raises(CifarUnavailable, match=r"data\.download: true") as caught:
        load_cifar("cifar10", tmp_path / "absent", download=False)
    assert "\n" not in str(caught.value)
    assert server.requests == []
    assert not (tmp_path / "absent").exists()


class Payload:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["data_batch_1", "data_batch_5", "test_batch", "batches.meta"])
@pytest.mark.parametrize("wrong", ["foreign pickle", "flipped bit", "missing"])
def test_wrong_file_is_refused_before_unpickling(
    name: str, wrong: str, tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_folder(tmp_path, tiny) / name
    content = bytearray(tiny.files[name])
    content[len(content) // 2] ^= 1
    path.write_bytes(content if wrong == "flipped bit" else pickle.dumps(Payload(tmp_path / "executed")))
    if wrong == "missing":
        path.unlink()
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(DataError) as caught:
        load_cifar("cifar10", tmp_path, download=True)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, CifarUnavailable)
    assert not (tmp_path / "executed").exists()


def test_damaged_archive_is_refused_not_replaced(
    tmp_path: Path, tiny: Tiny, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, f"{server.url}/good")
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(tiny.archive[:-1])
    with pytest.raises(DataError, match="checksum is wrong") as caught:
        load_cifar("cifar10", tmp_path, download=True)
    assert not isinstance(caught.value, CifarUnavailable)
    assert names(tmp_path) == {"cifar-10-python.tar.gz"}
    assert server.requests == []


def test_unusable_root_is_named(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, f"{server.url}/good")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"data\.root") as caught:
        load_cifar("cifar10", tmp_path / "file", download=True)
    assert not isinstance(caught.value, CifarUnavailable)
    assert "\n" not in str(caught.value)
