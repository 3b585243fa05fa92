"""The ways in which pretrained weights are loaded wrong in silence: here each is loaded right, or refused with the reason."""

import argparse
import json
import math
import pickle

import pytest
import timm
import torch
from small import autoencoder, close, random_model, timm_model, transformers_model, under
from timm.layers import resample_abs_pos_embed
from tiny import NORMALIZE
from torch import Tensor, nn

from vit.checkpoints import CheckpointError, convert_model, load_model, save_model
from vit.encoder import VisionTransformer
from vit.mae import MaskedAutoencoder
from vit.masking import make_mask
from vit.patches import patchify, sincos_positions


def mae_file(tmp_path, norm_pix_loss=True):
    """A MAE checkpoint with decoder, and the model that it is of."""
    model = random_model(autoencoder(norm_pix_loss, pos_embed="sincos"))
    save_model(tmp_path / "ours", model, NORMALIZE)
    convert_model(load_model(tmp_path / "ours"), "mae", tmp_path / "mae.pth")
    return tmp_path / "mae.pth", model


def test_1_a_mae_file_with_decoder_is_not_taken_for_dinov2_and_the_callers_dict_stays(tmp_path):
    path, _ = mae_file(tmp_path)
    state = torch.load(path, weights_only=True)["model"]
    assert "mask_token" in state  # by which timm takes it for DINOv2
    before = {name: value.clone() for name, value in state.items()}
    loaded = load_model({"model": state}, num_heads=4, decoder_heads=3, norm_pix_loss=True)
    assert isinstance(loaded, MaskedAutoencoder)
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], value) for name, value in before.items())
    for parameter in loaded.parameters():  # and what is done to the model does not reach the dict either
        parameter.data.zero_()
    assert all(torch.equal(state[name], value) for name, value in before.items())


@pytest.mark.parametrize("registers", [0, 2])
def test_2_a_class_token_may_be_left_out_with_its_position(registers, images):
    theirs = timm_model(reg_tokens=registers, global_pool="avg", fc_norm=False)
    ours = load_model(theirs.state_dict(), class_token=False, num_heads=4)
    patches = theirs.patch_embed(images) + theirs.pos_embed[:, 1 + registers :]
    prefix = [] if not registers else [(theirs.reg_token + theirs.pos_embed[:, 1 : 1 + registers]).expand(2, -1, -1)]
    expected = theirs.norm(theirs.blocks(torch.cat([*prefix, patches], dim=1)))
    close(ours(images), expected)
    assert ours.origin.report.dropped == {"cls_token": "no class token was asked for"}
    assert "class token's row left out" in ours.origin.report.converted["pos_embed"][1]


def test_2_positions_without_the_class_tokens_stay_as_they_are(images):
    theirs = timm_model(no_embed_class=True)
    ours = load_model(theirs.state_dict(), num_heads=4)
    close(ours(images), theirs.forward_features(images))
    without = load_model(theirs.state_dict(), class_token=False, num_heads=4)
    assert torch.equal(without.pos_embed, theirs.pos_embed)


def test_3_the_final_norm_is_never_left_untrained():
    theirs = timm_model(global_pool="token")
    state = theirs.state_dict()
    ours = load_model(state, global_pool="avg", fc_norm=True, num_heads=4)  # what fine-tuning by MAE's recipe does
    assert torch.equal(ours.fc_norm.weight, theirs.norm.weight)
    assert torch.equal(ours.fc_norm.bias, theirs.norm.bias)
    assert ours.origin.report.converted["fc_norm.weight"] == (("norm.weight",), "norm as fc_norm, as asked")
    del state["norm.bias"]
    with pytest.raises(CheckpointError, match=r"missing: norm\.bias; the rest of the model would stay untrained"):
        load_model(state, num_heads=4)
    with pytest.raises(CheckpointError, match="both norm and fc_norm"):
        load_model(
            theirs.state_dict() | {"fc_norm.weight": torch.ones(32), "fc_norm.bias": torch.ones(32)}, num_heads=4
        )


def test_4_predictions_are_turned_from_channel_last_to_channel_first(tmp_path):
    path, model = mae_file(tmp_path)
    theirs = torch.load(path, weights_only=True)["model"]["decoder_pred.weight"]
    ours = load_model(path).decoder.pred.weight
    assert not torch.equal(ours, theirs)
    assert torch.equal(ours.view(3, 16, -1), theirs.view(16, 3, -1).transpose(0, 1))
    assert torch.equal(ours, model.decoder.pred.weight)


