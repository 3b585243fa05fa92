"""Oracles of the formats: the code that each comes from computes the same.

Compared are features, logits, loss and reconstruction. Other families are refused.
"""

import argparse
import pickle
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest
import timm
import torch
import torchvision
import transformers as hf
from small import HUGGINGFACE, close, random_model, timm_model, under
from torch import Tensor, nn

from vit.checkpoints import load_model
from vit.checkpoints.formats.torchvision import torchvision_hints
from vit.checkpoints.inspection import facts
from vit.checkpoints.loading import read_network
from vit.checkpoints.reading import Source, read_checkpoint
from vit.encoder import VisionTransformer
from vit.errors import CheckpointError
from vit.load_options import LoadOptions
from vit.mae import MaskedAutoencoder, masked_patch_loss
from vit.masking import mask_from_noise

# --- timm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["vit_medium_patch16_gap_240", "vit_small_patch14_reg4_dinov2", "deit3_small_patch16_224"],
)
def test_timm_folder_with_its_own_config(name, tmp_path):
    """As `timm.models.save_for_hf` writes it, with heads, pooling and normalisation."""
    settings = dict(img_size=28, patch_size=14, depth=2, num_classes=3)
    theirs = random_model(timm.create_model(name, pretrained=False, **settings))
    timm.models.save_for_hf(theirs, tmp_path, model_args=settings, safe_serialization="both")
    ours = load_model(tmp_path)
    images = torch.randn(2, 3, 28, 28)
    close(ours(images), theirs.forward_features(images))
    close(ours.forward_head(ours(images)), theirs(images))
    assert ours.origin.normalize.mean == list(theirs.pretrained_cfg["mean"])
    assert ours.origin.interpolation == theirs.pretrained_cfg["interpolation"]
    assert not [
        note for note in ours.origin.report.notes if "nothing says" in note or "guess" in note
    ]


@pytest.mark.parametrize("place", ["memory", "state", "folder"])
def test_deits_token_for_distillation_is_a_register_and_its_two_heads_are_left_out(place, tmp_path):
    sizes = dict(img_size=28, patch_size=14, depth=2, num_classes=3)
    theirs = timm.create_model("deit_tiny_distilled_patch16_224", **sizes)
    random_model(theirs)
    timm.models.save_for_hf(theirs, tmp_path, model_args=sizes, safe_serialization=True)
    source = {"memory": theirs, "state": theirs.state_dict(), "folder": tmp_path}[place]
    with pytest.warns(UserWarning, match="its classifier is left out: head is one of DeiT's two"):
        ours = load_model(source)
    images = torch.randn(2, 3, 28, 28)
    close(ours(images), theirs.forward_features(images))
    assert ours.config.registers == 1
    assert ours.config.num_classes == 0


def test_an_average_that_timm_makes_of_its_model_is_that_model():
    theirs = timm_model()
    ours = load_model(timm.utils.ModelEmaV3(theirs))
    images = torch.randn(2, 3, 16, 16)
    close(ours.forward_head(ours(images)), theirs(images))


def test_timm_architectures_that_are_not_computed_are_refused(tmp_path):
    theirs = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32)
    timm.models.save_for_hf(theirs, tmp_path, safe_serialization=True)
    config = (tmp_path / "config.json").read_text()
    for name, reason in (
        ("resnet18", "no plain vision transformer"),
        ("vit_base_patch16_clip_224", "its settings say embed_dim 768, its tensors 192"),
        ("vit_tiny_patch16_gap_240", "no plain vision transformer"),
        ("vit_little_patch16_reg4_gap_256", "its settings say embed_dim 320, its tensors 192"),
        ("vit_relpos_small_patch16_224", "no plain vision transformer"),
    ):
        (tmp_path / "config.json").write_text(
            re.sub(r'"architecture": "\w+"', f'"architecture": "{name}"', config).replace(
                '"token"', '"avg"'
            )
        )
        with pytest.raises(CheckpointError, match=reason):
            load_model(tmp_path)


# options of timm's train.py -> mean, share of an image, pooling
TRAINED = [
    ({}, (0.5, 0.5, 0.5), 0.9, "token"),  # the architecture's
    (dict(mean=[0.1, 0.2, 0.3], std=[0.2], crop_pct=0.8, gp="avg"), (0.1, 0.2, 0.3), 0.8, "avg"),
    (dict(crop_mode="squash"), (0.5, 0.5, 0.5), 0.9, "token"),
    (dict(model="vit_tiny_patch16_224.tag_of_tomorrow"), (0.485, 0.456, 0.406), 1.0, "token"),
]


