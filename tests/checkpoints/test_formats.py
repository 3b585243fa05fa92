"""Oracles of the formats: the code that each comes from computes the same.

Compared are features, logits, loss and reconstruction. Other families are refused.
"""

import argparse
import re
from pathlib import Path

import pytest
import timm
import torch
import torchvision
import transformers as hf
from safetensors.torch import load_file, save_file
from small import (
    agree,
    change,
    close,
    mae_state,
    random_model,
    refused,
    renamed,
    timm_folder,
    timm_model,
    transformers_model,
    under,
    warned,
)
from tiny import autoencoder, same
from torch import Tensor, nn

from vit.checkpoints import load_model
from vit.config import DecoderConfig
from vit.mae import MaskedAutoencoder
from vit.weights import architecture

# --- timm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["vit_medium_patch16_gap_240", "vit_small_patch14_reg4_dinov2", "deit3_small_patch16_224"],
)
def test_timm_folder_with_its_own_config(name, tmp_path):
    """As `timm.models.save_for_hf` writes it, with heads, pooling and normalisation."""
    theirs = timm_folder(tmp_path, name, img_size=28, patch_size=14, depth=2, num_classes=3)
    ours = load_model(tmp_path)
    agree(ours, theirs)
    assert ours.origin.normalize.mean == list(theirs.pretrained_cfg["mean"])
    assert ours.origin.interpolation == theirs.pretrained_cfg["interpolation"]
    assert not [
        note for note in ours.origin.report.notes if "nothing says" in note or "guess" in note
    ]


@pytest.mark.parametrize("place", ["state", "folder"])
def test_deits_token_for_distillation_is_a_register_and_its_two_heads_are_left_out(place, tmp_path):
    sizes = dict(img_size=28, patch_size=14, depth=2, num_classes=3)
    theirs = timm_folder(tmp_path, "deit_tiny_distilled_patch16_224", **sizes)
    source = {"state": theirs.state_dict(), "folder": tmp_path}[place]
    with pytest.warns(UserWarning, match="its classifier is left out: head is one of DeiT's two"):
        ours = load_model(source)
    images = torch.randn(2, 3, 28, 28)
    close(ours(images), theirs.forward_features(images))
    assert (ours.config.registers, ours.config.num_classes) == (1, 0)


def test_classes_that_timms_config_cannot_hold_are_read_off_the_tensors(tmp_path):
    """As UNI2-h and Virchow: their MLP and its activation stand in the code of their cards."""
    sizes = dict(img_size=32, depth=2, embed_dim=48, num_classes=3, mlp_ratio=5.375)
    timm_folder(tmp_path, **sizes)
    gated = dict(mlp_layer=timm.layers.SwiGLUPacked, act_layer=nn.SiLU)
    theirs = random_model(timm.create_model("vit_tiny_patch16_224", **sizes, **gated))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    words = warned(tmp_path)
    assert "another block (blocks.0.mlp.fc2.weight) than its tensors, which are taken" in words
    assert "assuming SiLU as the gate of a SwiGLU" in words
    agree(load_model(tmp_path), theirs)


def test_timm_architectures_that_are_not_computed_are_refused(tmp_path):
    sizes = dict(depth=1, img_size=32, global_pool="avg")
    theirs = timm.create_model("vit_tiny_patch16_224", **sizes)
    timm.models.save_for_hf(theirs, tmp_path, safe_serialization=True)
    for name, reason in {
        "resnet18": "no plain vision transformer",
        "vit_base_patch16_clip_224": "its settings say embed_dim 768, not 192",
    }.items():
        change(tmp_path, architecture=name)
        assert reason in refused(tmp_path)


# --- facebookresearch/mae -------------------------------------------------------------------------

MAE = dict(
    intermediate_size=128, decoder_hidden_size=24, decoder_num_hidden_layers=2,
    decoder_num_attention_heads=3, decoder_intermediate_size=96,
)  # fmt: skip


def huggingface_mae(**settings) -> hf.ViTMAEForPreTraining:
    return random_model(transformers_model(hf.ViTMAEForPreTraining, **MAE | settings))


