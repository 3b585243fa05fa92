"""Law of conversion: every tensor that is written comes back to the bit.

Oracles: timm and transformers load the files, and compute the same.
"""

import json
import shutil

import pytest
import timm
import tiny
import torch
import transformers as hf
from PIL import Image
from small import SIZES, agree, autoencoder, close, random_model, transformers_model
from tiny import NORMALIZE, names, same, save, seeded
from torch import nn

from vit.checkpoints import load_model
from vit.checkpoints.convert import convert_model
from vit.config import DecoderConfig
from vit.errors import CheckpointError
from vit.inputs import Normalization
from vit.look.predict import require_head
from vit.masking import make_mask
from vit.weights import architecture, checkpoint_hash, weights_hash


def saved(folder, class_names=(), decoder=False, **settings):
    """One of ours, written with random weights and read again."""
    model = tiny.encoder(**SIZES | settings)
    if decoder:
        model = autoencoder(norm_pix_loss=True, depth=2, **settings)
    normalize = NORMALIZE
    if model.encoder.config.channels == 1:
        normalize = Normalization([0.1], [0.4])
    random_model(model)
    save(folder, model, normalize, class_names, "some images", interpolation="bilinear")
    return load_model(folder)


@pytest.mark.parametrize("to", ["timm", "huggingface", "safetensors"])
def test_the_folder_comes_whole_or_the_same_line_can_be_given_again(tmp_path, monkeypatch, to):
    model = saved(tmp_path / "ours", global_pool="token")

    def killed(path, value):
        # as SIGKILL leaves it: nobody cleans up
        monkeypatch.setattr("vit.atomic._remove", lambda path: None)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vit.weights.write_json", killed)
    with pytest.raises(OSError, match="No space left"):
        convert_model(model, to, tmp_path / "new" / "folder")
    assert not (tmp_path / "new" / "folder").exists()
    monkeypatch.undo()

    convert_model(model, to, tmp_path / "new" / "folder")
    assert names(tmp_path / "new") == {"folder"}
    (tmp_path / "empty").mkdir()
    convert_model(model, to, tmp_path / "empty")
    assert names(tmp_path / "empty") == names(tmp_path / "new" / "folder")


# --- our own format -------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(
    "settings",
    [
        dict(qkv="identity", qkv_bias=False, registers=3, layer_scale=0.1, pos_embed="sincos"),
        dict(class_token=False, image_size=(8, 12), patch_size=(4, 3), mlp_ratio=2.5),
        dict(mlp="swiglu", qk_norm=True, drop_path=0.2),
    ],
)
def test_loaded_model_is_the_saved_one_to_the_bit(tmp_path, settings):
    saved = autoencoder(True, **settings).eval()
    # no value is what a fresh model has, not even in a fixed position table
    for parameter in saved.parameters():
        nn.init.normal_(parameter, 0.5)
    normalize = Normalization([0.1, 1 / 3, 0.7], [0.3, 0.2, 1 / 7])
    save(tmp_path / "new" / "folder", saved, normalize, ("plane", "naïve ship"), "CIFAR-10")
    loaded = load_model(str(tmp_path / "new" / "folder"))
    same(saved, loaded)
    trained = [parameter.requires_grad for parameter in saved.parameters()]
    assert [parameter.requires_grad for parameter in loaded.parameters()] == trained
    assert architecture(loaded) == architecture(saved)
    embed = saved.encoder.patch_embed
    images = torch.randn(2, 3, *embed.image_size)
    mask = make_mask("random", 2, embed.grid_size, 0.5, seeded(0))
    assert torch.equal(loaded(images, mask), saved(images, mask))

    # what travels with the weights
    origin = loaded.origin
    assert vars(origin.normalize) == vars(normalize)
    assert (origin.class_names, origin.data) == (("plane", "naïve ship"), "CIFAR-10")
    assert origin.report.notes == origin.report.problems == []
    assert not any(module.training for module in loaded.modules())


def test_training_images_are_those_of_the_weights_whatever_lies_beside_them(tmp_path):
    for name in ("one", "two"):
        save(tmp_path / name, autoencoder(), trained_on=torch.tensor([len(name)]))
    assert load_model(tmp_path / "two").origin.trained_on.tolist() == [3]
    shutil.copy(tmp_path / "one" / "model.safetensors", tmp_path / "two" / "one.safetensors")
    assert not len(load_model(tmp_path / "two" / "one.safetensors").origin.trained_on)


def test_content_hash_tells_weights_apart_and_not_their_precision_on_disk(tmp_path):
    model = random_model(autoencoder())
    for name, dtype in (("whole", torch.float32), ("half", torch.float16)):
        save(tmp_path / name, model, dtype=dtype)
    hashes = {weights_hash(load_model(tmp_path / name)) for name in ("whole", "half")}
    assert hashes == {weights_hash(model)}

    # a loaded model that is trained has weights of its own, and the checkpoint that it had
    loaded = load_model(tmp_path / "whole")
    with torch.no_grad():
        loaded.encoder.blocks[0].attn.qkv.bias[3] += 0.01
    assert weights_hash(loaded) not in hashes
    assert checkpoint_hash(loaded) in hashes