@pytest.mark.parametrize(("options", "mean", "share", "pool"), TRAINED)
def test_what_timms_own_training_saves(options, mean, share, pool, tmp_path):
    theirs = random_model(
        timm.create_model(
            "vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3, init_values=1
        )
    )
    theirs.global_pool = pool
    unset = dict.fromkeys(("layer_decay", "mean", "std", "crop_pct", "gp", "in_chans"))
    args = argparse.Namespace(
        **dict(model="vit_tiny_patch16_224", interpolation="") | unset | options
    )
    saver = timm.utils.CheckpointSaver(
        theirs,
        torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1),
        args=args,
        checkpoint_dir=tmp_path,
    )
    saver.save_checkpoint(0)
    ours = load_model(tmp_path / "last.pth.tar")
    images = torch.randn(2, 3, 32, 32)
    close(ours.forward_head(ours(images)), theirs(images))
    assert (ours.origin.format, ours.origin.normalize.mean) == ("timm", list(mean))
    assert (ours.origin.crop_share, ours.config.global_pool) == (share, pool)
    assert ours.origin.squash == ("crop_mode" in options)
    notes_on_input = [
        note
        for note in ours.origin.report.notes
        if "nothing says how its input was normalised" in note
    ]
    assert bool(notes_on_input) == ("model" in options)


def test_other_training_files_that_fine_tuned_are_not_maes():
    """As DeiT's main.py saves them."""
    state = renamed(timm_model(init_values=0.1).state_dict(), [(r"ls(\d)\.gamma", r"gamma_\1")])
    ours = load_model(
        {"model": state, "args": argparse.Namespace(finetune="", model="deit3_small")}, num_heads=4
    )
    assert ours.origin.format == "timm"


# --- facebookresearch/mae -------------------------------------------------------------------------

MAE = dict(
    image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=128, decoder_hidden_size=24, decoder_num_hidden_layers=2,
    decoder_num_attention_heads=3, decoder_intermediate_size=96,
)  # fmt: skip


def huggingface_mae(**settings) -> hf.ViTMAEForPreTraining:
    return random_model(hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**MAE | settings)))


def renamed(state: dict[str, Tensor], names: Iterable[tuple[str, str]]) -> dict[str, Tensor]:
    """Tensors under other names, by regular expressions and what takes their place."""
    result = {}
    for name, value in state.items():
        for old, new in names:
            name = re.sub(old, new, name)
        result[name] = value
    return result


def stacked(state: dict[str, Tensor], parts: tuple[str, ...], whole: str) -> dict[str, Tensor]:
    """Tensors of which those with `parts` in their names are one."""
    for name in [name for name in state if parts[0] in name]:
        parts_of_name = [state.pop(name.replace(parts[0], part)) for part in parts]
        state[name.replace(parts[0], whole)] = torch.cat(parts_of_name)
    return state


QKV = ("attention.q_proj", "attention.k_proj", "attention.v_proj")


def as_original_mae(model: hf.ViTMAEForPreTraining) -> dict[str, Tensor]:
    """transformers' weights under the names of facebookresearch/mae."""
    names = (
        (r"^vit\.embeddings\.", ""), (r"^vit\.", ""), ("position_embeddings", "pos_embed"),
        (r"patch_embeddings\.projection", "patch_embed.proj"), (r"^layernorm", "norm"),
        (r"^layers\.", "blocks."), (r"^decoder\.decoder_layers", "decoder_blocks"),
        (r"^decoder\.", ""), ("layernorm_before", "norm1"), ("layernorm_after", "norm2"),
        (r"attention\.o_proj", "attn.proj"),
    )  # fmt: skip
    return stacked(renamed(model.state_dict(), names), QKV, "attn.qkv")


def check_mae(ours: MaskedAutoencoder, theirs: hf.ViTMAEForPreTraining) -> None:
    """Loss, predictions and the encoder's tokens agree, under the same noise."""
    images = torch.randn(3, 3, 16, 16)
    patches = ours.encoder.patch_embed.num_patches
    noise = torch.rand(3, patches)
    keep = int(patches * (1 - theirs.config.mask_ratio))
    mask = mask_from_noise(noise, keep)
    with torch.no_grad():
        expected = theirs(images, noise=noise)
        predicted = ours(images, mask)
        close(masked_patch_loss(predicted, ours.targets(images), mask.mask), expected.loss)
        p, q = ours.encoder.patch_embed.patch_size
        # (p q c) -> (c p q)
        logits = expected.logits.unflatten(-1, (p * q, 3)).transpose(-1, -2).flatten(-2)
        close(predicted, logits)


