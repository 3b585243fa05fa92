"""The layout of a model's tokens in the image: patches, and prefix tokens, which have no place."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from vit.config import pair
from vit.errors import AttentionError

# Tokens before registers and patches in transformers' models, whose settings do not give them
PREFIX_TOKENS = {
    **dict.fromkeys(
        (
            "vit",
            "vit_msn",
            "dinov2",
            "dinov2_with_registers",
            "dinov3_vit",
            "beit",
            "clip_vision_model",
            "chinese_clip_vision_model",
            "altclip_vision_model",
            "clipseg_vision_model",
            "metaclip_2_vision_model",
            "owlvit_vision_model",
            "owlv2_vision_model",
            "blip_2_vision_model",
            "instructblip_vision_model",
            "git_vision_model",
            "mlcd_vision_model",
            "internvl_vision",
            "yolos",
        ),
        1,
    ),
    **dict.fromkeys(("ijepa", "janus_vision_model", "siglip_vision_model"), 0),
    "deit": 2,
}


@dataclass(frozen=True)
class Geometry:
    """The layout of a model's tokens.

    Attributes:
        grid_size: (rows, columns) of patches.
        patch_size: (p, q) in pixels.
        num_prefix_tokens: class token and registers, before the patches.
        class_token: whether the first of them is a class token.
        num_suffix_tokens: without a place too, after the patches: YOLOS's detection tokens.
    """

    grid_size: tuple[int, int]
    patch_size: tuple[int, int]
    num_prefix_tokens: int
    class_token: bool
    num_suffix_tokens: int = 0

    @property
    def num_patches(self) -> int:
        """L, the patches of the whole grid."""
        rows, columns = self.grid_size
        return rows * columns

    @property
    def num_tokens(self) -> int:
        """N, patches and the tokens before and after them."""
        return self.num_prefix_tokens + self.num_patches + self.num_suffix_tokens

    @property
    def patches(self) -> slice:
        """The place of the patches among the N tokens."""
        return slice(self.num_prefix_tokens, self.num_prefix_tokens + self.num_patches)

    @property
    def middle(self) -> tuple[int, int]:
        """The patch in the middle of the grid; of two, the one further down or to the right."""
        rows, columns = self.grid_size
        return rows // 2, columns // 2

    def of_images(self, size: tuple[int, ...]) -> Geometry:
        """Return the layout for images of (H, W) pixels; some models take several sizes."""
        height, width = size
        p, q = self.patch_size
        return replace(self, grid_size=(height // p, width // q))

    def token(self, query: str | tuple[int, int]) -> int:
        """Return the index of a token among the N.

        Args:
            query: "cls", "register N" with N from 0, or the patch at (row, column).
        """
        if isinstance(query, tuple):
            # half a row would lead to a patch of another one
            row, column = map(operator.index, query)
            rows, columns = self.grid_size
            if not (0 <= row < rows and 0 <= column < columns):
                raise AttentionError(
                    f"there is no patch in row {row}, column {column}: "
                    f"the grid is {rows} x {columns}, from 0"
                )
            return self.num_prefix_tokens + row * columns + column
        # Registers precede the patches; DeiT's distillation token is one
        registers = range(self.num_prefix_tokens - self.class_token)
        names = [*["cls"] * self.class_token, *(f"register {number}" for number in registers)]
        if query not in names:
            known = ["mean", "(row, column)", *names]
            raise AttentionError(f"there is no token {query!r}; a query is {', '.join(known)}")
        return names.index(query)


def usual_query(encoder: Any) -> str | tuple[int, int]:
    """Return the query token in one of our encoders, if none is named.

    It is what the output depends on: "mean" over the patches for a classifier with average pooling,
    else "cls"; without a class token, the patch (row, column) in the middle.
    """
    if encoder.config.num_classes and encoder.config.global_pool == "avg":
        return "mean"
    if encoder.config.class_token:
        return "cls"
    return geometry_of(encoder).middle


def geometry_of(model: nn.Module) -> Geometry:
    """Return the layout of a model of ours, timm's, transformers' or torchvision's.

    One within a wrapper (DataParallel, AveragedModel, a Sequential of one) is found.
    """
    # Ours and timm's; a masked autoencoder has its layout in its encoder
    encoder: Any = model
    if not hasattr(model, "patch_embed"):
        encoder = getattr(model, "encoder", model)
    embedding: Any = getattr(encoder, "patch_embed", None)
    if hasattr(embedding, "grid_size") and hasattr(encoder, "num_prefix_tokens"):
        p, q = embedding.patch_size
        # A hybrid cuts patches from a feature map that is smaller than the image by this ratio
        down, across = getattr(embedding, "feature_ratio", (1, 1))
        return Geometry(
            grid_size=tuple(embedding.grid_size),
            patch_size=(p * down, q * across),
            num_prefix_tokens=encoder.num_prefix_tokens,
            class_token=getattr(encoder, "cls_token", None) is not None,
        )

    # torchvision's, known by its convolution and size, has one class token
    other: Any = model
    if hasattr(other, "conv_proj") and hasattr(other, "image_size"):
        rows = other.image_size // other.patch_size
        return Geometry((rows, rows), (other.patch_size, other.patch_size), 1, class_token=True)

    # transformers' models name their type, which decides which tokens come first
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    # ViTMAE shuffles its patches even with mask_ratio 0
    if kind == "vit_mae":
        raise AttentionError(
            f"{type(model).__name__} shuffles its patches; capture load_model(model) instead, or "
            "give it ascending noise=, and pass geometry=Geometry(...)"
        )
    if kind not in PREFIX_TOKENS:
        children = list(model.children())
        if len(children) == 1:
            return geometry_of(children[0])
        raise AttentionError(
            f"{type(model).__name__} does not say how its tokens lie in the image; "
            "pass geometry=Geometry(...)"
        )
    height, width = pair(config.image_size)
    p, q = pair(config.patch_size)
    # Where there are any, the first is a class token
    special = PREFIX_TOKENS[kind]
    return Geometry(
        grid_size=(height // p, width // q),
        patch_size=(p, q),
        num_prefix_tokens=special + getattr(config, "num_register_tokens", 0),
        class_token=special > 0,
        num_suffix_tokens=getattr(config, "num_detection_tokens", 0),
    )
