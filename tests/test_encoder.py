"""The encoder: timm is the oracle for its logits; laws of masks, order, modes and first weights."""

import itertools
import math

import pytest
import torch
from small import close
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from tiny import randomize, seeded, wide_encoder
from torch import Tensor, nn

from vit.checkpoints import load_model
from vit.config import PRESETS, ModelConfig, ViTConfig
from vit.encoder import DropPath, VisionTransformer
from vit.mae import build_autoencoder
from vit.masking import Mask, make_mask
from vit.patches import patchify, unpatchify

SMALL = dict(image_size=(8, 12), patch_size=(4, 2), embed_dim=16, depth=2, num_heads=2)

# Ours as the keys of timm's arguments; timm takes fc_norm with "avg" unless told otherwise.
TIMM_NAMES = dict(
    image_size="img_size", channels="in_chans", registers="reg_tokens", layer_scale="init_values"
)
CASES = {
    "class token": dict(global_pool="token"),
    "no class token, avg": dict(class_token=False, global_pool="avg", fc_norm=True),
    "class token, avg": dict(global_pool="avg", fc_norm=True),
    "class token, fc_norm": dict(global_pool="token", fc_norm=True),
    "no_embed_class": dict(global_pool="token", no_embed_class=True),
    "registers": dict(global_pool="token", registers=4),
    "registers, no_embed_class": dict(global_pool="token", registers=4, no_embed_class=True),
    "registers alone": dict(
        global_pool="avg", registers=3, class_token=False, no_embed_class=True, fc_norm=False
    ),
    "layer scale, no qkv bias": dict(global_pool="token", layer_scale=0.3, qkv_bias=False),
    "grey, wide MLP": dict(global_pool="token", channels=1, mlp_ratio=6.0),
    "one block, one head": dict(global_pool="token", depth=1, num_heads=1),
    "deep, many heads, no head": dict(global_pool="token", depth=5, num_heads=8, num_classes=0),
    "qk-norm": dict(global_pool="token", qk_norm=True),
    "swiglu": dict(global_pool="token", mlp="swiglu", mlp_ratio=2.5),
}


def small_batch() -> tuple[Tensor, Mask]:
    return torch.randn(3, 3, 8, 12), make_mask("random", 3, (2, 6), 0.5, seeded(1))


def timm_arguments(settings: dict) -> dict:
    """The same model for timm, which counts gate and value of a SwiGLU as one hidden layer."""
    named = {TIMM_NAMES.get(key, key): value for key, value in settings.items()}
    if named.pop("mlp", "gelu") == "swiglu":
        named |= dict(mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, mlp_ratio=2 * named["mlp_ratio"])
    return named


@pytest.mark.parametrize("case", CASES)
def test_timms_weights_give_timms_tokens_and_logits(case):
    """As they are, and as `load_model` reads them.

    That is off a state dict, which says neither heads nor pooling nor a grid.
    """
    settings = SMALL | {"channels": 3, "num_classes": 5} | CASES[case]
    timms = randomize(TimmVisionTransformer(**timm_arguments(settings)))
    ours = VisionTransformer(ViTConfig(**settings))
    ours.load_state_dict(timms.state_dict(), strict=True)
    said = {key: settings[key] for key in ("num_heads", "global_pool")}
    read = load_model(timms.state_dict(), grid_size=(2, 6), **said)
    assert not read.origin.report.dropped
    images = torch.randn(2, settings["channels"], *settings["image_size"], dtype=torch.float64)
    timms.double().eval()
    with torch.no_grad():
        for model in (ours.double().eval(), read.double()):
            tokens, logits = model(images), model.forward_head(model(images))
            close(tokens, timms.forward_features(images), 1e-11)
            close(logits, timms(images), 1e-11)
    assert logits.std() > 0.1  # and not because all is zero


@pytest.mark.parametrize(
    "settings", [dict(pos_embed="sincos", registers=2), dict(class_token=False)], ids=str
)
def test_hidden_pixels_change_not_a_bit(settings):
    encoder, (images, mask) = wide_encoder(**settings), small_batch()
    patches = patchify(images, (4, 2)).masked_fill(mask.mask[:, :, None] > 0, torch.nan)
    tokens = encoder(images, mask)
    assert torch.equal(encoder(unpatchify(patches, (4, 2), (2, 6)), mask), tokens)
    assert tokens.shape == (3, encoder.num_prefix_tokens + 6, 16)


