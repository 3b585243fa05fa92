"""Law: weights that other code loads wrong in silence are loaded right here, or refused.

Oracles: the code that made the weights.
"""

import math
import re
import warnings
from collections import OrderedDict

import pytest
import timm
import torch
import transformers as hf
from small import (
    HUGGINGFACE,
    agree,
    autoencoder,
    close,
    mae_state,
    random_model,
    refused,
    timm_model,
    transformers_model,
    under,
    warned,
)
from torch import nn
from transformers.models.rf_detr.configuration_rf_detr import RfDetrDinov2Config
from transformers.models.rf_detr.modeling_rf_detr import RfDetrDinov2Backbone

from vit.checkpoints import load_model
from vit.checkpoints.convert import convert_model
from vit.checkpoints.formats.format import IMAGENET
from vit.errors import CheckpointError
from vit.mae import MaskedAutoencoder
from vit.patches import sincos_positions


def test_a_mae_file_with_decoder_is_not_taken_for_dinov2_and_the_callers_dict_stays():
    state = mae_state(random_model(autoencoder(pos_embed="sincos")))
    assert "mask_token" in state  # by which timm takes it for DINOv2
    before = {name: value.clone() for name, value in state.items()}
    loaded = load_model({"model": state}, num_heads=4, decoder_heads=3, norm_pix_loss=True)
    assert isinstance(loaded, MaskedAutoencoder)
    assert state.keys() == before.keys()
    # a change of the model does not reach the dict either
    for parameter in loaded.parameters():
        parameter.data.zero_()
    assert all(torch.equal(state[name], value) for name, value in before.items())


def test_positions_without_the_class_tokens_stay_as_they_are():
    theirs = timm_model(no_embed_class=True)
    ours = load_model(theirs.state_dict(), num_heads=4)
    agree(ours, theirs)


@pytest.mark.parametrize(("order", "grid"), [("mae", (4, 4)), ("timm", (2, 6))])
def test_the_two_sincos_orders_are_told_apart(order, grid):
    table = sincos_positions(grid, 32, order)
    other = sincos_positions(grid, 32, "timm" if order == "mae" else "mae")
    assert (table - other).abs().max() > 1.9
    if order == "timm":
        theirs = timm.layers.build_sincos2d_pos_embed(
            list(grid), 32, interleave_sin_cos=False, reverse_coord=False
        )
        close(table, theirs)
    state = timm_model(img_size=(4 * grid[0], 4 * grid[1])).state_dict()
    state["pos_embed"] = torch.cat([torch.zeros(1, 32), table])[None]
    ours = load_model(state, grid_size=grid, num_heads=4)
    assert torch.equal(ours.pos_embed, state["pos_embed"])  # the table of the file, whichever it is
    assert not ours.pos_embed.requires_grad
    assert any(
        f"the fixed sin-cos table in {order}'s order" in note for note in ours.origin.report.notes
    )
    state["pos_embed"] = state["pos_embed"] + 0.1  # a learned table
    assert load_model(state, grid_size=grid, num_heads=4).pos_embed.requires_grad


def test_a_grid_that_nothing_says_is_said_to_be_assumed_square():
    state = timm_model(img_size=(8, 32)).state_dict()
    notes = load_model(state, num_heads=4).origin.report.notes
    assert any("a square grid of 4 x 4 patches (grid_size)" in note for note in notes)
    # a square only if the prefix has fewer rows than tokens
    other = timm_model(img_size=(16, 24), reg_tokens=1).state_dict()
    assert "25 of the 26 rows of its position table are 5 x 5" in warned(other, num_heads=4)
    state["pos_embed"][0, 1:] = sincos_positions((4, 4), 32, "mae")
    for settings in ({"grid_size": (2, 8)}, {}):  # given, or proved by the table
        notes = load_model(state, num_heads=4, **settings).origin.report.notes
        assert not any("a square grid" in note for note in notes)


def test_kernels_with_the_colours_last_are_not_taken_for_other_patches():
    state = timm_model().state_dict()
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].permute(0, 2, 3, 1)
    with pytest.raises(CheckpointError, match="colours last"):
        load_model(state, num_heads=4)


