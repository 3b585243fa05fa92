"""The architecture of a network.

It is read off the shapes of the tensors and the settings, then changed by the options.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch

from vit.checkpoints.network import Network
from vit.checkpoints.reading import size_text
from vit.config import DecoderConfig, ViTConfig, changed
from vit.patches import SINCOS_ORDERS, sincos_positions

SIZES = {"image_size", "patch_size", "channels"}
"""The options that change what the encoder computes."""
BLOCKS = {"encoder": "blocks.", "decoder": "decoder.blocks."}
# widths with 16 heads, not width / 64: ViT-H and ViT-g of the usual families, MAE's decoder
WITH_16_HEADS = {"encoder": {1152, 1280, 1408, 1664}, "decoder": {512}}
# properties that no tensor shows, assumed for an encoder without settings
MLPS = {"gelu": "an exact GELU", "swiglu": "a SiLU of the first half as gate of the other"}


def read_architecture(network: Network) -> None:
    """Set the network's `encoder` and `decoder`, and convert its tensors to them."""
    # as in the checkpoint, then as the options request it
    stored = ViTConfig(**_read_encoder(network))
    sizes = network.options.model_dump(include=SIZES, exclude_none=True)
    network.encoder = changed(stored, sizes)
    _resize(network, stored)
    if not any(name.startswith("decoder.") for name in network.tensors):
        return

    # the decoder, whose norms have the encoder's eps unless the settings say otherwise
    hints = network.hints.decoder
    width, _ = network.shape("decoder.embed.weight")
    decoder = {**hints, "dim": width, **_read_blocks(network, "decoder", width)}
    _compare(network, decoder, hints)
    network.decoder = DecoderConfig(**decoder)

    # what it predicts
    if network.hints.norm_pix_loss is None:
        network.assume("its decoder predicts pixels, not normalised patches", "norm_pix_loss")


# ---- Read off the tensors ------------------------------------------------------------------------


def _read_encoder(network: Network) -> dict[str, Any]:
    """Return the encoder's settings for `ViTConfig`."""
    tensors = network.tensors
    hints = network.hints.encoder

    # patches and layers
    width, channels, p, q = network.shape("patch_embed.proj.weight")
    if channels == p != q == 3:
        raise network.error(
            "its patch kernels have the 3 colours last, as MLX and TensorFlow store them; in "
            "PyTorch's order, (D, C, p, q), they load"
        )
    encoder = {**hints, "patch_size": (p, q), "channels": channels, "embed_dim": width}
    stated_eps = network.options.norm_eps or hints.get("norm_eps")
    encoder["norm_eps"] = stated_eps or network.format.norm_eps
    encoder |= _read_blocks(network, "encoder", width)

    # what its layers compute, if no known code made the file and no settings give their heads
    if not network.hints.code and "num_heads" not in hints:
        blocks = f"norms before each part of a layer, {MLPS[encoder['mlp']]}, no rotary positions"
        network.assume(f"{blocks}, patches side by side", "")
        if not stated_eps:
            network.assume(f"an eps of {encoder['norm_eps']:g} in its norms", "norm_eps")

    # its initial value matters in training only
    encoder.setdefault("layer_scale", 1e-5)
    if "blocks.0.ls1.gamma" not in tensors:
        encoder["layer_scale"] = None

    # the final norm stands before the pooling or after it
    encoder["fc_norm"] = "fc_norm.weight" in tensors

    # prefix tokens, then positions, whose table may have rows for them
    encoder["class_token"] = "cls_token" in tensors
    encoder["registers"] = network.shape("reg_token")[1] if "reg_token" in tensors else 0
    _read_positions(network, encoder)
    _compare(network, encoder, hints)
    _read_head(network, encoder)
    return encoder


