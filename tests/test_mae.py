"""The masked autoencoder: the oracle is transformers' ViTMAE; laws of the loss and its gradient."""

import copy
import math

import pytest
import torch
from small import close
from tiny import SIZES, autoencoder, randomize, same, seeded
from torch import Tensor, nn
from torch.testing import assert_close
from transformers.models.vit_mae.configuration_vit_mae import ViTMAEConfig
from transformers.models.vit_mae.modeling_vit_mae import ViTMAEDecoder, ViTMAEForPreTraining

from vit.checkpoints import load_model
from vit.config import DecoderConfig, ViTConfig
from vit.mae import build_autoencoder, masked_patch_loss, patch_targets
from vit.masking import Mask, make_mask, mask_from_noise, take
from vit.patches import position_table

PATCH, GRID = 4, (4, 4)
DECODER = dict(dim=8, depth=2, num_heads=4)


def theirs(**settings) -> ViTMAEForPreTraining:
    """Their model with every weight and table drawn anew."""
    encoder = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    decoder = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    sizes = encoder | {f"decoder_{key}": value for key, value in decoder.items()}
    model = ViTMAEForPreTraining(
        ViTMAEConfig(image_size=16, patch_size=PATCH, layer_norm_eps=1e-6, **sizes | settings)
    ).eval()
    return randomize(model.requires_grad_()).requires_grad_(False)


def channels_first(patches: Tensor) -> Tensor:
    """Patches (B, L, p q c) -> (B, L, c p q)."""
    return patches.unflatten(-1, (PATCH * PATCH, 3)).transpose(-1, -2).flatten(-2)


def small_batch() -> tuple[Tensor, Mask]:
    return torch.randn(3, 3, 16, 16), make_mask("random", 3, GRID, 0.75, seeded())


@torch.no_grad()
@pytest.mark.parametrize(
    ("image_size", "mask_ratio", "norm_pix_loss"),
    [((16, 16), 0.75, True), ((16, 16), 0.5, False), ((8, 32), 0.75, False)],
)
def test_transformers_weights_and_noise_give_its_loss_and_prediction(
    image_size, mask_ratio, norm_pix_loss
):
    oracle = theirs(mask_ratio=mask_ratio, norm_pix_loss=norm_pix_loss)
    state = load_model(oracle).state_dict()
    wide = image_size != (16, 16)
    if wide:  # the oracle stretches its square table
        tokens = torch.empty(1, 17, 16)
        state["encoder.pos_embed"] = oracle.vit.embeddings.interpolate_pos_encoding(
            tokens, *image_size
        )
    ours = autoencoder(norm_pix_loss, DecoderConfig(**DECODER), image_size=image_size)
    ours.load_state_dict(state, strict=True)

    images, noise = torch.randn(3, 3, *image_size), torch.rand(3, 16)
    expected = oracle(images, noise=noise, interpolate_pos_encoding=wide)
    mask = mask_from_noise(noise, round(16 * (1 - mask_ratio)))
    prediction = ours(images, mask)
    loss = masked_patch_loss(prediction, ours.targets(images), mask.mask)
    assert torch.equal(mask.mask, expected.mask)
    close(prediction, channels_first(expected.logits))
    close(loss, expected.loss)


@pytest.mark.parametrize("norm_pix_loss", [True, False])
def test_loss_is_that_of_the_prediction_and_the_targets(norm_pix_loss):
    model, (images, mask) = autoencoder(norm_pix_loss, drop_path=0.5), small_batch()
    loss, tokens = model.eval().loss(images, mask)
    assert_close(loss, masked_patch_loss(model(images, mask), model.targets(images), mask.mask))
    assert torch.equal(tokens, model.encoder(images, mask))
    draws = torch.rand(3, 1, 2)
    loss, tokens = model.train().loss(images, mask, draws)
    assert torch.equal(tokens, model.encoder(images, mask, draws))
    assert_close(
        loss, masked_patch_loss(model.decoder(tokens, mask), model.targets(images), mask.mask)
    )