def test_5_targets_are_normalised_by_the_unbiased_variance(images):
    patches = patchify(images, (4, 4))
    model = autoencoder()
    deviation = (patches - patches.mean(-1, keepdim=True)).square().sum(-1, keepdim=True) / (48 - 1)
    expected = (patches - patches.mean(-1, keepdim=True)) / (deviation + 1e-6) ** 0.5
    close(model.targets(images), expected)


@pytest.mark.parametrize("order", ["mae", "timm"])
@pytest.mark.parametrize("grid", [(4, 4), (2, 6)])
def test_6_the_two_sincos_orders_are_told_apart(order, grid):
    table = sincos_positions(grid, 32, order)
    other = sincos_positions(grid, 32, "timm" if order == "mae" else "mae")
    assert (table - other).abs().max() > 1.9
    if order == "timm":
        theirs = timm.layers.build_sincos2d_pos_embed(list(grid), 32, interleave_sin_cos=False, reverse_coord=False)
        close(table, theirs)
    state = timm_model(img_size=(4 * grid[0], 4 * grid[1])).state_dict()
    state["pos_embed"] = torch.cat([torch.zeros(1, 32), table])[None]
    ours = load_model(state, grid_size=grid, num_heads=4)
    assert torch.equal(ours.pos_embed, state["pos_embed"])  # the table of the file, whichever it is
    assert not ours.pos_embed.requires_grad
    assert any(f"the fixed sin-cos table in {order}'s order" in note for note in ours.origin.report.notes)
    state["pos_embed"] = state["pos_embed"] + 0.1  # a learned table
    assert load_model(state, grid_size=grid, num_heads=4).pos_embed.requires_grad


@pytest.mark.parametrize("new", [(32, 32), (8, 16), (24, 40)])
def test_7_positions_are_resized_by_timms_function_and_that_is_said(new):
    theirs = timm_model(reg_tokens=2)
    ours = load_model(theirs.state_dict(), image_size=new, num_heads=4)
    grid = [new[0] // 4, new[1] // 4]
    expected = resample_abs_pos_embed(theirs.pos_embed, grid, [4, 4], num_prefix_tokens=3)
    assert torch.equal(ours.pos_embed, expected)
    assert torch.equal(ours.pos_embed[:, :3], theirs.pos_embed[:, :3])
    assert (
        ours.origin.report.converted["pos_embed"][1]
        == f"resized from a grid of 4 x 4 to {grid[0]} x {grid[1]}, bicubic"
    )
    # DINOv2's own way, with its offset and without antialiasing, is another.
    patches = theirs.pos_embed[:, 3:].reshape(1, 4, 4, 32).permute(0, 3, 1, 2)
    scale = ((grid[0] + 0.1) / 4, (grid[1] + 0.1) / 4)
    dinov2 = nn.functional.interpolate(patches, scale_factor=scale, mode="bicubic").permute(0, 2, 3, 1).flatten(1, 2)
    assert (ours.pos_embed[:, 3:] - dinov2).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("side", "dino", "mae"),  # in percent, as docs/checkpoints.md has them
    [(4, 3.9, 4.0), (6, 2.0, 1.6), (7, 1.9, 1.2), (9, 1.3, 1.0), (12, 1.3, 1.0), (16, 1.3, 1.1)],
)
def test_7_how_far_positions_are_from_those_of_dinos_and_maes_own_code(side, dino, mae):
    """As interpolate_pos_encoding of vision_transformer.py and interpolate_pos_embed of util/pos_embed.py resize them."""
    name = "vit-tiny-p4-cifar10"
    table = load_model(name, part="encoder").pos_embed[:, 1:].detach().reshape(1, 8, 8, -1).permute(0, 3, 1, 2)
    ours = load_model(name, part="encoder", image_size=4 * side).pos_embed[:, 1:].detach()
    ways = {dino: dict(scale_factor=((side + 0.1) / 8,) * 2), mae: dict(size=(side, side), align_corners=False)}
    for percent, how in ways.items():
        theirs = nn.functional.interpolate(table, mode="bicubic", **how).permute(0, 2, 3, 1).flatten(1, 2)
        assert round(100 * float((theirs - ours).norm() / ours.norm()), 1) == percent


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-5])
def test_8_the_norms_eps_is_the_checkpoints(eps, tmp_path):
    theirs = random_model(transformers_model(layer_norm_eps=eps))
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert {module.eps for module in ours.modules() if isinstance(module, nn.LayerNorm)} == {eps}
    state = theirs.state_dict()  # nothing says so here: what transformers takes when nothing does
    assert load_model(state, num_heads=4).norm.eps == 1e-12
    assert load_model(timm_model().state_dict(), num_heads=4).norm.eps == 1e-6