@pytest.mark.parametrize(("norm_pix_loss", "wrapped"), [(False, "model"), (True, "args")])
def test_mae_with_its_decoder(norm_pix_loss, wrapped, tmp_path):
    theirs = huggingface_mae(norm_pix_loss=norm_pix_loss, layer_norm_eps=1e-6)
    file = {"model": as_original_mae(theirs)}
    if wrapped == "args":  # as main_pretrain.py saves it
        args = argparse.Namespace(
            norm_pix_loss=norm_pix_loss, input_size=16, model="mae_vit_tiny", blr=1e-3
        )
        file |= {
            "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}},
            "epoch": 3,
            "scaler": {},
            "args": args,
        }
    torch.save(file, tmp_path / "mae.pth")
    options = {} if wrapped == "args" else dict(norm_pix_loss=norm_pix_loss)
    ours = load_model(tmp_path / "mae.pth", num_heads=4, decoder_heads=3, **options)
    assert isinstance(ours, MaskedAutoencoder)
    assert ours.origin.format == "facebookresearch/mae, pretraining"
    check_mae(ours, theirs)
    if wrapped == "args":  # a namespace is allowed for one call
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "mae.pth", weights_only=True)
    dropped = ours.origin.report.dropped
    assert set(dropped) == ({"optimizer.state.0.exp_avg"} if wrapped == "args" else set())


def test_mae_encoder_of_a_file_with_decoder(images, tmp_path):
    theirs = huggingface_mae(layer_norm_eps=1e-6)
    torch.save({"model": as_original_mae(theirs)}, tmp_path / "mae.pth")
    ours = load_model(tmp_path / "mae.pth", part="encoder", num_heads=4)
    assert isinstance(ours, VisionTransformer)
    whole = load_model(tmp_path / "mae.pth", num_heads=4, decoder_heads=3, norm_pix_loss=True)
    assert torch.equal(ours(images), whole.encoder(images))
    assert all(
        reason == "only the encoder was requested" for reason in ours.origin.report.dropped.values()
    )
    assert len(ours.origin.report.dropped) == len(whole.decoder.state_dict())


def test_mae_heads_by_its_families():
    """MAE's decoder of width 512 has 16 heads, not 512 / 64 = 8; its ViT-H has 16, not 20."""
    with torch.device("meta"):  # names and shapes are enough
        wide = dict(patch_size=8, hidden_size=1280, num_attention_heads=16)
        wide |= dict(decoder_hidden_size=512, decoder_num_attention_heads=16)
        theirs = hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**MAE | wide))
    state = {
        name: torch.zeros_like(value, device="cpu")
        for name, value in as_original_mae(theirs).items()
    }
    model = load_model(state)
    assert (model.encoder.config.num_heads, model.decoder.config.num_heads) == (16, 16)
    assert sum("as in the code of" in note for note in model.origin.report.notes) == 2


def test_mae_fine_tuned(images, tmp_path):
    theirs = timm_model(global_pool="avg")  # as models_vit.py computes it
    args = argparse.Namespace(
        finetune="mae_pretrain.pth", layer_decay=0.65, input_size=16, blr=1e-3
    )
    torch.save({"model": theirs.state_dict(), "epoch": 99, "args": args}, tmp_path / "tuned.pth")
    ours = load_model(tmp_path / "tuned.pth", num_heads=4)
    close(ours.forward_head(ours(images)), theirs(images))
    assert ours.origin.format == "facebookresearch/mae, fine-tuned"
    assert (ours.config.global_pool, ours.config.fc_norm) == ("avg", True)
    assert ours.origin.crop_share == 0.875  # 224 of 256, as its code evaluates
    args.input_size = "16"  # no size: the tensors show it
    torch.save({"model": theirs.state_dict(), "epoch": 99, "args": args}, tmp_path / "odd.pth")
    assert load_model(tmp_path / "odd.pth", num_heads=4).config.image_size == (16, 16)


