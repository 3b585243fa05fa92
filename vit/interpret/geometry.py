"""Where a model's tokens lie in the image: its grid, and the tokens that have no place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from vit.encoder import VisionTransformer
from vit.interpret.layers import AttentionError
from vit.mae import MaskedAutoencoder


@dataclass(frozen=True)
class Geometry:
    """The layout of a model's tokens.

    Attributes:
        grid_size: (rows, columns) of patches.
        patch_size: (p, q) in pixels.
        num_prefix_tokens: class token and registers, which stand before the patches.
        class_token: whether the first of them is a class token.
    """

    grid_size: tuple[int, int]
    patch_size: tuple[int, int]
    num_prefix_tokens: int
    class_token: bool

    def token(self, query: str | tuple[int, int]) -> int:
        """The number of a token: "cls", "register 0", "register 1", ..., or the patch at (row, column).

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
                raise AttentionError("this model has no class token; ask for a patch by (row, column), or for 'mean'")
            return 0
        word, _, number = query.partition(" ")
        registers = self.num_prefix_tokens - self.class_token
        if word != "register" or not number.isdecimal():
            raise AttentionError(f"a query is 'cls', 'register N', 'mean' or (row, column), got {query!r}")
        if int(number) >= registers:
            raise AttentionError(f"this model has {registers} registers, counted from 0, and no {query}")
        return self.class_token + int(number)


def geometry_of(model: nn.Module) -> Geometry:
    """The layout of the tokens of one of our models, timm's or transformers'.

    Raises:
        AttentionError: the model does not say.
    """
    if isinstance(model, MaskedAutoencoder):
        model = model.encoder
    if isinstance(model, VisionTransformer):
        embed = model.patch_embed
        return Geometry(embed.grid_size, embed.patch_size, model.num_prefix_tokens, model.cls_token is not None)
    other: Any = model
    if hasattr(other, "patch_embed") and hasattr(other, "num_prefix_tokens"):  # timm
        embed = other.patch_embed
        return Geometry(
            tuple(embed.grid_size), tuple(embed.patch_size), other.num_prefix_tokens, other.cls_token is not None
        )
    config: Any = getattr(model, "config", None)
    if hasattr(config, "patch_size") and hasattr(config, "image_size"):  # transformers
        (height, width), (p, q) = _pair(config.image_size), _pair(config.patch_size)
        return Geometry((height // p, width // q), (p, q), 1 + getattr(config, "num_register_tokens", 0), True)
    raise AttentionError(
        f"{type(model).__name__} does not say how its tokens lie in the image; give geometry=Geometry(...)"
    )


def _pair(size: int | tuple[int, int] | list[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