def test_order_of_visible_patches_only_permutes_the_tokens():
    encoder, (images, mask) = wide_encoder(registers=1), small_batch()
    order = torch.randperm(6)
    tokens = encoder(images, mask)
    expected = torch.cat([tokens[:, :2], tokens[:, 2:][:, order]], dim=1)
    other = encoder(images, mask._replace(ids_keep=mask.ids_keep[:, order]))
    close(other, expected)


def test_images_of_another_size_would_get_wrong_positions():
    with pytest.raises(ValueError, match="the images have 4 x 12 pixels"):
        wide_encoder()(torch.randn(1, 3, 4, 12))


def test_drop_path_keeps_or_drops_whole_images_and_keeps_the_mean():
    rate, count = 0.25, 20_000
    assert torch.equal(DropPath(rate).eval()(x := torch.randn(4, 3, 2)), x)
    factors = DropPath(rate).train()(torch.ones(count, 3, 2)).flatten(1)
    assert torch.equal(factors, factors[:, :1].expand_as(factors))
    assert set(factors.unique().tolist()) == {0.0, torch.tensor(1 / (1 - rate)).item()}
    deviation = math.sqrt(rate / (1 - rate) / count)
    assert abs(factors[:, 0].mean() - 1) < 5 * deviation


def test_drop_path_does_what_it_is_given_and_the_same_draws_give_the_same_tokens():
    x, chance = torch.ones(4, 3, 2), torch.tensor([0.1, 0.3, 0.2999, 0.9])
    kept = DropPath(0.3).train()(x, chance)[:, 0, 0] > 0
    assert kept.tolist() == [False, True, False, True]
    encoder, images = wide_encoder(depth=3, drop_path=0.9).train(), torch.randn(3, 3, 8, 12)
    every, none = torch.ones(3, 2, 2), torch.zeros(3, 2, 2)
    assert torch.equal(encoder(images, drop_path=none), encoder(images, drop_path=none))
    # the only block that never drops
    first = encoder.blocks[0](encoder.embed(encoder.patchify(images)))
    torch.testing.assert_close(encoder(images, drop_path=none), encoder.norm(first))
    for block, branch in itertools.product(range(2), repeat=2):
        draws = every.clone()
        draws[1, block, branch] = 0
        changed = encoder(images, drop_path=draws) != encoder(images, drop_path=every)
        assert changed.flatten(1).any(1).tolist() == [False, True, False]


def test_drop_path_grows_as_timms():
    for depth in (1, 2, 5):
        sizes = dict(embed_dim=16, depth=depth, num_heads=2)
        ours = VisionTransformer(ViTConfig(**sizes, drop_path=0.4)).blocks
        timms = TimmVisionTransformer(**sizes, drop_path_rate=0.4).blocks
        expected = [getattr(block.drop_path1, "drop_prob", 0.0) for block in timms]
        assert [block.drop_path1.rate for block in ours] == pytest.approx(expected)


def test_every_matrix_starts_in_its_own_xavier_range():
    encoder = VisionTransformer(ViTConfig(embed_dim=96, depth=2, num_heads=2))
    matrices = [encoder.patch_embed.W_E]
    for block in encoder.blocks:
        attention = [block.attn.W_Q, block.attn.W_K, block.attn.W_V, block.attn.W_O]
        assert {matrix.shape for matrix in attention} == {(96, 96)}
        matrices += [*attention, block.mlp.fc1.weight, block.mlp.fc2.weight]
    for matrix in matrices:
        limit = math.sqrt(6 / sum(matrix.shape))
        assert matrix.abs().max() <= limit
        assert matrix.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.03)


def test_biases_start_at_zero_and_tokens_and_head_small():
    encoder = VisionTransformer(
        ViTConfig(embed_dim=96, depth=1, num_heads=2, registers=8, num_classes=9)
    )
    assert not any(
        parameter.any() for name, parameter in encoder.named_parameters() if name.endswith("bias")
    )
    for small in (torch.cat([encoder.cls_token, encoder.reg_token], dim=1), encoder.head.weight):
        assert small.std().item() == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_build_and_have_timms_shapes(preset):
    config = ModelConfig(preset=preset)
    sizes = {key: PRESETS[preset][key] for key in ("embed_dim", "depth", "num_heads")}
    with torch.device("meta"):  # shapes without the work
        model = build_autoencoder(config.vit_config(), config.decoder_config())
        timms = TimmVisionTransformer(
            img_size=32, patch_size=4, num_classes=0, weight_init="skip", **sizes
        )
    shapes = {name: value.shape for name, value in model.encoder.state_dict().items()}
    assert shapes == {name: value.shape for name, value in timms.state_dict().items()}