def stacked(state: dict[str, Tensor], parts: tuple[str, ...], whole: str) -> dict[str, Tensor]:
    """Tensors of which those with `parts` in their names are one."""
    for name in [name for name in state if parts[0] in name]:
        parts_of_name = [state.pop(name.replace(parts[0], part)) for part in parts]
        state[name.replace(parts[0], whole)] = torch.cat(parts_of_name)
    return state


QKV = ("attention.q_proj", "attention.k_proj", "attention.v_proj")


OF_MAE = r"""
    ^vit\.embeddings\.
    ^vit\.
    position_embeddings             pos_embed
    patch_embeddings\.projection    patch_embed.proj
    ^layernorm                      norm
    ^layers\.                       blocks.
    ^decoder\.decoder_layers        decoder_blocks
    ^decoder\.
    layernorm_before                norm1
    layernorm_after                 norm2
    attention\.o_proj               attn.proj
"""


def as_original_mae(model: hf.ViTMAEForPreTraining) -> dict[str, Tensor]:
    """transformers' weights under the names of facebookresearch/mae."""
    return stacked(renamed(model.state_dict(), OF_MAE), QKV, "attn.qkv")


def check_mae(ours: MaskedAutoencoder, theirs: hf.ViTMAEForPreTraining) -> None:
    """As the model in memory, whose loss and prediction test_mae.py compares with transformers'."""
    expected = load_model(theirs)
    same(ours, expected)
    assert architecture(ours) == architecture(expected)


def test_mae_with_its_decoder(tmp_path):
    """As main_pretrain.py saves it."""
    theirs = huggingface_mae(norm_pix_loss=True, layer_norm_eps=1e-6)
    args = argparse.Namespace(norm_pix_loss=True, input_size=16, model="mae_vit_tiny", blr=1e-3)
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}}
    file = {"model": as_original_mae(theirs), "optimizer": optimizer, "epoch": 3, "args": args}
    torch.save(file, tmp_path / "mae.pth")
    ours = load_model(tmp_path / "mae.pth", num_heads=4, decoder_heads=3)
    assert ours.origin.format == "facebookresearch/mae"
    check_mae(ours, theirs)
    assert set(ours.origin.report.dropped) == {"optimizer.state.0.exp_avg"}


def test_mae_heads_by_its_families():
    """MAE's decoder of width 512 has 16 heads, not 512 / 64 = 8; its ViT-H has 16, not 20."""
    decoder = DecoderConfig(dim=512, depth=1, num_heads=16)
    ours = autoencoder(decoder=decoder, embed_dim=1280, num_heads=16)
    model = load_model(mae_state(ours))
    assert (model.encoder.config.num_heads, model.decoder.config.num_heads) == (16, 16)


# --- DINO and DINOv2 ------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", ["student", None])
def test_files_of_a_student_and_its_teacher(branch):
    """As main_ibot.py saves them: heads, a token for masked patches, and here layer scale."""
    head = {"mlp.0.weight": torch.ones(4, 32), "last_layer2.weight_v": torch.ones(4, 1)}
    models, file = {}, {}
    for name in ("student", "teacher"):
        models[name] = timm_model(num_classes=0, init_values=0.1)
        state = renamed(models[name].state_dict(), r"ls(\d)\.gamma gamma_\1")
        file[name] = under("module.backbone.", state) | under("module.head.", head)
    file["student"]["module.backbone.masked_embed"] = torch.ones(1, 32)
    file["args"] = argparse.Namespace(arch="vit_tiny", norm_last_layer=False)
    file["ibot_loss"] = {"center": torch.zeros(1, 4)}
    agree(load_model(file, branch=branch, num_heads=4), models[branch or "teacher"])


def huggingface_dinov2(registers: int, **settings) -> nn.Module:
    kind = hf.Dinov2WithRegistersModel if registers else hf.Dinov2Model
    return random_model(transformers_model(kind, num_register_tokens=registers, **settings))


OF_DINOV2 = r"""
    ^embeddings\.
    position_embeddings             pos_embed
    patch_embeddings\.projection    patch_embed.proj
    ^layernorm                      norm
    ^encoder\.layer\.               blocks.
    layer_scale(\d)\.lambda1        ls\1.gamma
    attention\.o_proj               attn.proj
    mlp\.down_proj                  mlp.w3
"""