@pytest.mark.parametrize(
    ("has_args", "eps"), [(True, 1e-6), (False, 1e-6), (True, 1e-5), (False, 1e-5)]
)
def test_mae_linear_probe_keeps_its_head(has_args, eps, images, tmp_path):
    """As main_linprobe.py saves it, with a batch norm without a scale; and with torch's own."""
    theirs = timm_model(global_pool="token")
    theirs.head = random_model(
        nn.Sequential(nn.BatchNorm1d(32, affine=eps == 1e-5, eps=eps), theirs.head)
    )
    nn.init.normal_(theirs.head[0].running_mean)
    nn.init.uniform_(theirs.head[0].running_var, 0.01, 0.1)  # small: its eps matters
    args = (
        {"args": argparse.Namespace(finetune="mae_pretrain.pth", global_pool=False, blr=0.1)}
        if has_args
        else {}
    )
    torch.save({"model": theirs.state_dict(), **args}, tmp_path / "probe.pth")
    ours = load_model(tmp_path / "probe.pth", num_heads=4)
    close(ours.forward_head(ours(images)), theirs(images))
    assert "batch norm" in ours.origin.report.converted["head.weight"][1]
    network = read_network(read_checkpoint(tmp_path / "probe.pth"), LoadOptions(num_heads=4))
    assert facts(network)["parameters"] == sum(
        value.numel() for value in ours.state_dict().values()
    )
    assert set(ours.origin.report.dropped) == {"model.head.0.num_batches_tracked"}
    theirs.head[0].eps = 1e-3  # which a model in memory says itself
    close(load_model(theirs).forward_head(ours(images)), theirs(images))


# --- DINO and DINOv2 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "branch", "pooling"),
    [("dino", "student", "token"), ("ibot", "student", "token"), ("ibot", None, "mean")],
)
def test_files_of_a_student_and_its_teacher(family, branch, pooling, images, tmp_path):
    """As main_dino.py and main_ibot.py save them.

    iBOT's has two heads, a token for masked patches, and here layer scale.
    """
    ibot, args = (
        family == "ibot",
        {"norm_last_layer": False} if family == "ibot" else {"teacher_temp": 0.04},
    )
    settings = dict(
        num_classes=0,
        global_pool="avg" if pooling == "mean" else "token",
        init_values=0.1 if ibot else None,
    )
    student, teacher = (timm_model(**settings) for _ in range(2))
    head = {"mlp.0.weight": torch.ones(4, 32), "last_layer.weight_g": torch.ones(4, 1)}
    if ibot:
        head |= {"last_layer2.weight_v": torch.ones(4, 1), "mlp2.bias": torch.ones(4)}
    file = {}
    for name, model, wrapped in (("student", student, "module."), ("teacher", teacher, "")):
        state = renamed(model.state_dict(), [(r"ls(\d)\.gamma", r"gamma_\1")])
        file[name] = under(wrapped, under("backbone.", state) | under("head.", head))
    if ibot:
        file["student"]["module.backbone.masked_embed"] = torch.ones(1, 32)
    count = len(file["student"]) + len(file["teacher"])
    file["optimizer"] = {
        "state": {0: {"exp_avg": torch.ones(2)}},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    }
    file |= {"epoch": 7, "args": argparse.Namespace(arch="vit_tiny", **args)}
    file[f"{family}_loss"] = {"center": torch.zeros(1, 4)}
    torch.save(file, tmp_path / "file.pth")
    ours = load_model(tmp_path / "file.pth", branch=branch, num_heads=4)
    theirs = student if branch else teacher
    close(ours(images), theirs.forward_features(images))
    close(ours.forward_head(ours(images)), theirs(images))
    dropped = ours.origin.report.dropped
    other = "teacher" if branch == "student" else "student"
    assert any(
        reason == f"another copy of the network; branch {other} takes it"
        for reason in dropped.values()
    )
    notes = " ".join(ours.origin.report.notes)
    assert f"the weights of {branch or 'teacher'}." in notes
    assert "state of the training" in dropped["optimizer.state.0.exp_avg"]
    assert "state of a loss" in dropped[f"{family}_loss.center"]
    assert (
        len(dropped) + len(ours.origin.report.used) + len(ours.origin.report.converted) == count + 2
    )
    if ibot:
        hidden = dropped["student.module.backbone.masked_embed"]
        assert ("token for masked patches" if branch else "another copy of the network") in hidden
        # extract_backbone_weights.py
        backbone = {key: value for key, value in file["student"].items() if ".head." not in key}
        alone = load_model(
            {key.removeprefix("module.backbone."): value for key, value in backbone.items()},
            num_heads=4,
        )
        close(alone(images), student.forward_features(images))