# --- other libraries ------------------------------------------------------------------------------


# how it is saved
AS_IT_IS = {
    "pretrained": dict(decoder=True, registers=2, pos_embed="sincos"),
    "half": dict(global_pool="token", num_classes=3, layer_scale=0.0),
    "swiglu": dict(global_pool="avg", fc_norm=True, num_classes=3, mlp="swiglu", mlp_ratio=2.5),
    "grey": dict(global_pool="avg", num_classes=3, channels=1),
    "no class token": dict(class_token=False, fc_norm=True),
    "registers": dict(registers=3, layer_scale=0.1, qk_norm=True),
    "registers without positions": dict(registers=3, no_embed_class=True, qkv_bias=False),
    "non-square": dict(image_size=(8, 24), patch_size=(4, 2), mlp_ratio=2.5),
}


@torch.no_grad()
@pytest.mark.parametrize("case", AS_IT_IS)
def test_a_folder_of_ours_is_loaded_by_timm_and_transformers_as_it_is(case, tmp_path):
    """A run's folder, and a converted one, are the same files for the three of us."""
    folder = tmp_path / "ours"
    classes = ("cat", "dog", "ship")[: AS_IT_IS[case].get("num_classes", 0)]
    ours = saved(folder, classes, **AS_IT_IS[case])
    if case == "half":
        folder = tmp_path / "half"
        convert_model(ours, "safetensors", folder, half=True)
        ours = load_model(folder)
    encoder = ours.encoder
    images = torch.randn(2, encoder.config.channels, *encoder.config.image_size)
    tokens = encoder(images)

    # by timm, also if it is written for it
    notes = convert_model(ours, "timm", tmp_path / "timm")
    assert bool(notes) == (case == "pretrained")
    for place in (folder, tmp_path / "timm"):
        theirs = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
        agree(ours, theirs)
        assert theirs.pretrained_cfg["mean"] == ours.origin.normalize.mean
        assert theirs.pretrained_cfg["interpolation"] == ours.origin.interpolation
        assert theirs.num_classes == len(classes)
    again = load_model(tmp_path / "timm")
    same(again, encoder)
    # an initial value, which matters in training only
    differing = {key for key, value in again.config if value != getattr(encoder.config, key)}
    assert differing <= {"layer_scale", "drop_path"}
    assert again.origin.report.assumed == []

    theirs, loading = hf.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"]
    assert all("decoder." in name or "head." in name for name in loading["unexpected_keys"])
    result = theirs.eval()(images)
    close(result.last_hidden_state, tokens)
    close(result.pooler_output, encoder.fc_norm(encoder.pool(tokens)))
    if classes:
        theirs = hf.AutoModelForImageClassification.from_pretrained(folder).eval()
        agree(ours, theirs)
        assert theirs.config.id2label == dict(enumerate(classes))
    if case not in ("non-square", "grey"):
        pixels = Image.fromarray(torch.randint(0, 256, (16, 16, 3), dtype=torch.uint8).numpy())
        prepared = hf.AutoImageProcessor.from_pretrained(folder)(pixels)["pixel_values"]
        close(torch.as_tensor(prepared)[0], ours.origin.transform(pixels))


@pytest.mark.parametrize("converted", [True, False])
def test_models_that_transformers_saves_again_load_without_our_hashes(converted, tmp_path):
    """It carries the whole config.json along, which tells of the earlier model."""
    folder = tmp_path / "ours"
    ours = saved(folder, decoder=True)
    if converted:
        folder = tmp_path / "hf"
        convert_model(ours, "huggingface", folder)
    theirs = hf.AutoModel.from_pretrained(folder)
    with torch.no_grad():
        next(theirs.parameters()).add_(1)
    theirs.save_pretrained(tmp_path / "again")
    again = load_model(tmp_path / "again", part="encoder")
    assert torch.equal(again.cls_token, ours.encoder.cls_token + 1)
    for origin in (again.origin, load_model(theirs).origin):
        assert (origin.data, origin.data_content_hash) == ("", "")
        assert origin.details.keys().isdisjoint(("sha256", "encoder", "decoder", "class_names"))


def test_a_model_that_timm_cannot_compute_has_no_settings_for_it(tmp_path):
    saved(tmp_path, qkv="identity")
    assert "pretrained_cfg" not in json.loads((tmp_path / "config.json").read_text())
    with pytest.raises((KeyError, ValueError)):
        hf.AutoModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (hf.ViTModel, dict(image_size=(8, 24), patch_size=(4, 2), qkv_bias=False, mlp_ratio=2.0)),
        (hf.ViTForImageClassification, dict(num_classes=3)),
        (hf.ViTMAEForPreTraining, dict(decoder=True, pos_embed="sincos")),
    ],
)
def test_transformers_loads_the_folder(kind, settings, tmp_path):
    classes = ("cat", "dog", "naïve ship")[: settings.get("num_classes", 0)]
    ours = saved(tmp_path / "ours", classes, global_pool="token", **settings)
    convert_model(ours, "huggingface", tmp_path / "hf")
    theirs, loading = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not {name for name in loading["missing_keys"] if "pooler" not in name}
    assert not loading["unexpected_keys"]
    if kind != hf.ViTMAEForPreTraining:
        agree(ours, theirs.eval())
    for again in (load_model(theirs), load_model(tmp_path / "hf")):
        same(again, ours)
        assert architecture(again) == architecture(ours)
    assert again.origin.normalize.mean == NORMALIZE.mean
    assert (again.origin.class_names, again.origin.interpolation) == (classes, "bilinear")


