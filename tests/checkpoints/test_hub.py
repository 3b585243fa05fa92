"""Models from a hub and to it, against a hub of our own on this machine."""

import base64
import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import hf_hub_download

from vit.checkpoints import CheckpointError, load_model, save_model
from vit.checkpoints.card import model_card
from vit.checkpoints.hub import push_to_hub
from vit.cli import main
from vit.config import DecoderConfig, ViTConfig
from vit.data.augment import Normalization
from vit.encoder import VisionTransformer
from vit.mae import MaskedAutoencoder, build_autoencoder

SIZES = dict(image_size=(16, 16), patch_size=(4, 4), embed_dim=32, depth=2, num_heads=4)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """As much of a hub as huggingface_hub asks for: ORGANISATION/NAME/files of a folder to fetch, and commits to take.

    Attributes:
        url: where it is.
        asked: every request, as "GET /path".
        commits: per repository, the files that it was given.
        created: what was asked of new repositories.
        public: whether the repositories are.
        deny: a status to answer everything with.
    """

    def __init__(self, folder: Path):
        self.folder, self.asked, self.commits, self.created, self.deny = folder, [], {}, [], 0
        self.public = False
        self.objects: dict[str, bytes] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                """Silent."""

            def body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") == "chunked":
                    data = b""
                    while size := int(self.rfile.readline(), 16):
                        data += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                    return data
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))

            def reply(self, status: int, content: bytes | dict | list = b"", **headers: str) -> None:
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key.replace("_", "-"), value)
                if not isinstance(content, bytes):
                    self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def answer(self) -> None:
                hub.asked.append(f"{self.command} {self.path}")
                body = self.body()
                if hub.deny:
                    return self.reply(hub.deny, {"error": "no"}, X_Error_Message="no")
                if match := re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", self.path):
                    return self.resolve(*match.groups())
                if match := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/(revision|tree)/([^/?]+).*", self.path):
                    return self.list_files(*match.groups())
                if self.path == "/api/repos/create":
                    hub.created.append(json.loads(body))
                    name = "/".join(filter(None, (hub.created[-1].get("organization"), hub.created[-1]["name"])))
                    return self.reply(200, {"url": f"{hub.url}/{name}", "name": name, "id": name})
                if match := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)", self.path):
                    return self.reply(200, {"id": match[1], "private": not hub.public})
                if self.path == "/api/validate-yaml":
                    return self.reply(200, {"errors": [], "warnings": []})
                if self.path.endswith("/preupload/main"):
                    files = [
                        {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular",
                         "shouldIgnore": False, "oid": None}
                        for f in json.loads(body)["files"]
                    ]  # fmt: skip
                    return self.reply(200, {"files": files})
                if self.path.endswith("/info/lfs/objects/batch"):
                    objects = [
                        {
                            "oid": o["oid"],
                            "size": o["size"],
                            "actions": {"upload": {"href": f"{hub.url}/put/{o['oid']}"}},
                        }
                        for o in json.loads(body)["objects"]
                    ]
                    return self.reply(200, {"transfer": "basic", "objects": objects})
                if self.path.startswith("/put/"):
                    hub.objects[self.path.rpartition("/")[2]] = body
                    return self.reply(200)
                if match := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/commit/main", self.path):
                    files = hub.commits.setdefault(match[1], {})
                    for line in body.splitlines():
                        entry = json.loads(line)
                        if entry["key"] == "file":
                            files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                        elif entry["key"] == "lfsFile":
                            files[entry["value"]["path"]] = hub.objects[entry["value"]["oid"]]
                    url = f"{hub.url}/{match[1]}/commit/{COMMIT}"
                    return self.reply(200, {"commitUrl": url, "commitOid": COMMIT, "pullRequestUrl": None})
                return self.reply(404, {"error": "unknown"})

            def there_is(self, repository: str, revision: str) -> bool:
                if not (hub.folder / repository).is_dir():
                    self.reply(404, {"error": "no"}, X_Error_Code="RepoNotFound")
                elif revision not in ("main", COMMIT):
                    self.reply(404, {"error": "no"}, X_Error_Code="RevisionNotFound", X_Repo_Commit=COMMIT)
                else:
                    return True
                return False

            def list_files(self, repository: str, kind: str, revision: str) -> None:
                if self.there_is(repository, revision):
                    names = [path.name for path in (hub.folder / repository).iterdir()]
                    files = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]
                    self.reply(200, {"id": repository, "sha": COMMIT} if kind == "revision" else files)

            def resolve(self, repository: str, revision: str, file: str) -> None:
                if not self.there_is(repository, revision):
                    return None
                path = hub.folder / repository / file
                if not path.is_file():
                    return self.reply(404, {"error": "no"}, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
                data = path.read_bytes()
                tag = f'"{hashlib.sha256(data).hexdigest()}"'
                return self.reply(200, data, ETag=tag, X_Repo_Commit=COMMIT, Accept_Ranges="bytes")

            do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


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
    (tmp_path / "hub").mkdir()
    hub = Hub(tmp_path / "hub")
    use(monkeypatch, hub.url, tmp_path / "home")
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


def offline(monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def refused(name: str, **asked) -> str:
    with pytest.raises(CheckpointError) as error:
        load_model(name, **asked)
    assert "\n" not in str(error.value)
    return str(error.value)


def small(folder: Path, **settings) -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(**SIZES | settings))
    save_model(folder, model, Normalization([0.1, 0.2, 0.3], [0.4, 0.5, 0.6]), (), "some | images *")
    return model


def test_a_model_is_fetched_once_and_then_from_the_cache(hub, tmp_path, monkeypatch):
    model = small(tmp_path / "hub" / "me" / "tiny")
    (tmp_path / "hub" / "me" / "tiny" / "secret.bin").write_text("not asked for")
    for name in ("hf/me/tiny", "hf/me/tiny@main", "hf/me/tiny"):
        got = load_model(name)
        assert all(torch.equal(value, got.state_dict()[key]) for key, value in model.state_dict().items())
        assert got.origin.normalize.mean == [0.1, 0.2, 0.3]
    offline(monkeypatch)
    hub.asked.clear()
    load_model("hf/me/tiny")
    assert not hub.asked
    assert not any("secret" in path.name for path in (tmp_path / "home").rglob("*"))


def test_a_cache_that_others_filled_is_enough_offline(hub, tmp_path, monkeypatch):
    small(tmp_path / "hub" / "me" / "tiny")
    for file in ("config.json", "model.safetensors"):  # nobody asked for preprocessor_config.json
        hf_hub_download("me/tiny", file)
    offline(monkeypatch)
    load_model("hf/me/tiny")


def test_all_files_are_of_one_commit(hub, tmp_path):
    small(tmp_path / "hub" / "me" / "tiny")
    load_model("hf/me/tiny")
    asked = [request.split("/resolve/")[1] for request in hub.asked if "/resolve/" in request]
    assert not any(path.startswith("main/") for path in asked)
    assert f"{COMMIT}/model.safetensors" in asked


def test_parts_are_fetched(hub, tmp_path):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16,
                       patch_size=4)  # fmt: skip
    theirs = ViTModel(config)
    theirs.save_pretrained(tmp_path / "hub" / "me" / "parts", max_shard_size="40KB")
    assert (tmp_path / "hub" / "me" / "parts" / "model.safetensors.index.json").exists()
    assert torch.equal(load_model("hf/me/parts").norm.weight, theirs.layernorm.weight)