@pytest.mark.parametrize("depth", [1, 3])
def test_masked_patches_alone_are_predicted_as_among_all(depth):
    decoder, (images, mask) = DecoderConfig(**DECODER | {"depth": depth}), small_batch()
    model = autoencoder(decoder=decoder, registers=2)
    tokens = model.encoder(images, mask)
    alone = model.decoder.predict_masked(tokens, mask)
    among = model.decoder(tokens, mask)
    assert alone.shape[1] == mask.ids_masked.shape[1] == int(mask.mask[0].sum())
    close(alone, take(among, mask.ids_masked))
    assert mask.mask.gather(1, mask.ids_masked).all()


def test_decoder_has_the_encoders_kind_of_block_where_it_has_none_of_its_own():
    kind = dict(qkv_bias=False, qk_norm=True, mlp="swiglu", mlp_ratio=2.0, norm_eps=1e-3)
    encoder = ViTConfig(**SIZES, **kind, layer_scale=0.1, drop_path=0.5)
    decoder = build_autoencoder(encoder, DecoderConfig(**DECODER, mlp="gelu")).decoder
    assert decoder.config == DecoderConfig(**DECODER | kind | dict(mlp="gelu", qkv="linear"))
    block = decoder.blocks[-1]
    assert block.attn.qkv.bias is None
    assert block.norm1.eps == decoder.norm.eps == 1e-3
    assert isinstance(block.ls1, nn.Identity)
    assert block.drop_path1.rate == 0


@pytest.mark.parametrize("dim", [8, 24])
def test_position_table_is_transformers(dim):
    expected = ViTMAEDecoder(
        ViTMAEConfig(decoder_hidden_size=dim, decoder_num_hidden_layers=0), 16
    ).decoder_pos_embed
    close(position_table("sincos", GRID, 1, dim), expected, 1e-6)


@pytest.mark.parametrize(
    ("pos_embed", "settings"),
    [("learned", dict(registers=2, layer_scale=0.1)), ("sincos", dict(class_token=False))],
    ids=str,
)
def test_gradient_reaches_every_part_and_each_third(pos_embed, settings):
    model = autoencoder(pos_embed=pos_embed, **settings).train()
    model.loss(*small_batch())[0].backward()
    fixed = {"decoder.pos_embed"} | ({"encoder.pos_embed"} if pos_embed == "sincos" else set())
    assert {name for name, parameter in model.named_parameters() if parameter.grad is None} == fixed
    for name, parameter in model.named_parameters():
        if name.endswith("qkv.weight"):
            assert all(third.any() for third in parameter.grad.chunk(3)), name
        elif name not in fixed:
            assert parameter.grad.any(), name


def test_forward_is_pure():
    model, (images, mask) = autoencoder(registers=1).train(), small_batch()
    before = copy.deepcopy(model)
    random_state = torch.get_rng_state()
    assert torch.equal(model(images, mask), model(images, mask))
    assert torch.equal(torch.get_rng_state(), random_state)
    same(model, before)


def test_normalised_targets_have_mean_0_and_unbiased_variance_1():
    targets = patch_targets(5 + 3 * torch.randn(4, 10, 48), norm_pix=True)
    close(targets.mean(-1), torch.zeros(4, 10))
    close(targets.square().sum(-1) / 47, torch.ones(4, 10), 1e-4)
    # patches of one colour
    assert not patch_targets(torch.full((1, 2, 12), 0.5), norm_pix=True).any()


def test_loss_is_the_mean_over_the_values_of_masked_patches():
    prediction, target, (_, mask) = torch.randn(3, 16, 48), torch.randn(3, 16, 48), small_batch()
    errors = (prediction - target).double().square()[mask.mask > 0].flatten().tolist()
    assert len(errors) == 3 * 12 * 48
    assert masked_patch_loss(prediction, target, mask.mask).item() == pytest.approx(
        math.fsum(errors) / len(errors)
    )
    rounded = prediction.bfloat16()  # computed in float32
    exact = masked_patch_loss(rounded.float(), target, mask.mask)
    assert torch.equal(masked_patch_loss(rounded, target, mask.mask), exact)