def test_a_bare_file_of_timms_warns_that_its_input_is_a_guess_and_options_set_it(tmp_path):
    theirs = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=2)
    path = tmp_path / "bare.pth"
    torch.save(theirs.state_dict(), path)
    assert "timm's own ViTs use 0.5, 0.5 and crop_share 0.9 (mean, std" in warned(path)
    options = dict(mean=(0.5,) * 3, std=(0.5,) * 3, crop_share=0.9, num_heads=3)
    ours = load_model(path, global_pool="token", **options).origin
    described = load_model(theirs).origin
    assert vars(ours.normalize) == vars(described.normalize)
    assert ours.prepared == described.prepared
    assert "one per channel: " in refused(path, mean=(0.5,))
    assert "2 numbers each, but 3 channels" in refused(path, mean=(0.1, 0.9), std=(0.5, 0.5))


@pytest.mark.parametrize(
    ("prefix", "keys"),
    [("", ()), ("module._orig_mod.", ("state_dict",)), ("model.module.", ("checkpoint", "model"))],
)
def test_wrappings_in_any_order_and_nesting(prefix, keys, tmp_path):
    theirs = timm_model()
    # in front of any module that is compiled, sharded or recomputed
    names = [r"(blocks\.1|attn)\.", r"\1._fsdp_wrapped_module."]
    state = {re.sub(*names, name): value for name, value in theirs.state_dict().items()}
    file: dict = under(prefix, state)
    for key in keys:
        file = {key: file, "epoch": 3}
    torch.save(file, tmp_path / "any.pth")
    ours = load_model(tmp_path / "any.pth", num_heads=4)
    agree(ours, theirs)


@pytest.mark.parametrize("to", ["safetensors", "huggingface"])
def test_a_flipped_bit_is_found_wherever_it_is(to, tmp_path):
    ours = load_model(timm_model(num_classes=0).state_dict(), num_heads=4)
    convert_model(ours, to, tmp_path / to)
    load_model(tmp_path / to)
    weights = tmp_path / to / "model.safetensors"
    whole = weights.read_bytes()
    for position in range(0, len(whole), math.ceil(len(whole) / 10)):
        weights.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        with pytest.raises(CheckpointError, match="is damaged: its SHA-256"):
            load_model(tmp_path / to)


# --- a description counts more than names ---------------------------------------------------------


def in_memory(width: int = 384, heads: int = 12, **others: nn.Module | nn.Parameter):
    """A timm model whose heads are not those that another code has for its width."""
    theirs = timm_model(embed_dim=width, num_heads=heads, num_classes=0)
    for name, other in others.items():
        setattr(theirs, name, other)
    return theirs


DINOS_HEAD = nn.Sequential(OrderedDict(mlp=nn.Sequential(nn.Linear(192, 5), nn.GELU())))
MISLEADING = {
    "DINO's head": lambda: in_memory(192, head=DINOS_HEAD),
    "DINOv2's token": lambda: in_memory(mask_token=nn.Parameter(torch.zeros(1, 1, 384))),
    "MoCo's encoder": lambda: nn.ModuleDict({"base_encoder": in_memory(768, 16)}),
}


@pytest.mark.parametrize("case", MISLEADING)
def test_a_model_in_memory_is_what_it_says_whatever_its_names(case, images):
    whole = MISLEADING[case]()
    theirs = next(module for module in whole.modules() if hasattr(module, "forward_features"))
    with warnings.catch_warnings(action="ignore"):
        ours = load_model(whole)
    assert ours.origin.format == "timm"
    close(ours(images), theirs.forward_features(images))


def test_a_described_models_own_head_is_never_lost_in_silence():
    theirs = in_memory(192, head=DINOS_HEAD)
    assert "its classifier is left out: head computes more" in warned(theirs)
    # under MoCo v3's name for its encoder, whose head is no classifier
    assert load_model(nn.ModuleDict({"base_encoder": timm_model()})).config.num_classes == 5


def test_nothing_within_a_block_is_taken_for_a_part_of_the_training():
    name = "blocks.1.attn.predictor.weight"
    for prefix in ("", "model."):
        state = under(prefix, timm_model().state_dict() | {name: torch.ones(32, 32)})
        assert f"unexpected: {prefix}{name}" in refused(state, num_heads=4)
        load_model(state, num_heads=4, allow=name)


class Doubled(nn.Linear):
    """The queries, keys and values of a model's second block, doubled."""

    def __init__(self, model: nn.Module):
        super().__init__(32, 96)
        self.load_state_dict(model.blocks[1].attn.qkv.state_dict())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(tokens)