@pytest.mark.parametrize("index", ["{", '{"weight_map": {"a": "../b"}}'])
def test_a_damaged_index_is_called_so(hub, tmp_path, index):
    folder = tmp_path / "hub" / "me" / "parts"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(index)
    said = refused("hf/me/parts")
    assert "model.safetensors.index.json" in said
    assert "cannot be reached" not in said


def test_hostile_pickles_from_a_hub_do_not_run(hub, tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'marker'}",)

    for name in ("me/bin", "timm/vit_tiny_patch16_224.augreg_in21k"):
        (tmp_path / "hub" / name).mkdir(parents=True)
        torch.save({"a": torch.ones(1), "b": Hostile()}, tmp_path / "hub" / name / "pytorch_model.bin")
    assert "posix.system, which weights do not need; nothing of it was run" in refused("hf/me/bin")
    refused("timm/vit_tiny_patch16_224.augreg_in21k")
    assert not (tmp_path / "marker").exists()


def test_what_the_hub_does_not_have_is_one_line(hub, tmp_path):
    small(tmp_path / "hub" / "me" / "tiny")
    (tmp_path / "hub" / "me" / "bare").mkdir()
    (tmp_path / "hub" / "me" / "bare" / "config.json").write_text("{}")
    for name, said in (
        ("hf/me/nothing", "the hub has no such model"),
        ("hf/me/tiny@v9", "the hub has no such revision"),
        ("hf/me/bare", "holds none of model.safetensors"),
        ("hf/a/b/c", "is no name of a model on the hub"),
        ("timm/resnet18.a1_in1k", "no plain vision transformer"),
        ("timm/vit_none_at_all", "timm has no model 'vit_none_at_all'"),
    ):
        assert said in refused(name)


