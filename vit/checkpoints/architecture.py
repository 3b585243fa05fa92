"""The architecture of a network.

It is read off the shapes of the tensors and the settings, then changed by the options.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.formats.format import pair
from vit.checkpoints.network import Network
from vit.checkpoints.reading import size_text
from vit.config import DecoderConfig, ViTConfig
from vit.patches import sincos_positions

# heads by width, if they are not width / 64: ViT-H and ViT-g of the usual families, MAE's decoder
ENCODER_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
DECODER_HEADS = {512: 16}
# what no tensor shows, and an encoder without settings is assumed to have
ASSUMED_BLOCKS = "norms before each part of a block, {}, no rotary positions"
ASSUMED_MLP = {"gelu": "an exact GELU", "swiglu": "a SiLU of the first half as gate of the other"}
# the two orders of the columns of a sin-cos table, in words for the user
SINCOS_ORDERS = {
    "mae": "[sin x, cos x, sin y, cos y]",
    "timm": "[sin y, sin x, cos y, cos x]",
}


def read_architecture(network: Network) -> None:
    """Set the network's `encoder`, `decoder` and `norm_pix_loss`, and convert its tensors to them.

    Raises:
        CheckpointError: the tensors are not a vision transformer's, or contradict its settings or
            the options.
    """
    # the encoder as it is in the checkpoint, then as the options request it
    encoder = _read_encoder(network)
    _set_head(network, encoder)
    _resize(network, encoder)
    network.encoder = ViTConfig(**encoder)

    # the decoder, which no option changes
    options = network.options
    if network.has_decoder():
        network.decoder = _read_decoder(network)
    elif options.decoder_heads is not None or options.norm_pix_loss is not None:
        raise network.error(
            "decoder_heads and norm_pix_loss are for a decoder, and none is loaded; leave them out"
        )


# ---- Read off the tensors ------------------------------------------------------------------------


def _read_encoder(network: Network) -> dict[str, Any]:
    """Return the encoder's settings for `ViTConfig`, except those of its head."""
    tensors = network.tensors
    hints = network.hints.encoder

    # Patches and width, compared at once: a wrong width would make the heads seem wrong.
    width, channels, p, q = network.shape("patch_embed.proj.weight", 4)
    if channels == p != q == 3:
        raise network.error(
            f"its patch kernels are {size_text((width, channels, p, q))}, with the 3 colours last, "
            "as MLX and TensorFlow store them; in PyTorch's order, (D, C, p, q), they load"
        )
    encoder: dict[str, Any] = {"patch_size": (p, q), "channels": channels, "embed_dim": width}
    _compare(network, encoder, hints)

    # blocks and norms
    encoder |= _read_blocks(network, "encoder", width)
    encoder["layer_scale"] = _read_layer_scale(network)
    if "drop_path" in hints:
        encoder["drop_path"] = hints["drop_path"]
    encoder["norm_eps"] = _read_norm_eps(network)

    # prefix tokens, then positions, whose table may have rows for them
    encoder["class_token"] = "cls_token" in tensors
    encoder["registers"] = network.shape("reg_token", 3)[1] if "reg_token" in tensors else 0
    rows, columns = _read_positions(network, encoder)
    encoder["image_size"] = (rows * p, columns * q)
    _compare(network, encoder, hints)
    return encoder


def _read_decoder(network: Network) -> DecoderConfig:
    """Return the decoder's settings, and set the network's `norm_pix_loss`."""
    hints = network.hints.decoder

    # its width and blocks; its norms have the encoder's eps unless the settings say otherwise
    width, _ = network.shape("decoder.embed.weight", 2)
    decoder: dict[str, Any] = {"dim": width, **_read_blocks(network, "decoder", width)}
    _compare(network, decoder, hints)
    decoder["norm_eps"] = hints.get("norm_eps", network.encoder.norm_eps)

    # what it predicts
    norm_pix_loss = _option_or_hint(
        network, "norm_pix_loss", network.options.norm_pix_loss, network.hints.norm_pix_loss
    )
    if norm_pix_loss is None:
        network.note(
            "nothing says whether the decoder predicts normalised patches; assuming no; "
            "norm_pix_loss sets it"
        )
    network.norm_pix_loss = bool(norm_pix_loss)
    return DecoderConfig(**decoder)


