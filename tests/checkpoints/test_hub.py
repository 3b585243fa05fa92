"""Models from a hub and to it: fetched from a small hub on this machine, published to a stand-in for its client."""

import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from unittest.mock import create_autospec

import pytest
import torch
import yaml
from huggingface_hub import HfApi
from small import SIZES, refused, same, transformers_model
from small_runs import make_run
from tiny import NORMALIZE

from vit.checkpoints import CheckpointError, load_model, save_model
from vit.checkpoints.card import model_card
from vit.checkpoints.hub import push_to_hub
from vit.cli import main
from vit.config import ViTConfig
from vit.encoder import VisionTransformer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as huggingface_hub asks for to fetch: ORGANISATION/NAME are folders, all of one commit."""

    folder: Path
    asked: ClassVar[list[str]]
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
        self.asked.append(f"{self.command} {self.path}")
        download = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", self.path)
        listing = re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/(?:revision|tree)/([^/?]+)(.*)", self.path)
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
            return self.reply(200, files if "/tree/" in self.path else {"id": repository, "sha": COMMIT})
        path = self.folder / repository / file
        if not path.is_file():
            return self.reply(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        data = path.read_bytes()
        return self.reply(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=COMMIT)

    do_GET = do_HEAD = do_POST = answer  # noqa: N815


def use(monkeypatch, url: str, home: Path) -> None:
    """Have huggingface_hub take `url` for its hub and `home` for its cache, as HF_ENDPOINT and HF_HOME would."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "token")
    monkeypatch.delenv("TORCH_HOME", raising=False)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = type("Hub", (Hub,), {"folder": tmp_path / "hub", "asked": []})
    hub.folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    use(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path / "home")
    yield hub
    server.shutdown()
    server.server_close()


@pytest.fixture
def api(monkeypatch):
    """huggingface_hub's client, which takes what it is given; its calls must have the library's signatures."""
    api = create_autospec(HfApi, instance=True, endpoint="https://hub")
    monkeypatch.setattr("vit.checkpoints.hub.HfApi", lambda: api)
    api.repo_info.return_value.private = True
    return api