def _read_blocks(network: Network, part: str, width: int) -> dict[str, Any]:
    """Return the settings that the tensors of the layers show, and the number of their heads.

    Args:
        network: the network.
        part: "encoder" or "decoder".
        width: D of its tokens.
    """
    tensors = network.tensors
    hints = getattr(network.hints, part)
    first = f"{BLOCKS[part]}0."

    # A missing layer makes the last one unexpected; a single blocks.9999 is one layer.
    pattern = re.compile(rf"{re.escape(BLOCKS[part])}\d{{1,4}}\.")
    blocks = {match[0] for match in map(pattern.match, tensors) if match}

    # The MLP: fc1.weight (hidden, D) and fc2.weight (D, hidden). A SwiGLU's fc1 also makes gates.
    hidden = network.shape(f"{first}mlp.fc2.weight")[1]
    rows = network.shape(f"{first}mlp.fc1.weight")[0]
    mlp = "swiglu" if rows == 2 * hidden else "gelu"
    # attention; with W_Q, W_K and W_V the identity, there are no weights that show a bias
    qkv_bias = f"{first}attn.qkv.bias" in tensors
    if hints.get("qkv") == "identity":
        qkv_bias = hints.get("qkv_bias", True)
    return {
        "depth": len(blocks),
        # the settings' ratio may be one that is rounded
        "mlp_ratio": hints.get("mlp_ratio", hidden / width),
        "mlp": mlp,
        "qkv_bias": qkv_bias,
        "qk_norm": f"{first}attn.q_norm.weight" in tensors,
        "num_heads": _read_heads(network, part, width),
    }