def _read_blocks(network: Network, part: str, width: int) -> dict[str, Any]:
    """Return the settings that the tensors of the blocks show, and the number of their heads.

    Args:
        network: the network.
        part: "encoder" or "decoder".
        width: D of its tokens.
    """
    tensors = network.tensors
    hints = getattr(network.hints, part)
    container = _container(part)
    first = f"{container}0."
    depth = _count_blocks(network, container)

    # The MLP: fc1.weight (hidden, D) and fc2.weight (D, hidden). A SwiGLU's fc1 makes gates, too.
    hidden = network.shape(f"{first}mlp.fc2.weight", 2)[1]
    rows = network.shape(f"{first}mlp.fc1.weight", 2)[0]
    if rows == hidden:
        mlp = "gelu"
    elif rows == 2 * hidden:
        mlp = "swiglu"
    else:
        raise network.error(
            f"{first}mlp.fc1.weight has {rows} rows, where {hidden} are expected "
            f"(SwiGLU: {2 * hidden})"
        )

    # The settings may round: ratio x width is rounded here and truncated in timm.
    mlp_ratio = hints.get("mlp_ratio", 0)
    if abs(mlp_ratio * width - hidden) >= 1:
        mlp_ratio = hidden / width

    # norms
    has_norm_bias = any(name.endswith("norm1.bias") for name in tensors)
    if f"{first}norm1.weight" in tensors and not has_norm_bias:
        raise network.error(
            "its norms have no bias (RMSNorm, mostly), and this encoder computes others"
        )

    # attention; with W_Q, W_K and W_V the identity, there are no weights that show a bias
    qkv = "linear"
    qkv_bias = f"{first}attn.qkv.bias" in tensors
    if hints.get("qkv") == "identity":
        qkv = "identity"
        qkv_bias = qkv_bias or hints.get("qkv_bias", True)
    return {
        "depth": depth,
        "mlp_ratio": mlp_ratio,
        "mlp": mlp,
        "qkv": qkv,
        "qkv_bias": qkv_bias,
        "qk_norm": f"{first}attn.q_norm.weight" in tensors,
        "num_heads": _read_heads(network, part, width, mlp),
    }


def _container(part: str) -> str:
    """Return the prefix of the blocks of "encoder" or "decoder"."""
    return "decoder.blocks." if part == "decoder" else "blocks."


def _count_blocks(network: Network, container: str) -> int:
    """Return the number of blocks, as their names show it."""
    numbers = set()
    for name in network.tensors:
        match = re.match(rf"{re.escape(container)}(\d{{1,4}})\.", name)
        if match:
            numbers.add(int(match[1]))

    # A single blocks.9999 must not make ten thousand blocks; a few that are absent are reported
    # as missing tensors.
    last = max(numbers, default=0)
    if last + 1 > 2 * max(len(numbers), 1):
        raise network.error(f"{container}{last} without most of the blocks before it")
    return last + 1


def _read_heads(network: Network, part: str, width: int, mlp: str) -> int:
    """Return the number of heads: from the option, the settings, or qk-norm; else it is a guess.

    Args:
        network: the network.
        part: "encoder" or "decoder".
        width: D of its tokens.
        mlp: as in `ViTConfig`.
    """
    hints = getattr(network.hints, part)
    option = "decoder_heads" if part == "decoder" else "num_heads"
    heads = _option_or_hint(
        network, option, getattr(network.options, option), hints.get("num_heads")
    )

    # the norm of the queries shows the size of a head
    q_norm = f"{_container(part)}0.attn.q_norm.weight"
    if q_norm in network.tensors:
        (head_dim,) = network.shape(q_norm, 1)
        if heads is None and head_dim < width:
            heads = width // head_dim
        elif heads is None:
            heads = 1
            network.guess(
                f"assuming one head of the {part}, because its q_norm is as wide as its tokens; "
                f"some code has such a norm for all heads; {option} sets them"
            )
        if heads * head_dim != width:
            raise network.error(
                f"{heads} heads of {head_dim} channels (from its q_norm) "
                f"do not make its width of {width}"
            )

    # The code that made the file has blocks of a known kind, as has a family whose settings say the
    # heads.
    blocks_known = network.hints.blocks_known
    assumed = ""
    if part == "encoder" and "num_heads" not in hints and not blocks_known:
        assumed = ASSUMED_BLOCKS.format(ASSUMED_MLP[mlp])

    # It has usual heads for a width; a decoder is MAE's.
    if heads is None and blocks_known:
        usual = DECODER_HEADS if part == "decoder" else network.hints.code_heads
        heads = usual.get(width)
        if heads is not None:
            network.note(f"{heads} heads of the {part}, as in the code of {network.format.name}")
    if heads is None:
        heads = _guess_heads(network, part, width, assumed)
    elif assumed:
        network.guess(f"nothing says what its blocks compute; assuming {assumed}")
    if width % heads:
        raise network.error(f"{heads} heads do not divide its width of {width}")
    return heads


