"""Which vision transformer a checkpoint is, read off the shapes of its tensors; its settings say the rest, or a note does."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.formats.format import pair
from vit.checkpoints.origin import size_text
from vit.checkpoints.plan import Plan
from vit.config import DecoderConfig, ViTConfig
from vit.patches import sincos_positions

# Heads by width, if they are not width / 64: ViT-H and ViT-g of the usual families, and MAE's decoder.
ENCODER_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
DECODER_HEADS = {512: 16}


def read_encoder(plan: Plan) -> dict[str, Any]:
    """Return the encoder's settings for `ViTConfig`, those of its head apart.

    Raises:
        CheckpointError: the tensors make no encoder, or contradict the checkpoint's settings or what was asked for.
    """
    hints, tensors = plan.hints.encoder, plan.tensors

    # patches and width; a wrong width would make the heads look wrong
    width, channels, p, q = plan.shape("patch_embed.proj.weight", 4)
    encoder: dict[str, Any] = {"patch_size": (p, q), "channels": channels, "embed_dim": width}
    compare(plan, encoder, hints)

    # blocks
    encoder |= _read_blocks(plan, "blocks.", width, hints, plan.options.num_heads, ENCODER_HEADS)
    scaled = "blocks.0.ls1.gamma" in tensors
    if "layer_scale" in hints and (hints["layer_scale"] is not None) != scaled:
        said, held = ("no layer scale", "one") if scaled else ("a layer scale", "none")
        raise plan.error(f"its settings say {said}, its tensors hold {held}")
    encoder["layer_scale"] = hints.get("layer_scale", 1e-5) if scaled else None

    # prefix tokens, norms and positions
    encoder["class_token"] = "cls_token" in tensors
    encoder["registers"] = plan.shape("reg_token", 3)[1] if "reg_token" in tensors else 0
    encoder["norm_eps"] = _read_norm_eps(plan)
    rows, columns = _read_positions(plan, encoder)
    encoder["image_size"] = (rows * p, columns * q)
    compare(plan, encoder, hints)
    if "drop_path" in hints:
        encoder["drop_path"] = hints["drop_path"]
    return encoder


def read_decoder(plan: Plan, encoder: ViTConfig) -> DecoderConfig | None:
    """Return the decoder's architecture, None for a checkpoint without one; and put `norm_pix_loss` into the plan."""
    if not plan.decodes():
        return None
    hints = plan.hints.decoder
    width, _ = plan.shape("decoder.embed.weight", 2)
    decoder: dict[str, Any] = {"dim": width}
    decoder |= _read_blocks(plan, "decoder.blocks.", width, hints, plan.options.decoder_heads, DECODER_HEADS)
    compare(plan, decoder, hints)
    norm_pix_loss = _given(plan, "norm_pix_loss", plan.options.norm_pix_loss, plan.hints.norm_pix_loss)
    if norm_pix_loss is None:
        what = "whether the decoder predicts normalised patches; taken as no"
        plan.note(f"nothing says {what}; norm_pix_loss sets it")
    plan.norm_pix_loss = bool(norm_pix_loss)
    return DecoderConfig(**decoder, norm_eps=encoder.norm_eps)