@pytest.mark.parametrize("name", ["hf/me/tiny", "timm/vit_tiny_patch16_224.augreg_in21k"])
def test_offline_without_a_cache_is_one_line(name, tmp_path, monkeypatch):
    use(monkeypatch, "http://127.0.0.1:9", tmp_path)
    offline(monkeypatch)
    assert "cannot be fetched" in refused(name)


@pytest.mark.slow  # the library tries for half a minute
@pytest.mark.parametrize("name", ["hf/me/tiny", "timm/vit_tiny_patch16_224.augreg_in21k"])
def test_no_network_is_one_line(name, tmp_path, monkeypatch):
    use(monkeypatch, "http://127.0.0.1:9", tmp_path)
    assert "cannot be fetched" in refused(name)


def test_timm_names_go_through_timms_downloader(hub, tmp_path):
    import timm

    torch.manual_seed(0)
    name = "timm/vit_tiny_patch16_224.augreg_in21k"
    theirs = timm.create_model("vit_tiny_patch16_224.augreg_in21k")
    timm.models.save_for_hf(theirs, tmp_path / "hub" / name, safe_serialization=True)
    ours = load_model(name, image_size=32, patch_size=4, num_classes=0)
    assert ours.origin.normalize.mean == [0.5, 0.5, 0.5]
    assert torch.equal(ours.blocks[3].attn.qkv.weight, theirs.blocks[3].attn.qkv.weight)
    assert ours.config.num_heads == 3
    assert ours(torch.randn(1, 3, 32, 32)).shape == (1, 65, 192)
    assert any(request.startswith("GET /timm/vit_tiny") for request in hub.asked)


def run_folder(folder: Path) -> Path:
    """A folder as a run leaves it, and things in it that are nobody else's business."""
    torch.manual_seed(0)
    model = build_autoencoder(ViTConfig(**SIZES), DecoderConfig(dim=24, depth=1, num_heads=3), True)
    save_model(folder, model, Normalization([0.1, 0.2, 0.3], [0.4, 0.5, 0.6]), ("cat", "dog"), "CIFAR-10 (JPEG q75)")
    (folder / "config.yaml").write_text(
        "data: {root: /home/somebody, flip: 0.5}\ntrain: {epochs: 3, seed: 0}\nmask: {ratio: 0.75}\n"
    )
    summary = {"test_loss": 0.5021, "test_loss_of_baselines": {"mean_of_visible_patches": 0.83, "nearest_visible_patch": 1.27},
               "neighbours": {"encoder_accuracy": 0.5, "raw_pixel_accuracy": 0.461}, "epochs": 3, "seconds": 12.3, "seed": 0,
               "device": "a CPU",
               "data": {"train_images": 50000, "test_images": 10000, "warning": "not in /home/somebody"}}  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "curves.png").write_bytes(b"picture")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-00000003.pt").write_bytes(b"state")
    (folder / ".lock").write_text("")
    (folder / "notes.txt").write_text("private")
    return folder


