"""Frozen parts: bit-equal after real AdamW steps with weight decay, while everything else moves."""

import re

import pytest
import torch
from tiny import seeded
from torch import Tensor, nn

from vit.config import DecoderConfig, OptimConfig, ViTConfig
from vit.errors import ConfigError
from vit.mae import MaskedAutoencoder, build_autoencoder
from vit.masking import make_mask
from vit.training.initial import freeze, restore_frozen_rows
from vit.training.loop import set_learning_rate
from vit.training.optimizer import make_optimizer

ENCODER = dict(
    image_size=(8, 8),
    patch_size=(4, 4),
    embed_dim=8,
    depth=2,
    num_heads=2,
    pos_embed="learned",
    registers=1,
)
ALL = r"0|1|2"

# What is to be frozen: parameters whose name fits the pattern; of a fused qkv layer only the thirds
# that are listed.
PARTS = {
    "patch_embed": (r"encoder\.patch_embed\.", ALL),
    "pos_embed": (r"(encoder|decoder)\.pos_embed", ALL),
    "W_Q": (r".*attn\.qkv\.", "0"),
    "W_K": (r".*attn\.qkv\.", "1"),
    "W_V": (r".*attn\.qkv\.", "2"),
    "W_O": (r".*attn\.proj\.", ALL),
    "mlp": (r".*\.mlp\.", ALL),
    "encoder.blocks.0": (r"encoder\.blocks\.0\.", ALL),
    "decoder": (r"decoder\.", ALL),
    "decoder.W_Q": (r"decoder\..*attn\.qkv\.", "0"),
    "encoder.W_K": (r"encoder\..*attn\.qkv\.", "1"),
    "encoder.blocks.1.attn.W_V": (r"encoder\.blocks\.1\.attn\.qkv\.", "2"),
}


def small_model(**settings) -> MaskedAutoencoder:
    torch.manual_seed(0)
    encoder = ViTConfig(**ENCODER | settings)
    model = build_autoencoder(
        encoder, DecoderConfig(dim=8, depth=1, num_heads=2), norm_pix_loss=True
    )
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    return model


def train(model: MaskedAutoencoder, names: list[str], optimizer: str, steps: int = 4) -> None:
    rows = freeze(model, names)
    updates = make_optimizer(model, OptimConfig(name=optimizer, weight_decay=0.5))
    restore_frozen_rows(updates, rows)
    set_learning_rate(updates, 0.02)
    for step in range(steps):
        draws = seeded(step)
        images = torch.randn(4, 3, 8, 8, generator=draws)
        mask = make_mask("random", 4, (2, 2), 0.5, draws)
        model.loss(images, mask)[0].backward()
        updates.step()
        updates.zero_grad()


def pieces(model: MaskedAutoencoder) -> dict[tuple[str, str], Tensor]:
    """Every parameter that learns, a qkv layer in its three thirds."""
    copies = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            thirds = parameter.chunk(3) if ".qkv." in name else [parameter]
            for index, third in enumerate(thirds):
                copies[name, str(index)] = third.detach().clone()
    return copies


SEVERAL = ("W_Q W_K W_V W_O", "encoder.blocks.0 W_K")


@pytest.mark.parametrize(
    ("names", "optimizer"),
    [
        *((name, "adamw") for name in (*PARTS, *SEVERAL)),
        *((name, "muon") for name in ("W_Q", "pos_embed", *SEVERAL)),
    ],
)
def test_frozen_part_keeps_every_bit_and_the_rest_moves(names, optimizer):
    model, names = small_model(), names.split()
    before = pieces(model)
    train(model, names, optimizer)
    state = dict(model.named_parameters())
    now = {
        (name, i): state[name].chunk(3)[int(i)] if ".qkv." in name else state[name]
        for name, i in before
    }
    unmoved = {key for key in before if torch.equal(before[key], now[key])}
    rules = [PARTS[name] for name in names]
    frozen = {
        (name, i)
        for name, i in before
        if any(re.match(a, name) and re.fullmatch(b, i) for a, b in rules)
    }
    assert frozen
    assert frozen <= unmoved
    # A key's bias adds the same to all scores of a query: its gradient is rounding and nothing
    # else, and need not move it.
    assert not {
        (name, i) for name, i in unmoved - frozen if not (name.endswith("qkv.bias") and i == "1")
    }


@pytest.mark.parametrize("name", ["W_E", "decoder.blocks.1.W_Q"])
def test_unknown_name_is_refused_in_one_line_that_names_the_parts(name):
    with pytest.raises(ConfigError, match=f"^model.freeze: {name!r} [^\n]* it has ") as error:
        freeze(small_model(), [name])
    for part in str(error.value).partition("it has ")[2].split(", "):
        freeze(small_model(), [part])