# what differs in one place of a timm model in memory, and no tensor shows
CHANGED = {
    "activation of a later block": lambda m: setattr(m.blocks[1].mlp, "act", nn.ReLU()),
    "eps of a later block": lambda m: setattr(m.blocks[1].norm2, "eps", 0.1),
    "heads of a later block": lambda m: setattr(m.blocks[1].attn, "num_heads", 8),
    "stride of the patches": lambda m: setattr(m.patch_embed.proj, "stride", (2, 2)),
    "layer of a class of its own": lambda m: m.set_submodule("blocks.1.attn.qkv", Doubled(m)),
    "hook before all": lambda m: m.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,)),
    "replaced features": lambda m: setattr(
        m, "forward_features", lambda x: 2 * type(m).forward_features(m, x)
    ),
    "scale": lambda m: [setattr(m.blocks[1].attn, *of) for of in (("scale", 1), ("fused_attn", 0))],
    "hook": lambda m: m.blocks[1].mlp.register_forward_hook(lambda *of: of[2] * 1.01),
    "replaced forward": lambda m: setattr(m.blocks[0], "forward", lambda tokens: tokens),
    "replaced forward of all": lambda m: setattr(
        m, "forward", lambda images: images.new_ones(1, 5)
    ),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_model_in_memory_is_not_judged_by_its_first_block(case):
    theirs = timm_model(qk_norm=True)
    load_model(theirs)
    CHANGED[case](theirs)
    assert re.search("computes something else|computes no image", refused(theirs))


def test_a_scale_that_fused_attention_ignores_is_ignored():
    theirs = timm_model()
    theirs.blocks[1].attn.scale = 1.0
    agree(load_model(theirs), theirs)


class Around(nn.Module):
    """A model within a module of the user's own, with another head."""

    def __init__(self, change=lambda images: images):
        super().__init__()
        self.net = timm_model(num_classes=0)
        self.head = nn.Linear(32, 7)
        self.change = change

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(self.change(images)))


def test_a_module_around_a_model_changes_neither_its_input_nor_its_answer():
    mean, std = (torch.tensor(of)[:, None, None] for of in IMAGENET)
    for largest in (1, 255):
        theirs = Around(lambda images, of=largest: (images / of - mean) / std)
        load_model(theirs, global_pool="token")
    load_model(Around(), global_pool="token")
    theirs = Around(lambda images: images * 2)
    assert "its Around changes images before they reach net.patch_embed.proj" in refused(theirs)
    theirs = Around()
    theirs.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
    assert "changes images" in refused(theirs)
    theirs = Around()
    theirs.net.register_forward_hook(lambda *of: of[2] * 2)
    assert "its answer computes something else" in refused(theirs)


@pytest.mark.parametrize("library", ["timm", "transformers", "MAE"])
def test_a_model_in_memory_is_compared_and_left_as_it_was(library):
    sizes = HUGGINGFACE | {"layer_norm_eps": 1e-6}
    theirs = {
        "timm": lambda: timm_model(drop_path_rate=0.5, proj_drop_rate=0.5),
        "transformers": lambda: hf.ViTForImageClassification(hf.ViTConfig(**sizes)),
        "MAE": lambda: hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**sizes)),
    }[library]()
    theirs = random_model(theirs).train().requires_grad_(True)
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    random = torch.get_rng_state()
    load_model(theirs)
    load_model(theirs, image_size=32, part="encoder")
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in theirs.modules())
    assert all(weight.grad is None and weight.requires_grad for weight in theirs.parameters())
    assert not any(module._forward_hooks for module in theirs.modules())
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())

    # what a block computes otherwise is found, by its name
    block = next(name for name in before if "layers.1" in name or "blocks.1" in name)
    place = block[: block.index(".1") + 2]
    theirs.get_submodule(place).register_forward_hook(lambda *of: of[2] * 1.01)
    assert f"its {place} computes something else" in refused(theirs)


# --- what no tensor shows -------------------------------------------------------------------------


def test_what_is_assumed_of_a_gated_mlp_is_what_is_computed():
    theirs = timm_model(mlp_layer=timm.layers.GluMlp, mlp_ratio=2.0)
    assert "its blocks.0 computes something else" in refused(theirs)
    assert "a SiLU of the first half as gate of the other, no rotary" in warned(
        theirs.state_dict(), num_heads=4
    )


def test_a_norm_of_queries_as_wide_as_the_tokens_is_a_guess_of_one_head():
    state = timm_model(num_heads=1, qk_norm=True).state_dict()
    assert "one head of the encoder, because its q_norm" in warned(state)
    assert "one head" not in warned(state, num_heads=1)