def compare(plan: Plan, found: dict[str, Any], hints: dict[str, Any]) -> None:
    """Refuse settings that are not what the tensors show; a patch too few for an image's size is noted."""
    for key in found.keys() & hints.keys() - {"layer_scale", "pos_embed"}:
        said: Any = tuple(hints[key]) if isinstance(hints[key], list) else hints[key]
        if math.isclose(found[key], said) if key == "mlp_ratio" else found[key] == said:
            continue
        what = f"{size_text(said)}, its tensors {size_text(found[key])}"
        if key != "image_size":
            raise plan.error(f"its settings say {key} {what}")
        p, q = found["patch_size"]
        if (said[0] // p, said[1] // q) != (found[key][0] // p, found[key][1] // q):
            plan.note(f"its settings say images of {what}")


def _given(plan: Plan, key: str, given: Any, said: Any) -> Any:
    """Return what was asked for, or what the settings say, which must not contradict each other; None for neither."""
    if given is not None and said is not None and given != said:
        raise plan.error(f"you gave {key} {size_text(given)}, its settings say {size_text(said)}")
    return said if given is None else given


def _read_norm_eps(plan: Plan) -> float:
    """Return the eps of all norms."""
    eps = _given(plan, "norm_eps", plan.options.norm_eps, plan.hints.encoder.get("norm_eps"))
    usual = plan.format.norm_eps
    if eps is None and usual != ViTConfig.norm_eps:
        taken = f"taken as {usual:g}, as is usual for {plan.format.name}"
        plan.note(f"nothing says the eps of its norms; {taken}; norm_eps sets it")
    return usual if eps is None else eps


def _read_blocks(
    plan: Plan, container: str, width: int, hints: dict[str, Any], given_heads: int | None, known_heads: dict[int, int]
) -> dict[str, Any]:
    """Return what the blocks of the encoder or the decoder show, and their heads."""
    tensors, first = plan.tensors, f"{container}0."

    # how many there are
    numbers = {int(name.removeprefix(container).split(".")[0]) for name in tensors if name.startswith(container)}
    depth = max(numbers, default=0) + 1
    if depth > 2 * max(len(numbers), 1):
        raise plan.error(f"{container}{max(numbers)} without most of the blocks before it")

    # their kind
    hidden = plan.shape(f"{first}mlp.fc2.weight", 2)[1]
    widened = plan.shape(f"{first}mlp.fc1.weight", 2)[0]
    if widened not in (hidden, 2 * hidden):
        raise plan.error(
            f"{first}mlp.fc1.weight has {widened} rows, where {hidden} are expected (SwiGLU: {2 * hidden})"
        )
    identity = hints.get("qkv") == "identity"
    qk_norm = f"{first}attn.q_norm.weight" in tensors

    # their heads: given, said, shown by qk-norm, or a guess
    part, option = ("decoder", "decoder_heads") if container.startswith("decoder") else ("encoder", "num_heads")
    heads = _given(plan, option, given_heads, hints.get("num_heads"))
    if qk_norm:
        (head_dim,) = plan.shape(f"{first}attn.q_norm.weight", 1)
        if heads is not None and heads * head_dim != width:
            what = f"{heads} heads of {head_dim} channels, as its q_norm has"
            raise plan.error(f"{what}, do not make its width of {width}")
        heads = heads or width // head_dim
    if heads is None:
        heads = known_heads.get(width) or width // 64
        if not heads or width % heads:
            where = "its settings do not say" if plan.source.config else "there is no config.json that says"
            raise plan.error(f"{where} how many heads its width of {width} has; give {option}")
        how = "the usual for this width" if width in known_heads else "64 channels a head"
        plan.note(f"{heads} heads of the {part} are a guess ({how}); {option} sets them")
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise plan.error(f"{heads} heads do not divide its width of {width}")
    return {
        "depth": depth,
        "mlp_ratio": hidden / width,
        "mlp": "gelu" if widened == hidden else "swiglu",
        "qkv": "identity" if identity else "linear",
        "qkv_bias": f"{first}attn.qkv.bias" in tensors or (identity and hints.get("qkv_bias", True)),
        "qk_norm": qk_norm,
        "num_heads": heads,
    }


def _read_positions(plan: Plan, encoder: dict[str, Any]) -> tuple[int, int]:
    """Return the grid of the position table; put into `encoder` its kind, and whether it has rows for the prefix."""
    if "pos_embed" not in plan.tensors:
        kinds = "rotary ones (EVA, DINOv3) or relative ones (BEiT)"
        raise plan.error(f"it has no position table; positions of another kind, as {kinds}, are not computed here")
    _, rows, width = plan.shape("pos_embed", 3)
    registers, prefix = encoder["registers"], encoder["class_token"] + encoder["registers"]
    hints = plan.hints.encoder

    # the grid: given, said, or a square
    said = None
    if "image_size" in hints:
        (height, image_width), (p, q) = hints["image_size"], encoder["patch_size"]
        said = (height // p, image_width // q)
    grid = _given(plan, "grid_size", pair(plan.options.grid_size), said)
    # With registers, DINOv2's table has a row for the class token alone.
    counts = {rows - prefix, rows, rows - encoder["class_token"]}
    if grid is None:
        sides = [math.isqrt(count) for count in sorted(counts) if count > 0 and math.isqrt(count) ** 2 == count]
        if len(sides) != 1:
            raise plan.error(f"a position table of {rows} rows is of no square grid; give grid_size (rows, columns)")
        grid = (sides[0], sides[0])
    count = grid[0] * grid[1]
    if count not in counts:
        raise plan.error(f"pos_embed has {rows} rows, which is not a grid of {grid[0]} x {grid[1]} patches")

    # the rows of the prefix
    encoder["no_embed_class"] = count == rows and (prefix > 0 or bool(hints.get("no_embed_class")))
    if count == rows - 1 and prefix > 1 and encoder["class_token"]:
        what = "rows of zeros put in for the registers, which have no position"
        step = partial(put_zeros, at=1, count=registers)
        plan.tensors["pos_embed"].then(step, (1, rows + registers, width), what)
    encoder["pos_embed"] = hints.get("pos_embed") or _kind_of_positions(plan, grid)
    return grid


def _kind_of_positions(plan: Plan, grid: tuple[int, int]) -> str:
    """Return whether the table is the fixed sin-cos one, in one of its two orders: the only values that are looked at."""
    table = plan.source.tensors[plan.tensors["pos_embed"].keys.theirs[0]][0, -grid[0] * grid[1] :].float()
    if table.device.type == "meta" or table.shape[1] % 4:  # a shape alone: enough to refuse, not to load
        return "learned"
    for order, parts in (("mae", "[sin x, cos x, sin y, cos y]"), ("timm", "[sin y, sin x, cos y, cos x]")):
        if torch.allclose(table, sincos_positions(grid, table.shape[1], order), atol=1e-3):
            plan.note(f"positions: the fixed sin-cos table in {order}'s order, {parts}")
            return "sincos"
    return "learned"


def put_zeros(table: Tensor, at: int, count: int) -> Tensor:
    """Return a position table (1, N, D) with `count` rows of zeros put in before row `at`."""
    return torch.cat([table[:, :at], table.new_zeros(1, count, table.shape[2]), table[:, at:]], dim=1)