@pytest.mark.parametrize("family", ["I-JEPA", "MSN"])
def test_files_with_a_target_encoder(family, images, tmp_path):
    """As train.py of facebookresearch/ijepa and msn_train.py of facebookresearch/msn save them."""
    tokens = dict(class_token=False, global_pool="avg") if family == "I-JEPA" else {}
    encoder, target = (timm_model(**tokens, num_classes=0) for _ in range(2))
    projection_head = (
        {"fc.fc1.weight": torch.ones(4, 32), "fc.bn1.running_mean": torch.ones(4)}
        if family == "MSN"
        else {}
    )
    file = {
        "encoder": under("module.", encoder.state_dict() | projection_head),
        "target_encoder": under("module.", target.state_dict() | projection_head),
        "opt": {
            "state": {0: {"exp_avg": torch.ones(2)}},
            "param_groups": [{"lr": 0.1, "params": [0]}],
        },
        "scaler": {"scale": torch.ones(1)},
        "epoch": 3,
    }
    if family == "MSN":
        file["prototypes"] = torch.ones(8, 4)
    else:
        file["predictor"] = {
            "module.mask_token": torch.zeros(1, 1, 8),
            "module.predictor_blocks.0.norm1.bias": torch.ones(8),
        }
    torch.save(file, tmp_path / "latest.pth.tar")
    ours = load_model(tmp_path / "latest.pth.tar", num_heads=4)
    close(ours(images), target.forward_features(images))
    close(ours.forward_head(ours(images)), target(images))
    assert len(ours.origin.report.used) == len(target.state_dict())


DINOV2 = dict(
    image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
)


def huggingface_dinov2(registers: int = 0, **settings) -> nn.Module:
    if registers:
        config = hf.Dinov2WithRegistersConfig(**DINOV2 | settings, num_register_tokens=registers)
        return random_model(hf.Dinov2WithRegistersModel(config))
    return random_model(hf.Dinov2Model(hf.Dinov2Config(**DINOV2 | settings)))


