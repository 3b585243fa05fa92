"""Laws of fetching: from one commit, once, and nothing that would run; failures are one line.

The hub is a small one on this machine.
"""

import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from small import SIZES, refused, same, transformers_model
from tiny import NORMALIZE

from vit.checkpoints import load_model, save_model
from vit.config import ViTConfig
from vit.encoder import VisionTransformer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as huggingface_hub needs: folders ORGANISATION/NAME of one commit."""

    folder: Path
    requests: ClassVar[list[str]]
    deny = 0  # a status to answer everything with

    def log_message(self, *_):
        """Silent."""

    def reply(self, status: int, content: bytes | dict | list = b"", **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def answer(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        download = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", self.path)
        listing = re.fullmatch(
            r"/api/models/([\w.-]+/[\w.-]+)/(?:revision|tree)/([^/?]+)(.*)", self.path
        )
        if self.deny or not (match := download or listing):
            return self.reply(self.deny or 404, {"error": "no"}, X_Error_Message="no")
        repository, revision, file = match.groups()
        if not (self.folder / repository).is_dir():
            return self.reply(404, X_Error_Code="RepoNotFound")
        if revision not in ("main", COMMIT):
            return self.reply(404, X_Error_Code="RevisionNotFound")
        if listing:
            names = [path.name for path in (self.folder / repository).iterdir()]
            files = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]
            return self.reply(
                200, files if "/tree/" in self.path else {"id": repository, "sha": COMMIT}
            )
        path = self.folder / repository / file
        if not path.is_file():
            return self.reply(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        data = path.read_bytes()
        return self.reply(
            200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=COMMIT
        )

    do_GET = do_HEAD = do_POST = answer  # noqa: N815


def use(monkeypatch, url: str, home: Path) -> None:
    """Set huggingface_hub's hub and its cache, as HF_ENDPOINT and HF_HOME would."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "token")
    monkeypatch.delenv("TORCH_HOME", raising=False)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = type("Hub", (Hub,), {"folder": tmp_path / "hub", "requests": []})
    hub.folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    use(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path / "home")
    yield hub
    server.shutdown()
    server.server_close()


def offline(monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def small(folder: Path, **settings) -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(**SIZES | settings))
    save_model(folder, model, NORMALIZE, (), "some | images *")
    return model


def test_a_model_is_fetched_once_and_then_from_the_cache(hub, tmp_path, monkeypatch):
    model = small(tmp_path / "hub" / "me" / "tiny")
    (tmp_path / "hub" / "me" / "tiny" / "secret.bin").write_text("not asked for")
    load_model("hf/me/tiny")
    requests = [request.split("/resolve/")[1] for request in hub.requests if "/resolve/" in request]
    assert not any(path.startswith("main/") for path in requests)  # all of one commit
    assert f"{COMMIT}/model.safetensors" in requests
    for name in ("hf/me/tiny", "hf/me/tiny@main"):
        got = load_model(name)
        same(got, model)
        assert got.origin.normalize.mean == NORMALIZE.mean
        assert got.origin.source == name
    offline(monkeypatch)
    hub.requests.clear()
    load_model("hf/me/tiny")
    assert not hub.requests
    assert not any("secret" in path.name for path in (tmp_path / "home").rglob("*"))


def test_parts_are_fetched(hub, tmp_path):
    theirs = transformers_model()
    theirs.save_pretrained(tmp_path / "hub" / "me" / "parts", max_shard_size="40KB")
    assert (tmp_path / "hub" / "me" / "parts" / "model.safetensors.index.json").exists()
    assert torch.equal(load_model("hf/me/parts").norm.weight, theirs.layernorm.weight)


def test_hostile_pickles_from_a_hub_do_not_run(hub, tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'marker'}",)

    for name in ("me/bin", "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"):
        (tmp_path / "hub" / name).mkdir(parents=True)
        torch.save(
            {"a": torch.ones(1), "b": Hostile()}, tmp_path / "hub" / name / "pytorch_model.bin"
        )
    assert "posix.system, which weights do not need; nothing in it was run" in refused("hf/me/bin")
    refused("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert not (tmp_path / "marker").exists()


def test_what_the_hub_does_not_have_is_one_line(hub, tmp_path):
    small(tmp_path / "hub" / "me" / "tiny")
    (tmp_path / "hub" / "me" / "bare").mkdir()
    (tmp_path / "hub" / "me" / "bare" / "config.json").write_text("{}")
    for name, reason in (
        ("hf/me/nothing", "hf/me/nothing: RepositoryNotFoundError: "),
        ("hf/me/tiny@v9", "RevisionNotFoundError: "),
        ("hf/me/bare", "none of model.safetensors"),
        ("timm/resnet18.a1_in1k", "plain vision transformer"),
    ):
        assert reason in refused(name)
    hub.deny = 403
    assert "403" in refused("hf/me/other")  # and not that the network is missing


def impatient(monkeypatch) -> None:
    """The library tries for half a minute."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.mark.parametrize("cut_off", [offline, impatient])
@pytest.mark.parametrize("name", ["hf/me/tiny", "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"])
def test_no_network_and_no_cache_is_one_line(name, cut_off, tmp_path, monkeypatch):
    use(monkeypatch, "http://127.0.0.1:9", tmp_path)
    cut_off(monkeypatch)
    assert "LocalEntryNotFoundError: " in refused(name)


def test_timm_names_are_fetched_from_the_hub(hub, tmp_path):
    import timm

    torch.manual_seed(0)
    name = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    theirs = timm.create_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    timm.models.save_for_hf(theirs, tmp_path / "hub" / name, safe_serialization=True)
    ours = load_model(name, image_size=32, patch_size=4, num_classes=0)
    assert ours.origin.normalize.mean == [0.5, 0.5, 0.5]
    assert torch.equal(ours.blocks[3].attn.qkv.weight, theirs.blocks[3].attn.qkv.weight)
    assert ours.config.num_heads == 3
    assert ours(torch.randn(1, 3, 32, 32)).shape == (1, 65, 192)
    assert any(request.startswith("GET /timm/vit_tiny") for request in hub.requests)