class LoRA(nn.Module):
    """As peft puts it in place of a layer."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, layer.out_features, bias=False)})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.base_layer(tokens) + self.lora_B.default(self.lora_A.default(tokens))


@pytest.mark.parametrize("place", ["memory", "file", "folder"])
@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_adapters_that_are_not_merged_are_named_with_the_way_to_merge_them(
    library, place, tmp_path
):
    theirs = timm_model() if library == "timm" else transformers_model()
    name = "blocks.1.attn.qkv" if library == "timm" else "layers.1.attention.q_proj"
    theirs.set_submodule(name, LoRA(theirs.get_submodule(name)))
    source: object = nn.ModuleDict({"base_model": nn.ModuleDict({"model": theirs})})
    if place != "memory":
        torch.save(source.state_dict(), tmp_path / "pytorch_model.bin")
        source = tmp_path / "pytorch_model.bin" if place == "file" else tmp_path
    message = refused(source)
    assert "LoRA to be merged first" in message
    assert "merge_and_unload()" in message
    assert "untrained" not in message


def test_fp8_whose_scales_stand_elsewhere_is_refused():
    state = timm_model().state_dict()
    small = {name: value.to(torch.float8_e4m3fn) for name, value in state.items()}
    for scales in ({"scales": {"blocks.0": torch.tensor(0.1)}}, {"amax": {"blocks.0": 0.1}}, {}):
        file = {"model": small} | scales
        assert "is of torch.float8_e4m3fn, and nothing says which scales" in refused(
            file, num_heads=4
        )
        load_model(file, num_heads=4, allow="*")


def test_patches_that_may_overlap_are_among_what_is_assumed(tmp_path):
    """The kernels are as large, the table has more rows, and the stride is in no tensor."""
    theirs = timm_model(img_size=28)
    assert "no rotary positions, patches side by side" in warned(theirs.state_dict(), num_heads=4)
    # in memory they are refused, as are those of settings that say the images' size
    theirs = transformers_model()
    embeddings = theirs.embeddings
    embeddings.position_embeddings = nn.Parameter(torch.zeros(1, 50, 32))
    embeddings.patch_embeddings.projection.stride = (2, 2)
    refused(theirs)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    theirs.config.save_pretrained(tmp_path)
    refused(tmp_path)


# --- settings of transformers ---------------------------------------------------------------------


OF_IMAGES = HUGGINGFACE | {"num_attention_heads": 8, "layer_norm_eps": 0.1}
OF_TEXT = dict(
    vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
)


def captioner(**settings: object) -> nn.Module:
    """An encoder of images and a decoder of text, whose settings stand under their names."""
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        hf.ViTConfig(**OF_IMAGES | settings),
        hf.BertConfig(**OF_TEXT, is_decoder=True, add_cross_attention=True),
    )
    return random_model(hf.VisionEncoderDecoderModel(config))


def two_towers() -> nn.Module:
    """An encoder of images and one of text: the settings of vision_model are vision_config."""
    config = hf.VisionTextDualEncoderConfig.from_vision_text_configs(
        hf.ViTConfig(**OF_IMAGES), hf.BertConfig(**OF_TEXT)
    )
    model = hf.VisionTextDualEncoderModel(config)
    random_model(model.vision_model)
    return model.eval()


def test_settings_of_one_of_two_towers_are_its_own(images):
    theirs = two_towers()
    close(load_model(theirs)(images), theirs.vision_model(images).last_hidden_state)
    words = warned(theirs)
    assert "heads of the encoder" not in words
    assert "is not known here" not in words


@pytest.mark.parametrize("place", ["module", "folder"])
def test_settings_under_the_networks_name_are_its_own(place, images, tmp_path):
    def source(model: nn.Module) -> object:
        model.save_pretrained(tmp_path)
        return {"module": nn.Sequential(model), "folder": tmp_path}[place]

    theirs = captioner()
    ours = load_model(source(theirs))
    close(ours(images), theirs.encoder(images).last_hidden_state)
    assert "the activation 'gelu_new'" in refused(source(captioner(hidden_act="gelu_new")))


def test_a_type_of_model_that_is_not_known_is_a_warning(tmp_path):
    """Its tensors have the names of Dinov2's, and its attention has windows."""
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=16)
    windows = dict(patch_size=4, num_windows=2, window_block_indexes=[0], out_features=["stage2"])
    theirs = RfDetrDinov2Backbone(RfDetrDinov2Config(**sizes, **windows)).eval()
    theirs.save_pretrained(tmp_path)
    assert "its type, rf_detr_dinov2, is not known here" in warned(tmp_path)
    assert "its encoder.layer.0 computes something else" in refused(theirs)