def push(*argv: object) -> int:
    return main(["checkpoint", "push", *map(str, argv)])


def test_a_run_is_published_whole_and_nothing_else(hub, tmp_path, capsys):
    folder = run_folder(tmp_path / "run")
    assert push(folder, "me/tiny", "--private") == 0
    assert capsys.readouterr().out.strip() == f"{hub.url}/me/tiny"
    assert "private" in (
        hub.created[0].get("visibility"),
        *(key for key, value in hub.created[0].items() if value is True),
    )
    given = hub.commits["me/tiny"]
    assert set(given) == {"model.safetensors", "config.json", "config.yaml", "summary.json", "curves.png", "README.md"}
    for name in set(given) - {"README.md", "config.yaml", "summary.json"}:
        assert given[name] == (folder / name).read_bytes()
    settings, summary = yaml.safe_load(given["config.yaml"]), json.loads(given["summary.json"])
    assert settings == {"data": {"flip": 0.5}, "train": {"epochs": 3, "seed": 0}, "mask": {"ratio": 0.75}}
    assert summary["data"] == {"train_images": 50000, "test_images": 10000}
    assert not any(b"somebody" in content for content in given.values())  # where things lie is nobody else's business
    assert "somebody" in (folder / "config.yaml").read_text()
    assert given["README.md"].decode() == model_card(folder, "me/tiny")
    # and from there it loads
    for name, content in given.items():
        path = tmp_path / "hub" / "me" / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert isinstance(load_model("hf/me/tiny"), MaskedAutoencoder)


def test_what_is_to_be_private_is_not_put_where_all_can_see(hub, tmp_path):
    hub.public = True
    with pytest.raises(CheckpointError, match="exists and is public"):
        push_to_hub(run_folder(tmp_path / "run"), "me/tiny", private=True)
    assert not hub.commits


def test_nothing_is_published_without_its_weights(hub, tmp_path):
    folder = run_folder(tmp_path / "run")
    with pytest.raises(CheckpointError, match="is no folder with a model"):
        push_to_hub(folder / "model.safetensors", "me/tiny")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    with pytest.raises(CheckpointError, match="is no folder with a model"):
        push_to_hub(folder, "me/tiny")
    assert not hub.asked


@pytest.mark.parametrize("name", ["", "me", "hf/me/tiny", "a b/c", "x\ny/z"])
def test_a_bad_name_is_one_line(hub, tmp_path, name):
    with pytest.raises(CheckpointError, match="is no name of a model on the hub") as error:
        push_to_hub(run_folder(tmp_path / "run"), name)
    assert "\n" not in str(error.value)
    assert not hub.asked


def test_a_card_of_ones_own_is_taken(hub, tmp_path):
    folder = run_folder(tmp_path / "run")
    (folder / "README.md").write_text("my own words")
    assert push(folder, "me/tiny") == 0
    assert hub.commits["me/tiny"]["README.md"] == b"my own words"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusing_hub_is_one_line(hub, tmp_path, status, capsys):
    hub.deny = status
    assert push(run_folder(tmp_path / "run"), "me/tiny") == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "hf auth login" in said
    assert not hub.commits


def test_an_error_of_the_hub_is_not_called_a_missing_network(hub):
    hub.deny = 403
    assert "the hub answers 403" in refused("hf/me/tiny")


def test_the_terms_of_a_foreign_model_are_not_ours_to_give(tmp_path):
    small(tmp_path)
    card = model_card(tmp_path, "me/tiny")
    assert "apache" not in card.lower()
    assert "seed" not in card
