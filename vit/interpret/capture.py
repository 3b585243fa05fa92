"""Capture the attention maps of any unmodified vision transformer as it computes them.

with AttentionMaps(model, layers=[-1]) as maps:
    model(images)
maps.weights[11]                                  # (B, h, N, N): batch, head, query, key
maps.to_grid(layer=11, query="cls")               # (B, h, rows, columns), and the mass not on patches
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vit.errors import AttentionError
from vit.interpret.geometry import Geometry, geometry_of
from vit.interpret.layers import attention_layers, intercept_attention
from vit.masking import Mask

Patch = tuple[int, int]
"""(row, column)"""
Query = str | Patch | list[Patch]
"""The query token: "cls", "register N", a patch (row, column), or one patch per image; "mean" over all patches."""


class GridMaps(NamedTuple):
    """The attention of a query token, laid out on the image.

    Attributes:
        maps: (B, h, rows, columns); nan for patches hidden from the model: absent, not unattended.
        prefix_mass: (B, h), the attention on the class token and registers, which the maps leave out.
    """

    maps: Tensor
    prefix_mass: Tensor


class AttentionMaps:
    """A context that keeps the attention weights of a model's layers.

    The weights are those that mix the values: after any norms of queries and keys, whatever the kernel; in train mode, after
    attention dropout. Each forward pass replaces the maps of the one before. The model is left as it was.

    Args:
        model: ours, timm's, transformers' or one with torch's own attention; or a part of it (e.g. its decoder) while the
            whole runs.
        layers: numbers of the attention layers to keep, negative from the last; None for all, which must be of known kinds.
        gradients: keep the weights in the autograd graph, for `relevance`.
        consume: called with (layer, weights) as each is computed, instead of keeping it: memory stays flat.
        geometry: layout of the tokens; None to take it from the model.

    Attributes:
        weights: {layer: (B, h, N, N)}; every row sums to 1, except under dropout.
        names: of all attention layers.

    Raises:
        AttentionError: the model is closed (compiled, exported), has no such layer or one of another kind, a layer attends
            more than once per pass or computes nan, or a wanted layer gave no maps: there are never fewer than asked for.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[int] | None = None,
        gradients: bool = False,
        consume: Callable[[int, Tensor], None] | None = None,
        geometry: Geometry | None = None,
    ):
        self._every = layers is None
        self.names = [name for name, _ in attention_layers(model, self._every)]
        count = len(self.names)
        asked = range(count) if layers is None else list(layers)
        for layer in asked:
            if not -count <= layer < count:
                raise AttentionError(
                    f"there is no attention layer {layer}: this model has {count}, from 0 to {count - 1}"
                )
        self.layers = sorted({layer % count for layer in asked})
        self.weights: dict[int, Tensor] = {}
        self._model, self._gradients, self._consume, self._geometry = (
            model,
            gradients,
            consume,
            geometry,
        )
        self._image_size: tuple[int, int] | None = None
        self._seen: set[int] = set()
        self._undo = ExitStack()

    def __enter__(self) -> AttentionMaps:
        self._seen.clear()
        self.weights.clear()
        self._undo.enter_context(intercept_attention(self._model, self._hook, self._every))
        self._undo.callback(
            self._model.register_forward_pre_hook(lambda *_: self.weights.clear()).remove
        )
        patches = next(
            (module for module in self._model.modules() if isinstance(module, nn.Conv2d)), None
        )
        # The convolution that cuts images into patches sees their size
        if patches is not None and patches.kernel_size == patches.stride:
            self._undo.callback(patches.register_forward_pre_hook(self._measure).remove)
        return self

    def _measure(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._image_size = (inputs[0].shape[-2], inputs[0].shape[-1])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()
        missing = [
            self.names[layer] or "the model itself"
            for layer in self.layers
            if layer not in self._seen
        ]
        if kind is None and missing:
            whole = getattr(self._model, "decoder", None) is not None
            hint = "; layers= can leave them out" if self._seen else ""
            hint += (
                "; a decoder runs only under a mask: to look into the encoder, pass model.encoder"
                if whole
                else ""
            )
            raise AttentionError(
                f"{len(missing)} of {len(self.layers)} attention layers gave no maps: {', '.join(missing[:4])}; "
                "they did not run within the `with` block, or compute attention in another way (as torch's own layer does, "
                f"unless called with need_weights=False){hint}"
            )

    def _hook(self, layer: int, weights: Tensor, values: Tensor) -> Tensor:
        if layer in self.layers:
            self._seen.add(layer)
            if not bool(weights.isfinite().all()):
                raise AttentionError(
                    f"{self.names[layer]}: its attention is nan; the weights or the images are damaged"
                )
            if self._consume is not None:
                self._consume(layer, weights.detach())
            else:
                self.weights[layer] = weights if self._gradients else weights.detach()
        return weights @ values

    def of(self, layer: int) -> Tensor:
        """Return the weights (B, h, N, N) of a layer, negative from the last.

        Raises:
            AttentionError: the layer was not kept.
        """
        number = layer % len(self.names) if -len(self.names) <= layer < len(self.names) else layer
        if number not in self.weights:
            raise AttentionError(
                f"layer {layer} was not kept; it has: {', '.join(map(str, self.weights)) or 'nothing'}"
            )
        return self.weights[number]

    @property
    def geometry(self) -> Geometry:
        """The layout of the tokens in the last images; some models take several sizes."""
        if self._geometry is not None:
            return self._geometry
        usual = geometry_of(self._model)
        return usual if self._image_size is None else usual.of_images(self._image_size)

    def to_grid(self, layer: int = -1, query: Query = "cls", mask: Mask | None = None) -> GridMaps:
        """Return the attention of one query token, laid out on the image.

        Args:
            layer: one that was kept.
            query: "cls", "register N", the patch at (row, column), or a list with a patch per image; or "mean" over all
                patches.
            mask: the encoder ran under it: the keys are the visible patches, in the mask's order, which differs from image to
                image.

        Raises:
            AttentionError: there is no such layer or token, or the patch was hidden from the encoder.
        """
        return to_grid(self.of(layer), self.geometry, query, mask)


def to_grid(
    weights: Tensor, geometry: Geometry, query: Query = "cls", mask: Mask | None = None
) -> GridMaps:
    """Return the attention of one query token, laid out on the image; see `AttentionMaps.to_grid`.

    Args:
        weights: (B, h, N, N), e.g. a rollout as (B, 1, N, N).
    """
    prefix, patches = geometry.num_prefix_tokens, geometry.grid_size[0] * geometry.grid_size[1]
    # The tokens must be the prefix tokens and the visible patches, in this order
    tokens = weights.shape[-1]
    visible = patches if mask is None else mask.ids_keep.shape[1]
    if tokens != prefix + visible or weights.shape[-2] != tokens:
        found = (
            f"{weights.shape[-2]} queries and {tokens} keys"
            if weights.shape[-2] != tokens
            else f"{tokens} tokens"
        )
        raise AttentionError(
            f"{found} are not {prefix} prefix tokens and {visible} patches; where the encoder ran under a mask, give it as "
            "mask=, where its tokens lie otherwise, geometry=Geometry(...)"
        )
    # The rows of the query token
    if query == "mean":
        rows = weights[:, :, prefix:].mean(dim=2)  # (B, h, N)
    else:
        asking = query if isinstance(query, list) else [query] * len(weights)
        if len(asking) != len(weights):
            raise AttentionError(f"{len(asking)} query patches for {len(weights)} images")
        place = torch.tensor([geometry.token(token) for token in asking], dtype=torch.long)  # (B,)
        if mask is not None:
            there = mask.ids_keep.cpu() == place[:, None] - prefix  # (B, K)
            hidden = (place >= prefix) & ~there.any(dim=1)
            if hidden.any():
                first = asking[int(hidden.int().argmax())]
                raise AttentionError(
                    f"the patch {first} is hidden from the encoder in some of the images, so it has no query there"
                )
            place = torch.where(place < prefix, place, prefix + there.int().argmax(dim=1))
        rows = weights[
            torch.arange(len(weights), device=weights.device), :, place.to(weights.device)
        ]
    # Each key back to its place on the grid, except for the prefix tokens
    mass, on_patches = rows[..., :prefix].sum(-1), rows[..., prefix:]
    if mask is not None:
        grid = on_patches.new_full((*on_patches.shape[:2], patches), float("nan"))
        ids = mask.ids_keep.to(grid.device)[:, None].expand_as(on_patches)  # (B, h, K)
        on_patches = grid.scatter(2, ids, on_patches)
    return GridMaps(on_patches.unflatten(-1, geometry.grid_size), mass)


def in_grid_order(weights: Tensor, mask: Mask | None, num_prefix_tokens: int) -> Tensor:
    """Return an encoder's weights under a mask with the visible patches in grid order: (B, h, N, N)."""
    if mask is None:
        return weights
    order = mask.ids_keep.argsort(dim=1) + num_prefix_tokens  # (B, K)
    prefix = torch.arange(num_prefix_tokens, device=order.device).expand(len(order), -1)
    order = torch.cat([prefix, order], dim=1)[:, None]  # (B, 1, N)
    rows = weights.gather(2, order[..., None].expand_as(weights))
    return rows.gather(3, order[..., None, :].expand_as(weights))