def as_original_dinov2(model: nn.Module, chunked: bool) -> dict[str, Tensor]:
    """transformers' weights under the names of facebookresearch/dinov2."""
    names = (
        (r"^embeddings\.", ""), ("position_embeddings", "pos_embed"),
        (r"patch_embeddings\.projection", "patch_embed.proj"), (r"^layernorm", "norm"),
        (r"^encoder\.layer\.", "blocks."), (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
        (r"attention\.o_proj", "attn.proj"), (r"mlp\.down_proj", "mlp.w3"),
        *([(r"^blocks\.(\d)", r"blocks.0.\1")] if chunked else []),
    )  # fmt: skip
    state = stacked(renamed(model.state_dict(), names), QKV, "attn.qkv")
    return stacked(state, ("gate_proj", "up_proj"), "w12")


@pytest.mark.parametrize(("registers", "swiglu", "chunked"), [(0, False, True), (4, True, False)])
def test_dinov2(registers, swiglu, chunked, images, tmp_path):
    theirs = huggingface_dinov2(registers, use_swiglu_ffn=swiglu)
    state = as_original_dinov2(theirs, chunked)
    file = state
    if chunked:  # a training file
        file = {"teacher": under("backbone.", state) | {"dino_head.mlp.0.weight": torch.ones(2, 2)}}
    torch.save(file, tmp_path / "dinov2.pth")
    ours = load_model(tmp_path / "dinov2.pth", num_heads=4)
    close(ours(images), theirs(images).last_hidden_state)
    report = ours.origin.report
    assert ours.origin.format == "DINOv2"
    assert any(name.endswith("mask_token") for name in report.dropped)
    assert ("pos_embed" in report.converted) == bool(registers)


# --- Hugging Face ---------------------------------------------------------------------------------

VIT_CASES = {
    "no qkv bias, grey, another eps": (
        False,
        dict(qkv_bias=False, num_channels=1, layer_norm_eps=1e-3),
    ),
    "non-square, many heads": (
        True,
        dict(image_size=[8, 24], patch_size=[4, 2], num_attention_heads=16),
    ),
}


def on_disk(model: nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("headed", "settings"), VIT_CASES.values(), ids=VIT_CASES)
def test_huggingface_vit(headed, settings, tmp_path):
    config = hf.ViTConfig(**HUGGINGFACE | settings, num_labels=3)
    theirs = random_model((hf.ViTForImageClassification if headed else hf.ViTModel)(config))
    ours = load_model(on_disk(theirs, tmp_path))
    size = config.image_size if isinstance(config.image_size, list) else [16, 16]
    images = torch.randn(2, config.num_channels, *size)
    if headed:
        close(ours.forward_head(ours(images)), theirs(images).logits)
    else:
        close(ours(images), theirs(images).last_hidden_state)
        assert set(ours.origin.report.dropped) == {"pooler.dense.weight", "pooler.dense.bias"}


# families whose encoder is ViT's: a model, its settings, the part that is its encoder, and words of
# the reason why the other parts are left out
OF_VIT = {
    "ViTMSN": (hf.ViTMSNModel, hf.ViTMSNConfig, "", ""),
    "ViTMSN, classifier": (hf.ViTMSNForImageClassification, hf.ViTMSNConfig, "vit", ""),
    "DeiT": (hf.DeiTModel, hf.DeiTConfig, "", "the pooler"),
    "DeiT, classifier": (hf.DeiTForImageClassification, hf.DeiTConfig, "deit", ""),
    "DeiT, two heads": (
        hf.DeiTForImageClassificationWithTeacher,
        hf.DeiTConfig,
        "deit",
        "whose mean is its answer",
    ),
    "DeiT, SimMIM": (hf.DeiTForMaskedImageModeling, hf.DeiTConfig, "deit", "SimMIM's token"),
    "I-JEPA": (hf.IJepaModel, hf.IJepaConfig, "", ""),
    "I-JEPA, classifier": (hf.IJepaForImageClassification, hf.IJepaConfig, "ijepa", ""),
    "ViT, SimMIM": (hf.ViTForMaskedImageModeling, hf.ViTConfig, "vit", "SimMIM's token"),
}


@pytest.mark.parametrize("case", OF_VIT)
def test_huggingface_families_of_vit(case, images, tmp_path):
    kind, config, body, left_out = OF_VIT[case]
    theirs = random_model(kind(config(**HUGGINGFACE, num_labels=3)))
    expected = (getattr(theirs, body) if body else theirs)(images).last_hidden_state
    from_memory = load_model(
        theirs.state_dict(), num_heads=4, norm_eps=theirs.config.layer_norm_eps
    )
    for ours in (load_model(on_disk(theirs, tmp_path)), from_memory):
        close(ours(images), expected)
        if "classifier" in case:
            close(ours.forward_head(ours(images)), theirs(images).logits)
        assert all(left_out in reason for reason in ours.origin.report.dropped.values())
        assert bool(ours.origin.report.dropped) == bool(left_out)


@pytest.mark.parametrize("norm_pix_loss", [True, False])
def test_huggingface_mae(norm_pix_loss, tmp_path):
    theirs = huggingface_mae(norm_pix_loss=norm_pix_loss)
    ours = load_model(on_disk(theirs, tmp_path))
    check_mae(ours, theirs)
    assert ours.norm_pix_loss is norm_pix_loss


SPELLINGS = {  # of its decoder, beside that of save_pretrained
    "in memory": (),
    "decoder_encoder": (
        (r"attention\.q_proj", "attention.attention.query"),
        (r"attention\.k_proj", "attention.attention.key"),
        (r"attention\.v_proj", "attention.attention.value"),
        (r"attention\.o_proj", "attention.output.dense"), (r"mlp\.fc1", "intermediate.dense"),
        (r"mlp\.fc2", "output.dense"), (r"^vit\.layers", "vit.encoder.layer"),
        (r"decoder\.decoder_layers\.", "decoder.decoder_encoder.layer."),
    ),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_other_spellings_of_the_huggingface_mae_decoder(spelling):
    theirs = huggingface_mae(norm_pix_loss=True)
    state = renamed(theirs.state_dict(), SPELLINGS[spelling])
    ours = load_model(state, num_heads=4, decoder_heads=3, norm_pix_loss=True)
    assert ours.origin.format == "Hugging Face ViTMAE"
    check_mae(ours, theirs)


def test_the_encoder_of_huggingface_mae_alone_gets_the_same_pictures():
    theirs = huggingface_mae()
    whole, alone = load_model(theirs).origin, load_model(theirs.vit).origin
    assert (alone.normalize.mean, alone.interpolation) == (
        whole.normalize.mean,
        whole.interpolation,
    )
    assert alone.format == "Hugging Face ViT"


@pytest.mark.parametrize(
    ("case", "interpolation", "share"), [("ViTMSN", "bilinear", 1.0), ("DeiT", "bicubic", 0.875)]
)
def test_families_with_imagenets_mean_get_it_without_a_preprocessor(case, interpolation, share):
    kind, config, _, _ = OF_VIT[case]
    with warnings.catch_warnings(action="error"):
        origin = load_model(kind(config(**HUGGINGFACE))).origin
    assert (origin.normalize.mean, origin.interpolation) == ([0.485, 0.456, 0.406], interpolation)
    assert origin.crop_share == share


def test_the_mean_of_a_huggingface_vit_without_a_preprocessor_is_a_guess():
    """Google's ViTs have another than DINO's and DeiT's, all of the same architecture."""
    with pytest.warns(
        UserWarning,
        match=r"mean \(0\.5, 0\.5, 0\.5\).*; DINO's and DeiT's use ImageNet's; mean, std",
    ):
        load_model(hf.ViTModel(hf.ViTConfig(**HUGGINGFACE)))


@pytest.mark.parametrize(
    ("registers", "swiglu", "place"), [(0, True, "disk"), (4, False, "disk"), (4, True, "memory")]
)
def test_huggingface_dinov2(registers, swiglu, place, images, tmp_path):
    theirs = huggingface_dinov2(registers, use_swiglu_ffn=swiglu)
    ours = (
        load_model(on_disk(theirs, tmp_path))
        if place == "disk"
        else load_model(theirs.state_dict(), num_heads=4)
    )
    close(ours(images), theirs(images).last_hidden_state)


def test_huggingface_dinov2_classifier_is_left_out_with_the_reason(images, tmp_path):
    theirs = random_model(hf.Dinov2ForImageClassification(hf.Dinov2Config(**DINOV2, num_labels=3)))
    ours = load_model(on_disk(theirs, tmp_path))
    close(ours(images), theirs.dinov2(images).last_hidden_state)
    assert "and the mean of the patches" in ours.origin.report.dropped["classifier.weight"]


# --- torchvision ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("published", "size"), [(False, 16), (True, 24)])
def test_torchvision(published, size):
    theirs = random_model(
        torchvision.models.VisionTransformer(
            image_size=size,
            patch_size=4,
            num_layers=2,
            num_heads=4,
            hidden_dim=32,
            mlp_dim=48,
            num_classes=7,
        )
    )
    state = theirs.state_dict()
    if published:  # the files on its site have the older names of the MLP
        state = {
            k.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): v
            for k, v in state.items()
        }
    ours = load_model(state, num_heads=4)
    images = torch.randn(2, 3, size, size)
    close(ours.forward_head(ours(images)), theirs(images))
    assert ours.origin.interpolation == "bilinear"


# its files, in numbers: patch, width, images
PUBLISHED = [
    (torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1, 16, 768, 224),
    (torchvision.models.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1, 16, 768, 384),
    (torchvision.models.ViT_L_16_Weights.IMAGENET1K_V1, 16, 1024, 224),
    (torchvision.models.ViT_L_32_Weights.IMAGENET1K_V1, 32, 1024, 224),
    (torchvision.models.ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1, 14, 1280, 518),
    (torchvision.models.ViT_H_14_Weights.IMAGENET1K_SWAG_LINEAR_V1, 14, 1280, 224),
]


@pytest.mark.parametrize(
    ("weights", "patch", "width", "size"), PUBLISHED, ids=[str(row[0]) for row in PUBLISHED]
)
def test_the_published_files_of_torchvision_get_their_own_preparation(weights, patch, width, size):
    """Two of SWAG's linear probes look like other files, so these are a guess."""
    theirs = torchvision.models.VisionTransformer(size, patch, 1, 16, width, 8, num_classes=3)
    with warnings.catch_warnings(record=True, action="always") as caught:
        origin = load_model(theirs.state_dict(), num_heads=16).origin
    transform = weights.transforms()
    assert origin.crop_share == transform.crop_size[0] / transform.resize_size[0]
    assert (origin.interpolation, origin.normalize.mean) == (
        transform.interpolation.value,
        transform.mean,
    )
    assert [("SWAG_LINEAR_V1 use crop_share 1" in str(w.message)) for w in caught] == [True] * (
        (patch, size) == (16, 224)
    )


@pytest.mark.parametrize("name", ["vit_b_16", "vit_l_32", "vit_h_14"])
def test_the_heads_of_torchvisions_functions_are_known_those_of_its_class_are_not(name):
    with torch.device("meta"):
        theirs = torchvision.models.get_model(name)
    source = Source(Path(name), dict(theirs.state_dict()))
    heads = theirs.encoder.layers[0].num_heads
    assert torchvision_hints(source).code_heads == {theirs.hidden_dim: heads}

    theirs = torchvision.models.VisionTransformer(16, 8, 2, 8, 768, 16)
    with pytest.warns(UserWarning, match="12 heads of the encoder are a guess"):
        load_model(theirs.state_dict())


# --- refused --------------------------------------------------------------------------------------


# whose stages have a depth each
OF_STAGES = ("swin_tiny_patch4_window7_224", "hiera_tiny_224", "convnext_atto", "resnet18")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("beit_base_patch16_224", "BEiT"),
        ("swin_tiny_patch4_window7_224", "Swin"),
        ("eva02_tiny_patch14_224", "no bias on its keys"),
        ("vit_small_patch16_dinov3", "no pos_embed in it"),
        ("vit_base_patch16_clip_224", "CLIP"),
        ("vit_base_patch16_siglip_224", "SigLIP"),
        ("vit_base_patch16_dinov3_qkvb", r"no bias on its keys \(.*\), as in BEiT and EVA"),
        ("vit_pe_spatial_tiny_patch16_512", r"a norm before its blocks \(.*\), as in CLIP"),
        ("vit_base_patch16_radio_v3", "no norm after their blocks"),
        ("test_vit4", "RMSNorm has no bias"),
    ],
)
def test_other_families_are_refused_by_name(name, family):
    shallow = {} if name in OF_STAGES else {"depth": 2}
    with torch.device("meta"):  # names and shapes are enough
        model = timm.create_model(name, pretrained=False, **shallow)
    with pytest.raises(CheckpointError, match=family) as error:
        load_model(model.state_dict())
    assert "allow" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_r_s16_p8_224", "cait_xxs24_224", "xcit_nano_12_p8_224", "hiera_tiny_224", "convnext_atto", "resnet18",
        "vit_relpos_small_patch16_224", "vit_pe_core_tiny_patch16_384", "vitamin_small_224",
        "beit3_base_patch16_224", "aimv2_large_patch14_224", "vit_small_patch16_18x2_224",
        "vit_dwee_patch16_reg1_gap_256",
    ],
)  # fmt: skip
def test_families_without_a_name_here_do_not_load_either(name):
    shallow = {} if name in OF_STAGES else {"depth": 2}
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False, **shallow)
    with pytest.raises(CheckpointError):
        load_model(model.state_dict())


