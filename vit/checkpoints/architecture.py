"""The architecture of a network, read off its settings and its tensors' shapes, then changed by the options."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.formats.format import pair
from vit.checkpoints.network import Network
from vit.checkpoints.report import size_text
from vit.config import DecoderConfig, ViTConfig
from vit.patches import sincos_positions

# heads by width, if they are not width / 64: ViT-H and ViT-g of the usual families, and MAE's decoder
ENCODER_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
DECODER_HEADS = {512: 16}


def read_architecture(network: Network) -> None:
    """Set the network's `encoder`, `decoder` and `norm_pix_loss`, and convert its tensors to them.

    Raises:
        CheckpointError: the tensors are not a vision transformer's, or contradict its settings or the options.
    """
    encoder = _read_encoder(network)
    _set_head(network, encoder)
    _set_class_token(network, encoder)
    _resize(network, encoder)
    network.encoder = ViTConfig(**encoder)
    if network.has_decoder():
        network.decoder = _read_decoder(network)
    elif (network.options.decoder_heads, network.options.norm_pix_loss) != (None, None):
        raise network.error(
            "decoder_heads and norm_pix_loss are for a decoder, and none is loaded; leave them out"
        )


# ---- Read off the tensors --------------------------------------------------------------------------------------------


def _read_encoder(network: Network) -> dict[str, Any]:
    """Return the encoder's settings for `ViTConfig`, except those of its head."""
    hints, tensors = network.hints.encoder, network.tensors

    # patches and width; a wrong width would make the heads look wrong
    width, channels, p, q = network.shape("patch_embed.proj.weight", 4)
    encoder: dict[str, Any] = {"patch_size": (p, q), "channels": channels, "embed_dim": width}
    _compare(network, encoder, hints)

    # blocks
    encoder |= _read_blocks(network, "blocks.", width)
    scaled = "blocks.0.ls1.gamma" in tensors
    if "layer_scale" in hints and (hints["layer_scale"] is not None) != scaled:
        said, held = ("no layer scale", "one") if scaled else ("a layer scale", "none")
        raise network.error(f"its settings say {said}, its tensors hold {held}")
    encoder["layer_scale"] = hints.get("layer_scale", 1e-5) if scaled else None
    if "drop_path" in hints:
        encoder["drop_path"] = hints["drop_path"]

    # the eps of all norms
    eps, usual = (
        _given(network, "norm_eps", network.options.norm_eps, hints.get("norm_eps")),
        network.format.norm_eps,
    )
    if eps is None and usual != ViTConfig.norm_eps:
        taken = f"assuming {usual:g}, the default of {network.format.name}"
        network.note(f"nothing says the eps of its norms; {taken}; norm_eps sets it")
    encoder["norm_eps"] = usual if eps is None else eps

    # prefix tokens and positions
    encoder["class_token"] = "cls_token" in tensors
    encoder["registers"] = network.shape("reg_token", 3)[1] if "reg_token" in tensors else 0
    rows, columns = _read_positions(network, encoder)
    encoder["image_size"] = (rows * p, columns * q)
    _compare(network, encoder, hints)
    return encoder


def _read_decoder(network: Network) -> DecoderConfig:
    hints = network.hints.decoder
    width, _ = network.shape("decoder.embed.weight", 2)
    decoder: dict[str, Any] = {"dim": width, **_read_blocks(network, "decoder.blocks.", width)}
    _compare(network, decoder, hints)
    norm_pix_loss = _given(
        network, "norm_pix_loss", network.options.norm_pix_loss, network.hints.norm_pix_loss
    )
    if norm_pix_loss is None:
        what = "whether the decoder predicts normalised patches; assuming no"
        network.note(f"nothing says {what}; norm_pix_loss sets it")
    network.norm_pix_loss = bool(norm_pix_loss)
    return DecoderConfig(**decoder, norm_eps=hints.get("norm_eps", network.encoder.norm_eps))