def _read_heads(network: Network, part: str, width: int) -> int:
    """Return the number of heads: from the option, the settings, or qk-norm; otherwise assume it.

    Args:
        network: the network.
        part: "encoder" or "decoder".
        width: D of its tokens.
    """
    hints = getattr(network.hints, part)
    option = {"encoder": "num_heads", "decoder": "decoder_heads"}[part]
    heads = getattr(network.options, option) or hints.get("num_heads")

    # the norm of the queries shows the size of a head
    q_norm = f"{BLOCKS[part]}0.attn.q_norm.weight"
    if heads is None and q_norm in network.tensors:
        heads = max(width // network.shape(q_norm)[0], 1)
        if heads == 1:
            network.assume(
                f"one head of the {part}, because its q_norm is as wide as its tokens; "
                "some code has such a norm for all heads",
                option,
            )
    if heads is not None:
        return int(heads)

    # The usual ones for a width, which the name of an architecture confirms, but for the decoder of
    # MAE's. Some code has others.
    code = network.format.heads if network.hints.code else {}
    heads, reason = max(width // 64, 1), "64 channels per head"
    if width in WITH_16_HEADS[part]:
        heads, reason = 16, "usual for this width"
    if width in code:
        heads, reason = code[width], f"as in the code of {network.format.name}"
    text = f"{heads} heads of the {part}, {reason}"
    if part == "encoder" and network.hints.code == "named":
        network.note(text)
    else:
        network.assume(text, option)
    return heads


def _read_positions(network: Network, encoder: dict[str, Any]) -> None:
    """Set in `encoder` the image size, the kind of positions, and the rows of the patches."""
    _, length, dim = network.shape("pos_embed")
    table = network.tensors["pos_embed"]
    hints = network.hints.encoder
    registers = encoder["registers"]
    prefix = encoder["class_token"] + registers
    p, q = encoder["patch_size"]

    # How many rows are patches': all that the prefix leaves. With DINOv2's registers, the table has
    # a row for the class token only.
    usual = [length - prefix]
    if registers and network.tensors["reg_token"].theirs[0].endswith("register_tokens"):
        usual.append(length - encoder["class_token"])

    # the grid: from the option or the settings, else a square
    grid = network.options.grid_size
    if grid is None and "image_size" in hints:
        height, width = hints["image_size"]
        grid = (height // p, width // q)
    is_square = grid is None
    if grid is None:
        counts = dict.fromkeys((*usual, length - encoder["class_token"], length))
        squares = [count for count in counts if count > 0 and math.isqrt(count) ** 2 == count]
        if not squares:
            raise network.error(
                f"a position table of {length} rows does not fit a square grid; "
                "give grid_size (rows, columns)"
            )
        side = math.isqrt(squares[0])
        grid = (side, side)
        # 24 patches and a class token also have 25 rows, so a square that leaves other rows is only
        # assumed; so is one of several
        if squares[0] not in usual or len(squares) > 1:
            is_square = False
            network.assume(
                f"{squares[0]} of the {length} rows of its position table are "
                f"{size_text(grid)} patches",
                "grid_size",
            )
    rows, columns = grid
    count = rows * columns
    encoder["image_size"] = (rows * p, columns * q)

    # their kind; that a table is sin-cos on this grid proves the grid
    encoder.setdefault("pos_embed", "learned")
    patches = table.value[0, -count:].float()  # (L, D)
    if "pos_embed" not in hints and not patches.is_meta and patches.shape == (count, dim):
        for order, text in SINCOS_ORDERS.items() if dim % 4 == 0 else ():
            if torch.allclose(patches, sincos_positions(grid, dim, order), atol=1e-3):
                network.note(f"positions: the fixed sin-cos table in {order}'s order, [{text}]")
                encoder["pos_embed"] = "sincos"
                break
    if is_square and encoder["pos_embed"] == "learned":
        network.assume(f"a square grid of {size_text(grid)} patches", "grid_size")

    # the rows of the prefix
    encoder["no_embed_class"] = count == length and hints.get("no_embed_class", prefix > 0)
    if count == length - 1 and registers and encoder["class_token"]:
        positions = table.value  # (1, N, D)
        zeros = positions.new_zeros(1, registers, dim)
        table.change(
            torch.cat([positions[:, :1], zeros, positions[:, 1:]], dim=1),
            "rows of zeros added for the registers, which have no position",
        )


def _compare(network: Network, settings: dict[str, Any], hints: dict[str, Any]) -> None:
    """Refuse hints that contradict the settings that the tensors show or the options ask for."""
    for key, hint in hints.items():
        # the settings' images may end within a patch
        if key != "image_size" and settings[key] != hint:
            raise network.error(
                f"its settings say {key} {size_text(hint)}, not {size_text(settings[key])}"
            )


def _read_head(network: Network, encoder: dict[str, Any]) -> None:
    """Set in `encoder` the pooling and the classes, as in the checkpoint or as requested.

    The pooling is assumed if there is a head that may read something else.
    """
    hints = network.hints.encoder
    options = network.options
    classes = network.shape("head.weight")[0] if "head.weight" in network.tensors else 0
    requested = options.num_classes
    if requested not in (None, classes):
        reason = f"{requested or 'no'} classes were requested, this head has {classes}"
        network.drop("head.weight", reason)
        network.drop("head.bias", reason)

    # a head that the settings name and the file lacks is reported as missing; who replaces a head
    # does not change the settings
    if requested is not None:
        encoder["num_classes"] = requested
    elif classes:
        encoder["num_classes"] = classes

    # settings and format give the input of their own head only; the pooling needs no head
    stated = options.global_pool or hints.get("global_pool")
    usual = "avg" if encoder["fc_norm"] or not encoder["class_token"] else "token"
    encoder["global_pool"] = stated or usual
    is_known = bool(stated or network.format.global_pool) and not network.own_head
    if not (options.global_pool or is_known) and "head.weight" in network.tensors:
        reads = {"token": "the class token", "avg": "the mean of the patches"}
        network.assume(f"its head reads {reads[encoder['global_pool']]}", "global_pool")


# ---- Changed by the options ----------------------------------------------------------------------


def _resize(network: Network, stored: ViTConfig) -> None:
    """Change the tensors of the `stored` architecture to those of the requested one, by timm."""
    requested = network.encoder
    if requested == stored:
        return
    import timm  # takes seconds, and is needed only if a size changes

    # patch kernels (D, C, p, q): by the pseudo-inverse of resizing images (Beyer et al. 2023,
    # "FlexiViT")
    kernels = network.tensors["patch_embed.proj.weight"]
    if requested.patch_size != stored.patch_size:
        size = list(requested.patch_size)
        resized = timm.layers.resample_patch_embed(kernels.value.float(), size)
        kernels.change(resized, f"resized from {size_text(stored.patch_size)} pixels")

    # for one channel, kernels are summed; for more, repeated and scaled
    if requested.channels != stored.channels:
        converted = timm.models.adapt_input_conv(requested.channels, kernels.value.float())
        note = f"{stored.channels} input channels converted to {requested.channels}"
        kernels.change(converted, note)

    # position tables (1, prefix + L, D): bicubic with antialiasing, unlike DINOv2's own code; the
    # prefix's rows stay
    if requested.grid_size == stored.grid_size:
        return
    prefix = stored.class_token + stored.registers
    old = size_text(stored.grid_size)
    note = f"resized from a grid of {old} to {size_text(requested.grid_size)}, bicubic"
    for name in network.tensors.keys() & {"pos_embed", "decoder.pos_embed"}:
        rows = 0 if name == "pos_embed" and stored.no_embed_class else prefix
        table = network.tensors[name]
        resized = timm.layers.resample_abs_pos_embed(
            table.value.float(),
            list(requested.grid_size),
            list(stored.grid_size),
            num_prefix_tokens=rows,
        )
        table.change(resized, note)