def test_9_the_inputs_normalisation_travels_with_the_model(tmp_path):
    theirs = timm.create_model("vit_tiny_patch16_224.augreg_in21k", depth=1, num_classes=2)
    timm.models.save_for_hf(
        theirs, tmp_path / "augreg", model_args=dict(depth=1, num_classes=2), safe_serialization=True
    )
    ours = load_model(tmp_path / "augreg")
    assert ours.origin.normalize.mean == ours.origin.normalize.std == [0.5, 0.5, 0.5]
    for to in ("safetensors", "timm", "huggingface"):
        convert_model(ours, to, tmp_path / to)
        again = load_model(tmp_path / to).origin
        assert (again.normalize.mean, again.normalize.std) == ([0.5] * 3, [0.5] * 3)
        assert again.interpolation == ours.origin.interpolation
        assert not any("normalised" in note for note in again.report.notes)
    guessed = load_model(theirs.state_dict())  # a guess is said
    assert any("nothing says how its input was normalised" in note for note in guessed.origin.report.notes)


def test_10_a_namespace_is_allowed_for_one_call(tmp_path):
    args = argparse.Namespace(norm_pix_loss=False, input_size=16)
    state = torch.load(mae_file(tmp_path)[0], weights_only=True)["model"]
    torch.save({"model": state, "args": args}, tmp_path / "mae.pth")
    loaded = load_model(tmp_path / "mae.pth", num_heads=4, decoder_heads=3)
    assert loaded.norm_pix_loss is False
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "mae.pth", weights_only=True)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model.module."])
@pytest.mark.parametrize("keys", [(), ("model",), ("state_dict",), ("checkpoint", "state_dict", "model")])
def test_11_wrappings_in_any_order_and_nesting(prefix, keys, images, tmp_path):
    theirs = timm_model()
    file: dict = under(prefix, theirs.state_dict())
    for key in keys:
        file = {key: file, "epoch": 3}
    torch.save(file, tmp_path / "any.pth")
    ours = load_model(tmp_path / "any.pth", num_heads=4)
    close(ours.forward_head(ours(images)), theirs(images))


def test_12_what_is_written_for_timm_is_no_pickle_and_loads_bit_equal(tmp_path):
    theirs = timm_model(init_values=0.1, reg_tokens=2)
    ours = load_model(theirs.state_dict(), num_heads=4)
    convert_model(ours, "timm", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.safetensors", "config.json"}
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in theirs.state_dict().items())


@pytest.mark.parametrize("to", ["safetensors", "timm", "huggingface"])
def test_13_a_flipped_bit_is_found_wherever_it_is(to, tmp_path):
    ours = load_model(timm_model(num_classes=0).state_dict(), num_heads=4)
    convert_model(ours, to, tmp_path / to)
    assert len(json.loads((tmp_path / to / "config.json").read_text())["sha256"]) == 64
    load_model(tmp_path / to)
    weights = tmp_path / to / "model.safetensors"
    whole = weights.read_bytes()
    for where in range(0, len(whole), math.ceil(len(whole) / 50)):
        weights.write_bytes(whole[:where] + bytes([whole[where] ^ 4]) + whole[where + 1 :])
        with pytest.raises(CheckpointError, match="is damaged: its SHA-256"):
            load_model(tmp_path / to)


def tokens(model: VisionTransformer, images: Tensor) -> Tensor:
    return model(images, make_mask("random", len(images), (4, 4), 0.75, torch.Generator().manual_seed(0)))


def test_masked_encoding_is_kept_through_formats(images, tmp_path):
    path, model = mae_file(tmp_path)
    loaded = load_model(path, part="encoder")
    assert torch.equal(tokens(loaded, images), tokens(model.encoder, images))