def as_original_dinov2(model: nn.Module, chunked: bool) -> dict[str, Tensor]:
    """transformers' weights under the names of facebookresearch/dinov2."""
    state = stacked(renamed(model.state_dict(), OF_DINOV2), QKV, "attn.qkv")
    if chunked:
        state = renamed(state, r"^blocks\.(\d) blocks.0.\1")
    return stacked(state, ("gate_proj", "up_proj"), "w12")


@pytest.mark.parametrize(("registers", "swiglu", "chunked"), [(0, False, True), (4, True, False)])
def test_dinov2(registers, swiglu, chunked, tmp_path):
    theirs = huggingface_dinov2(registers, use_swiglu_ffn=swiglu)
    state = as_original_dinov2(theirs, chunked)
    file = state
    if chunked:  # a training file
        file = {"teacher": under("backbone.", state) | {"dino_head.mlp.0.weight": torch.ones(2, 2)}}
    torch.save(file, tmp_path / "dinov2.pth")
    ours = load_model(tmp_path / "dinov2.pth", num_heads=4)
    agree(ours, theirs)
    assert any(name.endswith("mask_token") for name in ours.origin.report.dropped)


# --- Hugging Face ---------------------------------------------------------------------------------


def on_disk(model: nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "settings", "left_out"),
    [
        (hf.ViTModel, dict(qkv_bias=False, num_channels=1, layer_norm_eps=1e-3), 2),
        (hf.ViTForImageClassification, dict(image_size=[8, 24], patch_size=[4, 2]), 0),
    ],
)
def test_huggingface_vit(kind, settings, left_out, tmp_path):
    theirs = random_model(transformers_model(kind, **settings, num_labels=3))
    ours = load_model(on_disk(theirs, tmp_path))
    agree(ours, theirs)
    assert len(ours.origin.report.dropped) == left_out  # the pooler


# families whose encoder is ViT's, and words of the reason why the other parts are left out
OF_VIT = {
    "ViTMSN": (hf.ViTMSNModel, ""),
    "ViTMSN, classifier": (hf.ViTMSNForImageClassification, ""),
    "DeiT": (hf.DeiTModel, "the pooler"),
    "DeiT, classifier": (hf.DeiTForImageClassification, ""),
    "DeiT, two heads": (hf.DeiTForImageClassificationWithTeacher, "whose mean is its answer"),
    "DeiT, SimMIM": (hf.DeiTForMaskedImageModeling, "masked patches|beside the network"),
    "I-JEPA": (hf.IJepaModel, ""),
    "I-JEPA, classifier": (hf.IJepaForImageClassification, ""),
    "ViT, SimMIM": (hf.ViTForMaskedImageModeling, "masked patches|beside the network"),
}


@pytest.mark.parametrize("case", OF_VIT)
def test_huggingface_families_of_vit(case, images, tmp_path):
    kind, left_out = OF_VIT[case]
    theirs = random_model(transformers_model(kind, num_labels=3))
    expected = theirs.base_model(images).last_hidden_state
    said = dict(num_heads=4, norm_eps=theirs.config.layer_norm_eps)
    from_memory = load_model(theirs.state_dict(), **said)
    wrapped = load_model(under("model.", theirs.state_dict()), **said)
    for ours in (load_model(on_disk(theirs, tmp_path)), from_memory, wrapped):
        close(ours(images), expected)
        if "classifier" in case:
            agree(ours, theirs)
        assert all(re.search(left_out, reason) for reason in ours.origin.report.dropped.values())
        assert bool(ours.origin.report.dropped) == bool(left_out)


@pytest.mark.parametrize("spelling", ["", "decoder_encoder"])
def test_huggingface_mae(spelling, tmp_path):
    theirs = huggingface_mae(norm_pix_loss=True)
    ours = load_model(on_disk(theirs, tmp_path))
    if spelling:
        state = renamed(load_file(tmp_path / "model.safetensors"), r"_layers\. _encoder.layer.")
        ours = load_model(state, num_heads=4, decoder_heads=3, norm_pix_loss=True)
    check_mae(ours, theirs)


def test_a_family_with_imagenets_mean_gets_it_without_a_preprocessor():
    with pytest.warns(UserWarning, match="as usual for its family"):
        origin = load_model(transformers_model(hf.DeiTModel)).origin
    assert origin.normalize.mean == [0.485, 0.456, 0.406]
    assert (origin.interpolation, origin.crop_share) == ("bicubic", 0.875)


