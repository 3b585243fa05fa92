"""The changes that options ask for: another head, no class token, other sizes. Weights are resized by timm's functions."""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.layers import resample_abs_pos_embed, resample_patch_embed
from timm.models import adapt_input_conv
from torch import Tensor

from vit.checkpoints.architecture import compare, put_zeros
from vit.checkpoints.formats.format import pair
from vit.checkpoints.origin import size_text
from vit.checkpoints.plan import Plan


def adapt_head(plan: Plan, encoder: dict[str, Any]) -> None:
    """Set pooling, the norm before or after it, and the head: as the checkpoint has them, or as was asked for."""
    tensors, options, hints = plan.tensors, plan.options, plan.hints.encoder

    # what the tensors show
    fc_norm = "fc_norm.weight" in tensors
    if fc_norm and "norm.weight" in tensors:
        raise plan.error("it holds both norm and fc_norm; a model has one final norm, before the pooling or after")
    classes = plan.shape("head.weight", 2)[0] if "head.weight" in tensors else 0
    found: dict[str, Any] = {"fc_norm": fc_norm} if options.fc_norm is None else {}
    if options.num_classes is None and classes:
        found["num_classes"] = classes
    compare(plan, found, hints)

    # the pooling: asked for, said, or a guess
    pool = options.global_pool or hints.get("global_pool")
    if not pool:
        pool = "avg" if fc_norm or not encoder["class_token"] else "token"
        if classes and pool == "token" and not plan.format.global_pool and options.num_classes in (None, classes):
            plan.note("nothing says what its head reads; taken as the class token; global_pool sets it")
    encoder["global_pool"] = pool

    # the norm, which may change sides
    encoder["fc_norm"] = fc_norm if options.fc_norm is None else options.fc_norm
    if encoder["fc_norm"] != fc_norm:
        old, new = ("norm", "fc_norm") if encoder["fc_norm"] else ("fc_norm", "norm")
        for kind in ("weight", "bias"):
            if f"{old}.{kind}" in tensors:
                tensors[f"{new}.{kind}"] = tensors.pop(f"{old}.{kind}")
                tensors[f"{new}.{kind}"].notes.append(f"{old} as {new}, as asked")

    # a head that the settings speak of and the file does not hold is missing, and that is said
    encoder["num_classes"] = classes or hints.get("num_classes", 0)
    if options.num_classes is not None:
        encoder["num_classes"] = options.num_classes
        if options.num_classes != classes or options.num_classes == 0:
            for kind in ("weight", "bias"):
                why = f"{options.num_classes or 'no'} classes were asked for, this head has {classes}"
                plan.drop(f"head.{kind}", why)


def adapt_class_token(plan: Plan, encoder: dict[str, Any]) -> None:
    """Add or leave out the class token, with its position."""
    wanted = plan.options.class_token
    if wanted is None or wanted == encoder["class_token"]:
        return
    if plan.decodes():
        raise plan.error("its decoder counts on the tokens that there are; take part encoder to change them")
    encoder["class_token"] = wanted
    table = plan.tensors["pos_embed"]
    _, rows, width = table.shape
    if wanted:  # the pooling stays as it was: the new token knows nothing yet
        if not encoder["no_embed_class"]:
            what = "a row of zeros put in for the class token"
            table.then(lambda t: put_zeros(t, at=0, count=1), (1, rows + 1, width), what)
        return
    if plan.options.global_pool == "token":
        raise plan.error("without its class token, global_pool can only be 'avg'")
    if encoder["global_pool"] == "token":
        encoder["global_pool"] = "avg"
        if encoder["num_classes"]:
            plan.note("its head was trained on the class token, and now reads the mean of the patches")
    plan.drop("cls_token", "no class token was asked for")
    if not encoder["no_embed_class"]:
        table.then(lambda t: t[:, 1:], (1, rows - 1, width), "the class token's row left out")
    if not encoder["registers"]:
        encoder["no_embed_class"] = False


def adapt_sizes(plan: Plan, encoder: dict[str, Any]) -> None:
    """Resize patch kernels and positions, and change the number of input channels."""
    tensors, options = plan.tensors, plan.options
    image_size, patch_size, channels = pair(options.image_size), pair(options.patch_size), options.channels
    (height, width), (p, q) = encoder["image_size"], encoder["patch_size"]
    old = (height // p, width // q)

    # patch kernels (D, C, p, q): by the pseudo-inverse of the resizing of images (Beyer et al. 2023, "FlexiViT")
    kernels = tensors["patch_embed.proj.weight"]
    if plan.decodes() and (patch_size not in (None, (p, q)) or channels not in (None, encoder["channels"])):
        raise plan.error("its decoder predicts patches of its own size and channels; take part encoder to change them")
    if patch_size is not None and patch_size != (p, q):
        what, new_size = f"resized from {size_text((p, q))} pixels", list(patch_size)
        kernels.then(lambda w: resample_patch_embed(w.float(), new_size), (*kernels.shape[:2], *patch_size), what)
        encoder["patch_size"] = patch_size

    # for one channel, kernels are summed; for more, repeated and scaled
    if channels is not None and channels != encoder["channels"]:
        if encoder["channels"] != 3:
            raise plan.error(f"{encoder['channels']} input channels cannot be made {channels}; three can")
        shape = (kernels.shape[0], channels, *kernels.shape[2:])
        kernels.then(lambda w: adapt_input_conv(channels, w.float()), shape, f"3 input channels made {channels}")
        encoder["channels"] = channels

    # position tables (1, prefix + L, D): bicubic with antialiasing, unlike DINOv2's own code; the prefix's rows stay
    if image_size is None and patch_size is None:
        return
    encoder["image_size"] = image_size or encoder["image_size"]
    (height, width), (p, q) = encoder["image_size"], encoder["patch_size"]
    if height % p or width % q:
        sizes = f"patches of {size_text((p, q))} do not divide images of {size_text((height, width))}"
        raise plan.error(f"{sizes}; give both sizes")
    new = (height // p, width // q)
    prefix = encoder["class_token"] + encoder["registers"]
    for name, ahead in (("pos_embed", 0 if encoder["no_embed_class"] else prefix), ("decoder.pos_embed", prefix)):
        if name in tensors and new != old:
            shape = (1, ahead + new[0] * new[1], tensors[name].shape[2])
            what = f"resized from a grid of {size_text(old)} to {size_text(new)}, bicubic"
            tensors[name].then(partial(resize_positions, new=new, old=old, prefix=ahead), shape, what)


def resize_positions(table: Tensor, new: tuple[int, int], old: tuple[int, int], prefix: int) -> Tensor:
    """Resize a position table (1, prefix + L, D) from a grid to another; the rows of the prefix stay."""
    return resample_abs_pos_embed(table.float(), list(new), list(old), num_prefix_tokens=prefix)
