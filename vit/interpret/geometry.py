"""The layout of a model's tokens in the image: the grid of patches, and the prefix tokens, which have no place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from vit.config import pair
from vit.errors import AttentionError

PREFIX_TOKENS = {
    "vit": 1, "vit_msn": 1, "dinov2": 1, "dinov2_with_registers": 1, "dinov3_vit": 1, "beit": 1,
    "clip_vision_model": 1, "deit": 2, "ijepa": 0, "siglip_vision_model": 0,
}  # fmt: skip
"""The number of tokens before registers and patches in transformers' models, whose settings do not say."""


@dataclass(frozen=True)
class Geometry:
    """The layout of a model's tokens.

    Attributes:
        grid_size: (rows, columns) of patches.
        patch_size: (p, q) in pixels.
        num_prefix_tokens: class token and registers, before the patches.
        class_token: whether the first of them is a class token.
    """

    grid_size: tuple[int, int]
    patch_size: tuple[int, int]
    num_prefix_tokens: int
    class_token: bool

    @property
    def num_tokens(self) -> int:
        """N, prefix tokens and patches."""
        return self.num_prefix_tokens + self.grid_size[0] * self.grid_size[1]

    @property
    def middle(self) -> tuple[int, int]:
        """The patch in the middle of the grid; the later one of two."""
        return self.grid_size[0] // 2, self.grid_size[1] // 2

    def of_images(self, size: tuple[int, int]) -> Geometry:
        """Return the layout for images of (H, W); some models take several sizes."""
        (height, width), (p, q) = size, self.patch_size
        return replace(self, grid_size=(height // p, width // q))

    def token(self, query: str | tuple[int, int]) -> int:
        """Return the index of a token: "cls", "register 0", "register 1", ..., or the patch at (row, column).

        Raises:
            AttentionError: the model has no such token.
        """
        rows, columns = self.grid_size
        if isinstance(query, tuple):
            row, column = query
            if not (0 <= row < rows and 0 <= column < columns):
                raise AttentionError(
                    f"there is no patch in row {row}, column {column}: the grid is {rows} x {columns}, from 0"
                )
            return self.num_prefix_tokens + row * columns + column
        if query == "cls":
            if not self.class_token:
                raise AttentionError(
                    "this model has no class token; ask for a patch by (row, column), or for 'mean'"
                )
            return 0
        word, _, number = query.partition(" ")
        registers = self.num_prefix_tokens - self.class_token
        if word != "register" or not number.isdecimal() or len(number) > 4:
            raise AttentionError(
                f"a query is 'cls', 'register N', 'mean' or (row, column), got {query[:40]!r}"
            )
        if int(number) >= registers:
            raise AttentionError(
                f"this model has {registers} registers, counted from 0, and no {query}"
            )
        return self.class_token + int(number)


def geometry_of(model: nn.Module) -> Geometry:
    """Return the layout of the tokens of a model of ours, timm's or transformers'.

    Raises:
        AttentionError: the model does not say how its tokens are laid out.
    """
    # Our masked autoencoder holds its layout in its encoder
    other: Any = model if hasattr(model, "patch_embed") else getattr(model, "encoder", model)
    embed: Any = getattr(other, "patch_embed", None)
    if hasattr(embed, "grid_size") and hasattr(other, "num_prefix_tokens"):  # ours, timm's
        (p, q), (down, across) = (
            embed.patch_size,
            getattr(embed, "feature_ratio", (1, 1)),
        )  # of a hybrid's feature map
        prefix, class_token = other.num_prefix_tokens, other.cls_token is not None
        return Geometry(tuple(embed.grid_size), (p * down, q * across), prefix, class_token)
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if kind == "vit_mae":  # even with mask_ratio 0
        ways = "look at load_model(model), or give it ascending noise=, and pass geometry=Geometry(...)"
        raise AttentionError(f"{type(model).__name__} shuffles its patches; {ways}")
    if kind in PREFIX_TOKENS:
        (height, width), (p, q) = pair(config.image_size), pair(config.patch_size)
        prefix = PREFIX_TOKENS[kind] + getattr(config, "num_register_tokens", 0)
        return Geometry((height // p, width // q), (p, q), prefix, PREFIX_TOKENS[kind] > 0)
    raise AttentionError(
        f"{type(model).__name__} does not say how its tokens lie in the image; pass geometry=Geometry(...)"
    )