def _read_blocks(network: Network, container: str, width: int) -> dict[str, Any]:
    """Return the settings that the encoder's or the decoder's blocks show, and their heads."""
    tensors, first = network.tensors, f"{container}0."
    part, option = (
        ("decoder", "decoder_heads")
        if container.startswith("decoder")
        else ("encoder", "num_heads")
    )
    hints = getattr(network.hints, part)

    # how many there are
    matches = [re.match(rf"{re.escape(container)}(\d{{1,4}})\.", name) for name in tensors]
    numbers = {int(match[1]) for match in matches if match}
    depth = max(numbers, default=0) + 1
    if depth > 2 * max(len(numbers), 1):
        raise network.error(f"{container}{max(numbers)} without most of the blocks before it")

    # their kind
    hidden = network.shape(f"{first}mlp.fc2.weight", 2)[1]
    widened = network.shape(f"{first}mlp.fc1.weight", 2)[0]
    if widened not in (hidden, 2 * hidden):
        raise network.error(
            f"{first}mlp.fc1.weight has {widened} rows, where {hidden} are expected (SwiGLU: {2 * hidden})"
        )
    if f"{first}norm1.weight" in tensors and not any(
        name.endswith("norm1.bias") for name in tensors
    ):
        raise network.error(
            "its norms have no bias (RMSNorm, mostly), and this encoder computes others"
        )
    identity = hints.get("qkv") == "identity"
    qk_norm = f"{first}attn.q_norm.weight" in tensors

    # their heads: given, in the settings, shown by qk-norm, or a guess
    heads = _given(network, option, getattr(network.options, option), hints.get("num_heads"))
    if qk_norm:
        (head_dim,) = network.shape(f"{first}attn.q_norm.weight", 1)
        if heads is not None and heads * head_dim != width:
            what = f"{heads} heads of {head_dim} channels (from its q_norm)"
            raise network.error(f"{what} do not make its width of {width}")
        heads = heads or width // head_dim
    described = "num_heads" in hints or part == "decoder"
    assumed = (
        "" if described else "norms before each part of a block, an exact GELU, no rotary positions"
    )
    if heads is None:
        known = DECODER_HEADS if part == "decoder" else ENCODER_HEADS
        heads = known.get(width) or width // 64
        if not heads or width % heads:
            where = (
                "its settings do not say"
                if network.source.config
                else "there is no config.json that says"
            )
            raise network.error(f"{where} how many heads its width of {width} has; give {option}")
        how = "usual for this width" if width in known else "64 channels per head"
        network.guess(
            f"{heads} heads of the {part} are a guess ({how}){assumed and ', as are ' + assumed}; {option} sets them"
        )
    elif assumed:
        network.note(f"nothing says what its blocks compute; assuming {assumed}")
    if width % heads:
        raise network.error(f"{heads} heads do not divide its width of {width}")
    ratio = hints.get("mlp_ratio", 0)  # ratio x width is rounded here and truncated in timm
    return {
        "depth": depth,
        "mlp_ratio": ratio if abs(ratio * width - hidden) < 1 else hidden / width,
        "mlp": "gelu" if widened == hidden else "swiglu",
        "qkv": "identity" if identity else "linear",
        "qkv_bias": f"{first}attn.qkv.bias" in tensors
        or (identity and hints.get("qkv_bias", True)),
        "qk_norm": qk_norm,
        "num_heads": heads,
    }