def test_other_families_of_huggingface_are_refused_by_name():
    small = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    models = {
        "BEiT": hf.BeitModel(
            hf.BeitConfig(**small, image_size=16, patch_size=4, use_relative_position_bias=True)
        ),
        "DINOv3": hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**small, image_size=16, patch_size=4)),
        "Swin": hf.SwinModel(
            hf.SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[1, 2], image_size=32)
        ),
        "CLIP": hf.CLIPVisionModel(hf.CLIPVisionConfig(**small, image_size=16, patch_size=4)),
    }
    for family, model in models.items():
        with pytest.raises(CheckpointError, match=family):
            load_model(model.state_dict())


def test_files_without_a_network_are_named():
    model = timm_model().requires_grad_()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 3, 16, 16)).sum().backward()
    optimizer.step()
    with pytest.raises(
        CheckpointError, match="this is an optimizer's state; the weights are in another file"
    ):
        load_model({"optimizer": optimizer.state_dict(), "epoch": 3})
    adapter = {
        f"base_model.model.blocks.0.attn.qkv.lora_{which}.weight": torch.ones(2, 2)
        for which in "AB"
    }
    with pytest.raises(
        CheckpointError,
        match="this is a LoRA adapter, not a model; merge it into its model with peft",
    ):
        load_model(adapter)
    assert load_model(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, num_heads=4
    )


@pytest.mark.parametrize("body", ["swin_tiny_patch4_window7_224", "beit_base_patch16_224"])
def test_simmim_is_refused_by_name(body):
    """As microsoft/SimMIM saves it: a Swin, or BEiT's vision transformer, under `encoder.`."""
    with torch.device("meta"):
        model = timm.create_model(body, pretrained=False)
        state = {f"encoder.{name}": value for name, value in model.state_dict().items()}
        state |= {
            "encoder.mask_token": torch.zeros(1, 1, 96),
            "decoder.0.weight": torch.zeros(48, 96, 1, 1),
        }
    with pytest.raises(CheckpointError, match="SimMIM"):
        load_model(state)