@pytest.mark.parametrize(
    ("to", "settings", "reason"),
    [
        ("timm", dict(qkv="identity"), "qkv linear"),
        ("huggingface", dict(layer_scale=0.1), r"no place for blocks\.0\.ls1\.gamma"),
    ],
)
def test_a_model_that_a_format_cannot_hold_is_refused_and_nothing_is_written(
    to, settings, reason, tmp_path
):
    ours = saved(tmp_path / "ours", **settings)
    with pytest.raises(CheckpointError, match=reason):
        convert_model(ours, to, tmp_path / "out.pth")
    assert not (tmp_path / "out.pth").exists()


def test_a_decoder_of_another_kind_comes_back_and_transformers_cannot_hold_it(tmp_path):
    decoder = DecoderConfig(dim=24, depth=1, num_heads=3, norm_eps=1e-5)
    save(tmp_path / "ours", tiny.autoencoder(decoder=decoder))
    ours = load_model(tmp_path / "ours")
    assert ours.decoder.config.norm_eps == 1e-5
    with pytest.raises(CheckpointError, match="computes norm_eps "):
        convert_model(ours, "huggingface", tmp_path / "out")


@pytest.mark.parametrize("to", ["safetensors", "timm", "huggingface"])
def test_a_head_that_was_replaced_is_written_as_it_is(to, tmp_path):
    for classes, head in ((5, nn.Linear(32, 5)), (0, nn.Identity())):
        names = ("a", "b", "c")
        ours = saved(tmp_path / f"{classes}", names, num_classes=3, global_pool="token")
        ours.head = head
        convert_model(ours, to, tmp_path / f"{to}{classes}")
        again = load_model(tmp_path / f"{to}{classes}")
        same(again, ours)
        assert again.config.num_classes == classes
        assert again.origin.class_names != names or classes == 0


@pytest.mark.parametrize(
    ("name", "part", "tensor"),
    [
        ("head", type("Cosine", (nn.Linear,), {"forward": id})(32, 3), "head.weight"),
        ("adapter", nn.Linear(2, 2), "adapter.weight"),
    ],
)
def test_a_part_that_its_settings_do_not_describe_is_refused_and_nothing_is_written(
    name, part, tensor, tmp_path
):
    ours = saved(tmp_path / "ours", num_classes=3, global_pool="token")
    setattr(ours, name, part)
    with pytest.raises(RuntimeError, match=tensor):
        convert_model(ours, "safetensors", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_existing_file_or_folder_is_not_replaced(tmp_path):
    ours = saved(tmp_path / "ours", global_pool="token")
    (tmp_path / "file").write_text("mine")
    for name in ("file", "ours"):
        with pytest.raises(CheckpointError, match="exists"):
            convert_model(ours, "safetensors", tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    same(load_model(tmp_path / "ours"), ours)


def test_a_head_of_several_answers_is_not_converted(tmp_path):
    settings = dict(num_labels=3, problem_type="multi_label_classification")
    theirs = transformers_model(hf.ViTForImageClassification, **settings)
    theirs.save_pretrained(tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    for use in (require_head, lambda model: convert_model(model, "timm", tmp_path / "out")):
        with pytest.raises(CheckpointError, match="its head is for multi_label_classification"):
            use(model)
    convert_model(load_model(tmp_path / "theirs", num_classes=0), "timm", tmp_path / "out")


# --- half precision -------------------------------------------------------------------------------


def test_half_precision_is_half_the_file_and_loads_as_float32(tmp_path):
    ours = saved(tmp_path / "ours")
    convert_model(ours, "safetensors", tmp_path / "half", half=True)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "ours")]
    assert sizes[0] < 0.6 * sizes[1]
    again = load_model(tmp_path / "half")
    for name, value in ours.state_dict().items():
        got = again.state_dict()[name]
        assert got.dtype == torch.float32
        assert torch.equal(got, value.half().float()), name

    # rounded once, it stays as it is
    convert_model(again, "safetensors", tmp_path / "again", half=True)
    same(load_model(tmp_path / "again"), again)


def test_what_half_precision_cannot_hold_is_refused(tmp_path):
    ours = saved(tmp_path / "ours")
    with torch.no_grad():
        ours.blocks[1].mlp.fc1.weight[2, 3] = 7e4
    with pytest.raises(CheckpointError, match=r"blocks\.1\.mlp\.fc1\.weight holds values above"):
        convert_model(ours, "safetensors", tmp_path / "out", half=True)
    assert not (tmp_path / "out").exists()