def test_the_mean_of_a_huggingface_vit_without_a_preprocessor_is_a_guess():
    """Google's ViTs have another than DINO's and DeiT's, all of the same architecture."""
    with pytest.warns(UserWarning, match=r"mean 0\.5, 0\.5, 0\.5 .*\(mean, std"):
        load_model(transformers_model())


@pytest.mark.parametrize(("registers", "swiglu"), [(0, True), (4, False)])
def test_huggingface_dinov2(registers, swiglu, images, tmp_path):
    theirs = huggingface_dinov2(registers, use_swiglu_ffn=swiglu)
    expected = theirs(images).last_hidden_state
    close(load_model(on_disk(theirs, tmp_path))(images), expected)
    close(load_model(theirs.state_dict(), num_heads=4)(images), expected)


def test_huggingface_dinov2_classifier_is_left_out_with_the_reason(images, tmp_path):
    theirs = random_model(transformers_model(hf.Dinov2ForImageClassification, num_labels=3))
    ours = load_model(on_disk(theirs, tmp_path))
    close(ours(images), theirs.dinov2(images).last_hidden_state)
    assert "does not read one token" in ours.origin.report.dropped["classifier.weight"]


# --- torchvision ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("published", "size"), [(False, 16), (True, 24)])
def test_torchvision(published, size):
    sizes = dict(num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48, num_classes=7)
    theirs = random_model(torchvision.models.VisionTransformer(size, 4, **sizes))
    state = theirs.state_dict()
    if published:  # the files on its site have the older names of the MLP
        state = renamed(state, "mlp\\.0 mlp.linear_1\nmlp\\.3 mlp.linear_2")
    agree(load_model(state, num_heads=4), theirs)


@pytest.mark.parametrize(
    ("name", "width", "size"),
    [
        ("ViT_B_16_Weights.IMAGENET1K_V1", 768, 224),
        ("ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1", 768, 384),
        ("ViT_L_16_Weights.IMAGENET1K_V1", 1024, 224),
        ("ViT_L_32_Weights.IMAGENET1K_V1", 1024, 224),
        ("ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1", 1280, 518),
        ("ViT_H_14_Weights.IMAGENET1K_SWAG_LINEAR_V1", 1280, 224),
    ],
)
def test_the_published_files_of_torchvision_get_their_own_preparation(name, width, size):
    patch = int(name[6:8])
    theirs = torchvision.models.VisionTransformer(size, patch, 1, 16, width, 8, num_classes=3)
    # beside one of another size
    rival = torchvision.models.VisionTransformer(28, 14, 1, 16, 64, 8, num_classes=3)
    state = under("teacher.", theirs.state_dict()) | under("student.", rival.state_dict())
    model = load_model(state, branch="teacher")
    with torch.device("meta"):
        usual = torchvision.models.get_model(name.partition("_Weights")[0].lower())
    assert model.config.num_heads == usual.encoder.layers[0].num_heads
    origin = model.origin
    transform = torchvision.models.get_weight(name).transforms()
    assert origin.crop_share == transform.crop_size[0] / transform.resize_size[0]
    assert origin.interpolation == transform.interpolation.value
    assert origin.normalize.mean == transform.mean


def test_the_heads_of_torchvisions_class_are_a_guess():
    other = torchvision.models.VisionTransformer(16, 8, 2, 8, 768, 16)
    assert "12 heads of the encoder, 64 channels per head (num_heads)" in warned(other.state_dict())


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("beit_base_patch16_224", "BEiT"),
        ("eva02_tiny_patch14_224", "no bias on its keys"),
        ("vit_base_patch16_clip_224", "CLIP"),
        ("vit_base_patch16_siglip_224", "SigLIP"),
        ("vit_small_patch16_dinov3", "no pos_embed in it"),
        ("vit_small_patch16_18x2_224", "no blocks.0.mlp.fc2.weight in it"),
    ],
)
def test_other_families_are_refused_by_what_they_compute(name, reason):
    with torch.device("meta"):  # names and shapes are enough
        model = timm.create_model(name, depth=2)
    assert reason in refused(model.state_dict())
