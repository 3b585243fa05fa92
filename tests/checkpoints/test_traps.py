"""Law: weights that other code loads wrong in silence are loaded right here, or refused.

Oracles: the code that made the weights.
"""

import copy
import json
import re
from collections import OrderedDict

import pytest
import timm
import torch
import transformers as hf
from small import (
    agree,
    autoencoder,
    change,
    close,
    mae_state,
    random_model,
    refused,
    timm_model,
    transformers_model,
    under,
    warned,
)
from tiny import assert_same
from torch import nn

from vit.checkpoints import load_model
from vit.checkpoints.convert import convert_model
from vit.checkpoints.formats.format import IMAGENET
from vit.mae import MaskedAutoencoder
from vit.patches import sincos_positions


def test_a_mae_file_with_decoder_is_not_taken_for_dinov2_and_the_callers_dict_stays():
    state = mae_state(random_model(autoencoder(pos_embed="sincos")))
    assert "mask_token" in state  # by which timm takes it for DINOv2
    before = copy.deepcopy(state)
    loaded = load_model({"model": state}, num_heads=4, decoder_heads=3, norm_pix_loss=True)
    assert isinstance(loaded, MaskedAutoencoder)
    # a change of the model does not reach the dict either
    for parameter in loaded.parameters():
        parameter.data.zero_()
    assert_same(state, before)


@pytest.mark.parametrize(("order", "grid"), [("mae", (4, 4)), ("timm", (2, 6))])
def test_the_two_sincos_orders_are_told_apart(order, grid):
    state = timm_model(img_size=(4 * grid[0], 4 * grid[1])).state_dict()
    state["pos_embed"][0, 1:] = sincos_positions(grid, 32, order)
    options = dict(num_heads=4, grid_size=None if order == "mae" else grid)
    ours = load_model(state, **options)
    assert torch.equal(ours.pos_embed, state["pos_embed"])  # the table of the file, whichever it is
    assert not ours.pos_embed.requires_grad
    notes = str(ours.origin.report)
    assert f"the fixed sin-cos table in {order}'s order" in notes
    assert "a square grid" not in notes  # proved by the table, or given
    state["pos_embed"] += 0.1  # a learned table
    assert load_model(state, **options).pos_embed.requires_grad


def test_kernels_with_the_colours_last_are_not_taken_for_other_patches():
    state = timm_model().state_dict()
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].permute(0, 2, 3, 1)
    assert "colours last" in refused(state, num_heads=4)


def test_options_say_how_the_input_of_a_bare_file_is_made():
    theirs = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=2)
    state = theirs.state_dict()
    ours = load_model(state, mean=(0.5,) * 3, std=(0.5,) * 3, crop_share=0.9).origin
    described = load_model(theirs).origin
    assert vars(ours.normalize) == vars(described.normalize)
    assert ours.prepared == described.prepared
    assert "2 numbers each, but 3 channels" in refused(state, mean=(0.1, 0.9), std=(0.5, 0.5))


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
    for position in (20, len(whole) // 2):
        weights.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        assert "is damaged: its SHA-256" in refused(tmp_path / to)


# --- a description counts more than names ---------------------------------------------------------


def test_a_model_in_memory_is_what_it_says_whatever_its_names(images):
    """Its head has the names of DINO's projection, what holds it that of MoCo's encoder."""
    theirs = timm_model(embed_dim=192, num_heads=12)
    theirs.head = nn.Sequential(OrderedDict(mlp=nn.Sequential(nn.Linear(192, 5), nn.GELU())))
    whole = nn.ModuleDict({"base_encoder": theirs})
    with pytest.warns(UserWarning, match=r"its classifier is left out: .*head computes more"):
        ours = load_model(whole)
    assert ours.origin.format == "timm"
    close(ours(images), theirs.forward_features(images))
    # its head is a classifier, too
    assert load_model(nn.ModuleDict({"base_encoder": timm_model()})).config.num_classes == 5


# what differs in one place of a timm model in memory, and no tensor shows
CHANGED = {
    "activation of a later block": lambda m: setattr(m.blocks[1].mlp, "act", nn.ReLU()),
    "stride of the patches": lambda m: setattr(m.patch_embed.proj, "stride", (2, 2)),
    "hook before all": lambda m: m.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,)),
    "replaced features": lambda m: setattr(
        m, "forward_features", lambda x: 2 * type(m).forward_features(m, x)
    ),
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
    theirs.net.register_forward_hook(lambda *of: of[2] * 2)
    assert "its answer computes something else" in refused(theirs)