def committed(api) -> dict[str, bytes]:
    """The files of the one commit that was made."""
    (repository, operations), _ = api.create_commit.call_args
    assert repository == "me/tiny"
    given = {operation.path_in_repo: operation.path_or_fileobj for operation in operations}
    return {
        name: content if isinstance(content, bytes) else Path(content).read_bytes() for name, content in given.items()
    }


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
    asked = [request.split("/resolve/")[1] for request in hub.asked if "/resolve/" in request]
    assert not any(path.startswith("main/") for path in asked)  # all of one commit
    assert f"{COMMIT}/model.safetensors" in asked
    for name in ("hf/me/tiny", "hf/me/tiny@main"):
        got = load_model(name)
        same(got, model)
        assert got.origin.normalize.mean == NORMALIZE.mean
        assert got.origin.source == name
    offline(monkeypatch)
    hub.asked.clear()
    load_model("hf/me/tiny")
    assert not hub.asked
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
        torch.save({"a": torch.ones(1), "b": Hostile()}, tmp_path / "hub" / name / "pytorch_model.bin")
    assert "posix.system, which weights do not need; nothing in it was run" in refused("hf/me/bin")
    refused("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert not (tmp_path / "marker").exists()


def test_what_the_hub_does_not_have_is_one_line(hub, tmp_path):
    small(tmp_path / "hub" / "me" / "tiny")
    (tmp_path / "hub" / "me" / "bare").mkdir()
    (tmp_path / "hub" / "me" / "bare" / "config.json").write_text("{}")
    for name, said in (
        ("hf/me/nothing", "the hub has no such model"),
        ("hf/me/tiny@v9", "the hub has no such revision"),
        ("hf/me/bare", "holds none of model.safetensors"),
        ("hf/a/b/c", "is not a model name on the hub"),
        ("timm/resnet18.a1_in1k", "not a plain vision transformer"),
        ("timm/vit_none_at_all", "timm has no model 'vit_none_at_all'"),
    ):
        assert said in refused(name)


def impatient(monkeypatch) -> None:
    """The library tries for half a minute."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.mark.parametrize("way", [offline, impatient])
@pytest.mark.parametrize("name", ["hf/me/tiny", "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"])
def test_no_network_and_no_cache_is_one_line(name, way, tmp_path, monkeypatch):
    use(monkeypatch, "http://127.0.0.1:9", tmp_path)
    way(monkeypatch)
    assert "cannot be fetched" in refused(name)


def test_timm_names_go_through_timms_downloader(hub, tmp_path):
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
    assert any(request.startswith("GET /timm/vit_tiny") for request in hub.asked)


@pytest.fixture
def run(tmp_path) -> Path:
    """A run, and things in it that are nobody else's business."""
    data = {"root": "/home/somebody", "cache": "/home/somebody"}
    folder = make_run(tmp_path / "run", warning="not in /home/somebody", snapshots=0, settings={"data": data})
    (folder / "curves.png").write_bytes(b"picture")
    (folder / ".lock").write_text("")
    (folder / "notes.txt").write_text("private")
    return folder


def push(*argv: object) -> int:
    return main(["checkpoint", "push", *map(str, argv)])


def test_a_run_is_published_whole_and_nothing_else(api, run, capsys):
    assert push(run, "me/tiny", "--private") == 0
    assert capsys.readouterr().out.strip() == "https://hub/me/tiny"
    api.create_repo.assert_called_once_with("me/tiny", private=True, exist_ok=True)
    given = committed(api)
    kept = {"model.safetensors", "config.json", "metrics.jsonl", "curves.png"}
    assert set(given) == {*kept, "config.yaml", "summary.json", "README.md"}
    for name in kept:
        assert given[name] == (run / name).read_bytes()
    settings, summary = (
        yaml.safe_load((run / "config.yaml").read_text()),
        json.loads((run / "summary.json").read_text()),
    )
    del settings["data"]["root"], settings["data"]["cache"], summary["data"]["warning"]
    assert yaml.safe_load(given["config.yaml"]) == settings
    assert json.loads(given["summary.json"]) == summary
    assert not any(b"somebody" in content for content in given.values())  # where things lie is nobody else's business
    assert "somebody" in (run / "config.yaml").read_text()
    assert given["README.md"].decode() == model_card(run, "me/tiny")


def test_what_is_to_be_private_is_not_put_where_all_can_see(api, run):
    api.repo_info.return_value.private = False
    with pytest.raises(CheckpointError, match="exists and is public"):
        push_to_hub(run, "me/tiny", private=True)
    api.create_commit.assert_not_called()


def test_nothing_is_published_without_its_weights(api, run):
    with pytest.raises(CheckpointError, match="holds no model in the project's own format"):
        push_to_hub(run / "model.safetensors", "me/tiny")
    (run / "model.safetensors").rename(run / "other.safetensors")
    with pytest.raises(CheckpointError, match="holds no model in the project's own format"):
        push_to_hub(run, "me/tiny")
    assert not api.mock_calls


def test_a_bad_name_is_one_line(hub, run):
    for name in ("me", "hf/me/tiny", "a b/c"):
        with pytest.raises(CheckpointError, match="is not a model name on the hub"):
            push_to_hub(run, name)
    assert not hub.asked


def test_a_card_of_ones_own_is_taken(api, run):
    (run / "README.md").write_text("my own words")
    assert push(run, "me/tiny") == 0
    assert committed(api)["README.md"] == b"my own words"


def test_a_refusing_hub_is_one_line(hub, run, capsys):
    hub.deny = 403
    assert push(run, "me/tiny") == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "hf auth login" in said
    assert "the hub answers 403" in refused("hf/me/tiny")  # and not that the network is missing


def test_the_terms_of_a_foreign_model_are_not_ours_to_give(tmp_path):
    small(tmp_path)
    card = model_card(tmp_path, "me/tiny")
    assert "apache" not in card.lower()
    assert "seed" not in card