def _read_positions(network: Network, encoder: dict[str, Any]) -> tuple[int, int]:
    """Return the position table's grid; set its kind in `encoder`, and whether it has rows for the prefix."""
    if "pos_embed" not in network.tensors:
        kinds = "rotary (EVA, DINOv3) or relative (BEiT)"
        raise network.error(
            f"it has no position table; other kinds of positions, e.g. {kinds}, are not supported"
        )
    _, rows, _ = network.shape("pos_embed", 3)
    table, hints = network.tensors["pos_embed"], network.hints.encoder
    registers, prefix = encoder["registers"], encoder["class_token"] + encoder["registers"]

    # the grid: given, in the settings, or a square
    said = None
    if "image_size" in hints:
        (height, image_width), (p, q) = hints["image_size"], encoder["patch_size"]
        said = (height // p, image_width // q)
    grid = _given(network, "grid_size", pair(network.options.grid_size), said)
    assumed = ""
    # with registers, DINOv2's table has a row for the class token only
    counts = {rows - prefix, rows, rows - encoder["class_token"]}
    if grid is None:
        sides = [
            math.isqrt(count) for count in counts if count > 0 and math.isqrt(count) ** 2 == count
        ]
        if len(sides) != 1:
            raise network.error(
                f"a position table of {rows} rows does not fit a square grid; give grid_size (rows, columns)"
            )
        grid = (sides[0], sides[0])
        if (
            sides[0] ** 2 == rows and encoder["class_token"]
        ):  # 24 patches and a class token have 25 rows, too
            network.guess(
                f"assuming its table of {rows} rows is {grid[0]} x {grid[1]} patches; grid_size sets them"
            )
        else:
            assumed = f"assuming its grid is square, {size_text(grid)} patches; grid_size sets it"
    count = grid[0] * grid[1]
    if count not in counts:
        raise network.error(
            f"pos_embed has {rows} rows, which is not a grid of {grid[0]} x {grid[1]} patches"
        )

    # learned, or the fixed sin-cos table in one of its two orders
    patches = table.value[0, -count:].float()
    encoder["pos_embed"] = hints.get("pos_embed")
    if encoder["pos_embed"] is None:
        encoder["pos_embed"] = "learned"
        usable = patches.device.type != "meta" and patches.shape[1] % 4 == 0
        for order, parts in (
            ("mae", "[sin x, cos x, sin y, cos y]"),
            ("timm", "[sin y, sin x, cos y, cos x]"),
        ):
            if usable and torch.allclose(
                patches, sincos_positions(grid, patches.shape[1], order), atol=1e-3
            ):
                network.note(f"positions: the fixed sin-cos table in {order}'s order, {parts}")
                encoder["pos_embed"] = "sincos"
    if assumed and encoder["pos_embed"] == "learned":  # a sin-cos table proves its grid
        network.note(assumed)

    # the rows of the prefix
    encoder["no_embed_class"] = count == rows and (prefix > 0 or bool(hints.get("no_embed_class")))
    if count == rows - 1 and prefix > 1 and encoder["class_token"]:
        what = "rows of zeros put in for the registers, which have no position"
        table.change(_put_zeros(table.value, at=1, count=registers), what)
    return grid


def _compare(network: Network, found: dict[str, Any], hints: dict[str, Any]) -> None:
    """Refuse settings that contradict the tensors; only note an image size that ends within a patch."""
    for key in found.keys() & hints.keys() - {"layer_scale", "pos_embed"}:
        said: Any = hints[key]
        if math.isclose(found[key], said) if key == "mlp_ratio" else found[key] == said:
            continue
        what = f"{size_text(said)}, its tensors {size_text(found[key])}"
        if key != "image_size":
            raise network.error(f"its settings say {key} {what}")
        p, q = found["patch_size"]
        if (said[0] // p, said[1] // q) != (found[key][0] // p, found[key][1] // q):
            network.note(f"its settings say images of {what}")


def _given(network: Network, key: str, given: Any, said: Any) -> Any:
    """Return the option or what the settings say, which must not differ; None for neither."""
    if given is not None and said is not None and given != said:
        raise network.error(
            f"you gave {key} {size_text(given)}, its settings say {size_text(said)}"
        )
    return said if given is None else given


# ---- Changed by the options ------------------------------------------------------------------------------------------


def _set_head(network: Network, encoder: dict[str, Any]) -> None:
    """Set the pooling, the norm before or after it, and the head: as in the checkpoint, or as requested."""
    tensors, options, hints = network.tensors, network.options, network.hints.encoder

    # what the tensors show
    fc_norm = "fc_norm.weight" in tensors
    if fc_norm and "norm.weight" in tensors:
        raise network.error(
            "it holds both norm and fc_norm; a model has one final norm, before the pooling or after"
        )
    if not any(
        f"{norm}.{kind}" in tensors for norm in ("norm", "fc_norm") for kind in ("weight", "bias")
    ):
        raise network.error(
            "it has no norm after its blocks (nor do RADIO and InternViT); this encoder has one"
        )
    classes = network.shape("head.weight", 2)[0] if "head.weight" in tensors else 0
    found: dict[str, Any] = {"fc_norm": fc_norm} if options.fc_norm is None else {}
    if options.num_classes is None and classes:
        found["num_classes"] = classes
    _compare(network, found, hints)

    # the pooling: requested, in the settings, or a guess
    pool = options.global_pool or hints.get("global_pool")
    if not pool:
        pool = "avg" if fc_norm or not encoder["class_token"] else "token"
        if classes and not network.format.global_pool and options.num_classes in (None, classes):
            if pool == "token":
                network.guess(
                    "nothing says what its head reads; assuming the class token; global_pool sets it"
                )
            elif encoder["class_token"]:
                network.note(
                    "its fc_norm suggests that its head reads the mean of the patches; global_pool sets it"
                )
    encoder["global_pool"] = pool

    # the norm, which may change sides
    encoder["fc_norm"] = fc_norm if options.fc_norm is None else options.fc_norm
    if encoder["fc_norm"] != fc_norm:
        old, new = ("norm", "fc_norm") if encoder["fc_norm"] else ("fc_norm", "norm")
        for kind in ("weight", "bias"):
            if f"{old}.{kind}" in tensors:
                tensors[f"{new}.{kind}"] = tensors.pop(f"{old}.{kind}")
                tensors[f"{new}.{kind}"].changes.append(f"{old} as {new}, as requested")

    # a head that the settings name and the file lacks is reported as missing
    encoder["num_classes"] = classes or hints.get("num_classes", 0)
    if options.num_classes is not None:
        encoder["num_classes"] = options.num_classes
        if options.num_classes != classes or options.num_classes == 0:
            for kind in ("weight", "bias"):
                why = (
                    f"{options.num_classes or 'no'} classes were requested, this head has {classes}"
                )
                network.drop(f"head.{kind}", why)


def _set_class_token(network: Network, encoder: dict[str, Any]) -> None:
    """Add or leave out the class token and its position."""
    wanted = network.options.class_token
    if wanted is None or wanted == encoder["class_token"]:
        return
    if network.has_decoder():
        raise network.error(
            "its decoder expects the present tokens; part='encoder' (--part encoder) leaves it out"
        )
    encoder["class_token"] = wanted
    table = network.tensors["pos_embed"]
    if wanted:  # the pooling stays as it was, because the new token is untrained
        if not encoder["no_embed_class"]:
            table.change(
                _put_zeros(table.value, at=0, count=1), "a row of zeros put in for the class token"
            )
        return
    if network.options.global_pool == "token":
        raise network.error("without its class token, global_pool can only be 'avg'")
    if encoder["global_pool"] == "token":
        encoder["global_pool"] = "avg"
        if encoder["num_classes"]:
            network.note(
                "its head was trained on the class token, and now reads the mean of the patches"
            )
    network.drop("cls_token", "no class token was requested")
    if not encoder["no_embed_class"]:
        table.change(table.value[:, 1:], "the class token's row left out")
    if not encoder["registers"]:
        encoder["no_embed_class"] = False


def _resize(network: Network, encoder: dict[str, Any]) -> None:
    """Resize patch kernels and positions, and change the number of input channels, with timm's functions.

    These are imported where they are needed: that takes seconds, and most models that name a size have it already.
    """
    options = network.options
    image_size, patch_size, channels = (
        pair(options.image_size),
        pair(options.patch_size),
        options.channels,
    )
    if image_size is patch_size is channels is None:
        return
    (height, width), (p, q) = encoder["image_size"], encoder["patch_size"]
    old = (height // p, width // q)

    # patch kernels (D, C, p, q): by the pseudo-inverse of resizing images (Beyer et al. 2023, "FlexiViT")
    kernels = network.tensors["patch_embed.proj.weight"]
    if network.has_decoder() and (
        patch_size not in (None, (p, q)) or channels not in (None, encoder["channels"])
    ):
        predicts = "its decoder predicts patches of its own size and channels"
        raise network.error(f"{predicts}; part='encoder' (--part encoder) leaves it out")
    if patch_size is not None and patch_size != (p, q):
        from timm.layers import resample_patch_embed

        resized = resample_patch_embed(kernels.value.float(), list(patch_size))
        kernels.change(resized, f"resized from {size_text((p, q))} pixels")
        encoder["patch_size"] = patch_size

    # for one channel, kernels are summed; for more, repeated and scaled
    if channels is not None and channels != encoder["channels"]:
        if encoder["channels"] != 3:
            raise network.error(
                f"{encoder['channels']} input channels cannot be converted to {channels}; only three can"
            )
        from timm.models import adapt_input_conv

        kernels.change(
            adapt_input_conv(channels, kernels.value.float()),
            f"3 input channels converted to {channels}",
        )
        encoder["channels"] = channels

    # position tables (1, prefix + L, D): bicubic with antialiasing, unlike DINOv2's own code; the prefix's rows stay
    if image_size is None and patch_size is None:
        return
    encoder["image_size"] = image_size or encoder["image_size"]
    (height, width), (p, q) = encoder["image_size"], encoder["patch_size"]
    if height % p or width % q:
        sizes = (
            f"patches of {size_text((p, q))} do not divide images of {size_text((height, width))}"
        )
        raise network.error(f"{sizes}; give both sizes")
    new = (height // p, width // q)
    prefix = encoder["class_token"] + encoder["registers"]
    for name, ahead in (
        ("pos_embed", 0 if encoder["no_embed_class"] else prefix),
        ("decoder.pos_embed", prefix),
    ):
        if name in network.tensors and new != old:
            from timm.layers import resample_abs_pos_embed

            table = network.tensors[name]
            resized = resample_abs_pos_embed(
                table.value.float(), list(new), list(old), num_prefix_tokens=ahead
            )
            table.change(
                resized, f"resized from a grid of {size_text(old)} to {size_text(new)}, bicubic"
            )


def _put_zeros(table: Tensor, at: int, count: int) -> Tensor:
    """Insert `count` rows of zeros into a position table (1, N, D), before row `at`."""
    return torch.cat(
        [table[:, :at], table.new_zeros(1, count, table.shape[2]), table[:, at:]], dim=1
    )