def _guess_heads(network: Network, part: str, width: int, assumed: str) -> int:
    """Return the number of heads that is usual for a width, and tell that it is a guess.

    Args:
        network: the network.
        part: "encoder" or "decoder".
        width: D of its tokens.
        assumed: what else is a guess about its blocks, in words; "" for nothing.
    """
    option = "num_heads"
    usual = ENCODER_HEADS
    if part == "decoder":
        option = "decoder_heads"
        usual = DECODER_HEADS
    heads = usual.get(width, width // 64)
    reason = "usual for this width" if width in usual else "64 channels per head"

    # a width of less than 64, or not a multiple of the heads
    if heads == 0 or width % heads:
        silence = "there is no config.json that says"
        if network.source.config:
            silence = "its settings do not say"
        raise network.error(f"{silence} how many heads its width of {width} has; give {option}")

    guess = f"{heads} heads of the {part} are a guess ({reason})"
    if assumed:
        guess += f", as are {assumed}"
    network.guess(f"{guess}; {option} sets them")
    return heads


def _read_layer_scale(network: Network) -> float | None:
    """Return the initial value of layer scale, which matters in training only; None without it."""
    hints = network.hints.encoder
    if "blocks.0.ls1.gamma" in network.tensors:
        value = hints.get("layer_scale", 1e-5)
        if value is None:
            raise network.error("its settings say no layer scale, its tensors hold one")
        return value
    if hints.get("layer_scale") is not None:
        raise network.error("its settings say a layer scale, its tensors hold none")
    return None


def _read_norm_eps(network: Network) -> float:
    """Return the eps of all norms: from the option, the settings, or the format's default."""
    eps = _option_or_hint(
        network, "norm_eps", network.options.norm_eps, network.hints.encoder.get("norm_eps")
    )
    if eps is not None:
        return eps
    usual = network.format.norm_eps
    if usual != ViTConfig().norm_eps:
        network.note(
            f"nothing says the eps of its norms; assuming {usual:g}, "
            f"the default of {network.format.name}; norm_eps sets it"
        )
    return usual


def _read_positions(network: Network, encoder: dict[str, Any]) -> tuple[int, int]:
    """Return the position table's grid of patches, (rows, columns).

    Set in `encoder` the kind of positions, and whether the table has rows for the prefix tokens.
    """
    if "pos_embed" not in network.tensors:
        raise network.error(
            "it has no position table; other kinds of positions, e.g. rotary (EVA, DINOv3) or "
            "relative (BEiT), are not supported"
        )
    table = network.tensors["pos_embed"]  # (1, N, D)
    _, length, _ = network.shape("pos_embed", 3)
    hints = network.hints.encoder
    registers = encoder["registers"]
    prefix = encoder["class_token"] + registers

    # How many rows may be patches': all that the prefix leaves, or all. With registers, DINOv2's
    # table has a row for the class token only.
    counts = {length - prefix, length, length - encoder["class_token"]}

    # the grid: from the option or the settings, else a square
    grid = _option_or_hint(
        network, "grid_size", pair(network.options.grid_size), _grid_in_settings(network, encoder)
    )
    assumed = ""
    if grid is None:
        side = _square_side(network, length, counts)
        grid = (side, side)
        # 24 patches and a class token have 25 rows, too, so a square that leaves no rows for the
        # prefix is a guess; DINOv2's registers, by their name, have none
        usual = {length - prefix}
        if registers and network.tensors["reg_token"].theirs[0].endswith("register_tokens"):
            usual.add(length - encoder["class_token"])
        if side**2 not in usual:
            network.guess(
                f"assuming that {side**2} of the {length} rows of its position table are "
                f"{size_text(grid)} patches; grid_size sets them"
            )
        else:
            assumed = f"assuming its grid is square, {size_text(grid)} patches; grid_size sets it"
    count = grid[0] * grid[1]
    if count not in counts:
        raise network.error(
            f"pos_embed has {length} rows, which is not a grid of {grid[0]} x {grid[1]} patches"
        )

    # their kind; that a table is sin-cos on this grid proves the grid
    encoder["pos_embed"] = hints.get("pos_embed")
    if encoder["pos_embed"] is None:
        encoder["pos_embed"] = _kind_of_positions(network, table.value[0, -count:].float(), grid)
    if assumed and encoder["pos_embed"] == "learned":
        network.note(assumed)

    # the rows of the prefix
    encoder["no_embed_class"] = count == length and (
        prefix > 0 or bool(hints.get("no_embed_class"))
    )
    if count == length - 1 and prefix > 1 and encoder["class_token"]:
        positions = table.value  # (1, N, D)
        zeros = positions.new_zeros(1, registers, positions.shape[2])
        table.change(
            torch.cat([positions[:, :1], zeros, positions[:, 1:]], dim=1),
            "rows of zeros put in for the registers, which have no position",
        )
    return grid


def _grid_in_settings(network: Network, encoder: dict[str, Any]) -> tuple[int, int] | None:
    """Return the grid of patches that the settings say, (rows, columns); None if they do not."""
    hints = network.hints.encoder
    if "image_size" not in hints:
        return None
    height, width = hints["image_size"]
    p, q = encoder["patch_size"]
    return height // p, width // q


def _square_side(network: Network, length: int, counts: set[int]) -> int:
    """Return the side of the square of patches in a position table.

    Args:
        network: the network.
        length: the number of rows of the table.
        counts: how many of the rows may be patches'; only one count may be a square.
    """
    sides = []
    for count in counts:
        if count > 0 and math.isqrt(count) ** 2 == count:
            sides.append(math.isqrt(count))
    if len(sides) != 1:
        raise network.error(
            f"a position table of {length} rows does not fit a square grid; "
            "give grid_size (rows, columns)"
        )
    return sides[0]


def _kind_of_positions(network: Network, patches: Tensor, grid: tuple[int, int]) -> str:
    """Return "sincos" if the rows of the patches (L, D) are the fixed table, else "learned"."""
    width = patches.shape[1]
    if patches.device.type == "meta" or width % 4:
        return "learned"
    for order, columns in SINCOS_ORDERS.items():
        if torch.allclose(patches, sincos_positions(grid, width, order), atol=1e-3):
            network.note(f"positions: the fixed sin-cos table in {order}'s order, {columns}")
            return "sincos"
    return "learned"


def _compare(network: Network, settings: dict[str, Any], hints: dict[str, Any]) -> None:
    """Refuse hints that contradict the settings that the tensors show.

    An image size that ends within a patch is only noted.
    """
    for key, value in settings.items():
        # compared where they are read
        if key not in hints or key in ("layer_scale", "pos_embed"):
            continue
        hint: Any = hints[key]
        if value == hint or (key == "mlp_ratio" and math.isclose(value, hint)):
            continue

        difference = f"{size_text(hint)}, its tensors {size_text(value)}"
        if key != "image_size":
            raise network.error(f"its settings say {key} {difference}")
        p, q = settings["patch_size"]
        if (hint[0] // p, hint[1] // q) != (value[0] // p, value[1] // q):
            network.note(f"its settings say images of {difference}")


def _option_or_hint(network: Network, key: str, option: Any, hint: Any) -> Any:
    """Return the option, or the hint from the settings, which must not differ; None for neither."""
    if option is None:
        return hint
    if hint is not None and option != hint:
        raise network.error(
            f"you gave {key} {size_text(option)}, its settings say {size_text(hint)}"
        )
    return option


# ---- Changed by the options ----------------------------------------------------------------------


def _set_head(network: Network, encoder: dict[str, Any]) -> None:
    """Set the final norm as in the checkpoint, the pooling and the head also as requested."""
    tensors = network.tensors
    options = network.options
    hints = network.hints.encoder

    # the final norm that the tensors show, before the pooling (norm) or after it (fc_norm)
    fc_norm = "fc_norm.weight" in tensors
    if fc_norm and "norm.weight" in tensors:
        raise network.error(
            "it holds both norm and fc_norm; a model has one final norm, "
            "before the pooling or after"
        )
    if tensors.keys().isdisjoint(("norm.weight", "norm.bias", "fc_norm.weight", "fc_norm.bias")):
        raise network.error(
            "it has no norm after its blocks (nor do RADIO and InternViT); this encoder has one"
        )

    # what the settings say of it must agree
    classes = network.shape("head.weight", 2)[0] if "head.weight" in tensors else 0
    _compare(network, {"fc_norm": fc_norm}, hints)
    encoder["fc_norm"] = fc_norm

    # settings are not changed by those who replace a head
    stated = hints.get("num_classes", 0)
    if options.num_classes is None and classes and stated not in (0, classes):
        network.note(f"its settings say {stated} classes, its head has {classes}")

    # the pooling, which needs no head
    keeps_head = classes > 0 and options.num_classes in (None, classes)
    encoder["global_pool"] = options.global_pool
    if not encoder["global_pool"]:
        encoder["global_pool"] = _read_pooling(network, encoder["class_token"], keeps_head)

    # the head; one that the settings name and the file lacks is reported as missing
    encoder["num_classes"] = classes or hints.get("num_classes", 0)
    if options.num_classes is not None:
        encoder["num_classes"] = options.num_classes
        if not keeps_head:
            reason = (
                f"{options.num_classes or 'no'} classes were requested, this head has {classes}"
            )
            network.drop("head.weight", reason)
            network.drop("head.bias", reason)


def _read_pooling(network: Network, class_token: bool, keeps_head: bool) -> str:
    """Return what the head reads; say so if that is a guess and there is a head to be read wrong.

    The settings and the format say it of their own head only.
    """
    fc_norm = "fc_norm.weight" in network.tensors
    stated = network.hints.encoder.get("global_pool")
    pooling = stated
    if pooling is None:
        pooling = "token" if class_token and not fc_norm else "avg"

    is_known = bool(stated or network.format.global_pool) and not network.own_head
    if is_known or not keeps_head or not class_token:
        return pooling
    if fc_norm and stated is None:
        network.note(
            "its fc_norm suggests that its head reads the mean of the patches; global_pool sets it"
        )
        return pooling
    reads = {"token": "the class token", "avg": "the mean of the patches"}
    network.guess(
        f"nothing says what its head reads; assuming {reads[pooling]}; global_pool sets it"
    )
    return pooling


def _resize(network: Network, encoder: dict[str, Any]) -> None:
    """Resize patch kernels and positions, and change the number of input channels, by timm."""
    # what changes
    options = network.options
    patch_size = pair(options.patch_size) or encoder["patch_size"]
    image_size = pair(options.image_size) or encoder["image_size"]
    channels = options.channels or encoder["channels"]
    old_patch_size = encoder["patch_size"]
    old_channels = encoder["channels"]
    old_grid = _grid_of(encoder["image_size"], old_patch_size)
    new_grid = _grid_of(image_size, patch_size)
    same_patches = patch_size == old_patch_size and channels == old_channels

    # what cannot be changed
    if network.has_decoder() and not same_patches:
        raise network.error(
            "its decoder predicts patches of its own size and channels; "
            "part='encoder' (--part encoder) leaves it out"
        )
    if channels != old_channels and old_channels != 3:
        raise network.error(
            f"{old_channels} input channels cannot be converted to {channels}; only three can"
        )
    if image_size[0] % patch_size[0] or image_size[1] % patch_size[1]:
        raise network.error(
            f"patches of {size_text(patch_size)} do not divide images of {size_text(image_size)}; "
            "give both sizes"
        )

    encoder["patch_size"] = patch_size
    encoder["image_size"] = image_size
    encoder["channels"] = channels
    if same_patches and new_grid == old_grid:
        return
    import timm  # takes seconds, and is needed only if a size changes

    # patch kernels (D, C, p, q): by the pseudo-inverse of resizing images (Beyer et al. 2023,
    # "FlexiViT")
    kernels = network.tensors["patch_embed.proj.weight"]
    if patch_size != old_patch_size:
        resized = timm.layers.resample_patch_embed(kernels.value.float(), list(patch_size))
        kernels.change(resized, f"resized from {size_text(old_patch_size)} pixels")

    # for one channel, kernels are summed; for more, repeated and scaled
    if channels != old_channels:
        converted = timm.models.adapt_input_conv(channels, kernels.value.float())
        kernels.change(converted, f"3 input channels converted to {channels}")

    # position tables (1, prefix + L, D): bicubic with antialiasing, unlike DINOv2's own code; the
    # prefix's rows stay
    if new_grid == old_grid:
        return
    prefix = encoder["class_token"] + encoder["registers"]
    prefix_rows = {"pos_embed": prefix, "decoder.pos_embed": prefix}
    if encoder["no_embed_class"]:
        prefix_rows["pos_embed"] = 0
    for name, count in prefix_rows.items():
        if name not in network.tensors:
            continue
        table = network.tensors[name]
        resized = timm.layers.resample_abs_pos_embed(
            table.value.float(), list(new_grid), list(old_grid), num_prefix_tokens=count
        )
        table.change(
            resized,
            f"resized from a grid of {size_text(old_grid)} to {size_text(new_grid)}, bicubic",
        )


def _grid_of(image_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    """Return the (rows, columns) of whole patches in an image."""
    return image_size[0] // patch_size[0], image_size[1] // patch_size[1]