@pytest.mark.parametrize("library", ["timm", "transformers", "MAE"])
def test_a_model_in_memory_is_compared_and_left_as_it_was(library):
    eps = {"layer_norm_eps": 1e-6}
    theirs = {
        "timm": lambda: timm_model(drop_path_rate=0.5, proj_drop_rate=0.5),
        "transformers": lambda: transformers_model(hf.ViTForImageClassification, **eps),
        "MAE": lambda: transformers_model(hf.ViTMAEForPreTraining, **eps),
    }[library]()
    theirs = random_model(theirs).train().requires_grad_(True)
    before = copy.deepcopy(theirs.state_dict())
    random = torch.get_rng_state()
    load_model(theirs)
    load_model(theirs, image_size=32, part="encoder")
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in theirs.modules())
    assert all(weight.grad is None and weight.requires_grad for weight in theirs.parameters())
    assert not any(module._forward_hooks for module in theirs.modules())
    assert_same(theirs.state_dict(), before)

    # what a block computes otherwise is found, by its name
    block = next(name for name in before if "layers.1" in name or "blocks.1" in name)
    place = block[: block.index(".1") + 2]
    theirs.get_submodule(place).register_forward_hook(lambda *of: of[2] * 1.01)
    assert f"its {place} computes something else" in refused(theirs)


# --- what no tensor shows -------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["blocks.1.attn.qkv", "layers.1.attention.q_proj"])
def test_adapters_that_are_not_merged_are_named_with_the_way_to_merge_them(layer):
    """As peft puts them in place of a layer of timm's or transformers'."""
    theirs = timm_model() if "blocks" in layer else transformers_model()
    state = {}
    for name, value in theirs.state_dict().items():
        state[name.replace(f"{layer}.", f"{layer}.base_layer.")] = value
    state[f"{layer}.lora_A.default.weight"] = torch.ones(2, 32)
    message = refused(under("base_model.model.", state))
    assert "LoRA to be merged first" in message
    assert "merge_and_unload()" in message


def test_fp8_whose_scales_stand_elsewhere_is_refused():
    state = timm_model().state_dict()
    small = {name: value.to(torch.float8_e4m3fn) for name, value in state.items()}
    file = {"model": small, "scales": {"blocks.0": torch.tensor(0.1)}}
    assert "is of torch.float8_e4m3fn" in refused(file, num_heads=4)
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


@pytest.mark.parametrize(
    ("prefix", "key"), [("encoder.", "encoder"), ("vision_model.", "vision_config")]
)
def test_settings_under_the_networks_name_are_its_own(prefix, key, images, tmp_path):
    """As those of a captioner and of one of two towers stand."""
    theirs = random_model(transformers_model(num_attention_heads=8, layer_norm_eps=0.1))
    torch.save(under(prefix, theirs.state_dict()), tmp_path / "pytorch_model.bin")
    settings = {"model_type": "of two", key: theirs.config.to_dict()}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert "heads of the encoder" not in warned(tmp_path)
    close(load_model(tmp_path)(images), theirs(images).last_hidden_state)


def test_a_type_of_model_that_is_not_known_is_a_warning(tmp_path):
    """Its tensors may have the names of a known one's, as RF-DETR's, whose attention has windows."""
    transformers_model().save_pretrained(tmp_path)
    change(tmp_path, model_type="rf_detr_dinov2")
    assert "its type, rf_detr_dinov2, is not known here" in warned(tmp_path)
