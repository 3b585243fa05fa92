"""Capture the attention maps of any unmodified vision transformer while it runs.

with AttentionMaps(model, layers=[-1]) as maps:
    model(images)
maps.weights[11]                            # (B, h, N, N): batch, head, query, key
maps.to_grid(layer=11, query="cls")         # (B, h, rows, columns), and the mass not on patches

Letters: B batch, h heads, N tokens (prefix tokens, then patches), L patches of the grid, K visible
patches under a mask.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import AttentionError, require_finite
from vit.interpret.geometry import Geometry, geometry_of
from vit.interpret.layers import Interception, in_this_thread
from vit.masking import Mask

# (row, column)
Patch = tuple[int, int]
# The query token: "cls", "register N", a patch, or a patch per image; "mean" over all patches
Query = str | Patch | list[Patch]


class GridMaps(NamedTuple):
    """The attention of a query token, laid out on the image.

    Attributes:
        maps: (B, h, rows, columns); nan for masked patches, which are absent, not unattended.
        prefix_mass: (B, h), the attention on tokens without a place (class token, registers), which
            the maps leave out.
    """

    maps: Tensor
    prefix_mass: Tensor


class AttentionMaps:
    """A context that keeps the attention weights of a model's layers.

    The weights are those that mix the values: after any norms of queries and keys, whatever the
    kernel; in train mode, after attention dropout. Each forward pass replaces the maps of the one
    before. The model is left as it was. Passes in other threads are not captured; a `with` block
    waits for that of another thread, and ends in the thread in which it began.

    Args:
        model: any whose attention is torch's own or calls `F.scaled_dot_product_attention`,
            wherever the call stands; ours, timm's and transformers' do. Or a part of it (e.g. its
            decoder) while the whole runs.
        layers: numbers of the attention layers to keep, negative from the last; None for all, and
            each must give maps.
        gradients: keep the weights in the autograd graph, for `relevance`.
        consume: called with (layer, weights) as each is computed, or with numbers from the last at
            the end of the pass, instead of keeping it: memory stays flat. The number of a layer of
            an unknown kind may change until the end of the first pass; `names[layer]` does not.
        geometry: layout of the tokens; None to take it from the model.

    Raises:
        TrainingError: a layer computes nan.
        AttentionError: a layer attends more than once per pass; at the end of the block, the model
            has no such layer, or one gave no maps: the block never ends with fewer maps than
            `layers`.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[int] | None = None,
        gradients: bool = False,
        consume: Callable[[int, Tensor], None] | None = None,
        geometry: Geometry | None = None,
    ):
        self._model = model
        self._gradients = gradients
        self._consume = consume
        self._geometry = geometry
        self._interception = Interception(model, self._mix)
        # a number from NumPy or torch is one too
        self._chosen = None if layers is None else set(map(operator.index, layers))

        # By name, because a layer of an unknown kind is numbered when it is found
        self._kept: dict[str, Tensor] = {}
        self._captured: set[str] = set()  # layers that gave maps since the block began
        self._image_size: torch.Size | None = None  # (H, W) of the last images
        self._undo = ExitStack()

    @property
    def names(self) -> list[str]:
        """The names of all attention layers; some kinds are known only once they have run."""
        return self._interception.names

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers to keep, from 0, ascending.

        Raises:
            AttentionError: there is no such layer.
        """
        count = len(self.names)
        if self._chosen is None:
            return list(range(count))
        for layer in self._chosen:
            if not -count <= layer < count:
                raise AttentionError(
                    f"there is no attention layer {layer}: this model has {count}, from 0"
                )
        return sorted({layer % count for layer in self._chosen})

    @property
    def weights(self) -> dict[int, Tensor]:
        """{layer: (B, h, N, N)} of the last pass.

        Every row sums to 1, except under dropout, or where a mask allows a query no key.
        """
        names = self.names
        captured = self._kept
        return {layer: captured[names[layer]] for layer in self.layers if names[layer] in captured}

    @property
    def steps(self) -> list[list[int]]:
        """The layers of `weights` in the order in which tokens pass them.

        A step is one layer, or several side by side, none of which depends on another.
        """
        numbers = {self.names[layer]: layer for layer in self.weights}
        steps: dict[str, list[int]] = {}
        # in the order in which they ran
        for name in self._kept:
            if name not in numbers:
                continue
            # timm has layers side by side in one block
            place = f".{name}".partition(".attns.")[0]
            block = self._model.get_submodule(place[1:])
            if type(block).__name__ != "ParallelThingsBlock":
                place = name
            steps.setdefault(place, []).append(numbers[name])
        return [*steps.values()]

    def __enter__(self) -> AttentionMaps:
        self._captured.clear()
        self._kept.clear()
        undo = self._undo
        undo.enter_context(self._interception.active())

        # A layer that the next pass skips must not keep the map of this one
        forget = in_this_thread(self._end_pass)
        undo.callback(self._model.register_forward_pre_hook(forget).remove)

        # The convolution that cuts images into patches sees their size
        convolutions = (part for part in self._model.modules() if isinstance(part, nn.Conv2d))
        first = next(convolutions, None)
        if first is not None and first.kernel_size == first.stride:
            measure = in_this_thread(self._measure)
            undo.callback(first.register_forward_pre_hook(measure).remove)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._undo.close()
        if kind is not None:
            return
        if not self.names:
            raise AttentionError(
                f"{type(self._model).__name__} has no attention layers: nothing in it called "
                "F.scaled_dot_product_attention or is called attention"
            )
        names = [self.names[layer] for layer in self.layers]
        missing = [name or "the model itself" for name in names if name not in self._captured]
        # An empty map would look like a result
        if missing:
            raise AttentionError(
                f"{len(missing)} of {len(names)} attention layers gave no maps: "
                f"{', '.join(missing[:4])}; they did not run within the `with` block and in its "
                "thread, or compute attention in another way; layers= can leave them out, and a "
                "decoder runs only under a mask"
            )
        if self._consume is not None:
            self._end_pass()

    def _end_pass(self, *_: Any) -> None:
        """Forget the maps; hand out those held until known to be from the last layers."""
        if self._consume is not None and self._kept:
            for layer, weights in self.weights.items():
                self._consume(layer, weights)
        self._kept.clear()

    def _measure(self, _convolution: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._image_size = inputs[0].shape[-2:]

    def _is_wanted(self, layer: int) -> bool:
        """Return whether a layer is to be kept, or may be: others may yet be found after it."""
        if self._chosen is None or layer in self._chosen:
            return True
        return min(self._chosen, default=0) <= layer - len(self.names)

    def _mix(self, layer: int, weights: Tensor, values: Tensor) -> Tensor:
        """Mix the values as the layer would have, and keep the weights."""
        names = self.names
        if not self._is_wanted(layer):
            return weights @ values
        self._captured.add(names[layer])
        # In a map, nan stands for a masked patch, so damage must not pass for one
        require_finite(f"{names[layer]}: its attention weights", weights)

        # Detached, the weights do not hold the graph of the whole pass in memory
        kept = weights if self._gradients else weights.detach()
        if self._consume is not None and (self._chosen is None or layer in self._chosen):
            self._consume(layer, kept.detach())
        else:
            self._kept[names[layer]] = kept
            # those that were the last so far
            for number, name in enumerate(names[:layer]):
                if not self._is_wanted(number):
                    self._kept.pop(name, None)
        return weights @ values

    def layer_weights(self, layer: int) -> Tensor:
        """Return the weights (B, h, N, N) of a layer, negative from the last.

        Raises:
            KeyError: the layer was not kept.
        """
        # Counted from the first layer of the model, whichever were kept
        if layer < 0:
            layer += len(self.names)
        return self.weights[layer]

    @property
    def geometry(self) -> Geometry:
        """The layout of the tokens in the last images; some models take several sizes."""
        if self._geometry is not None:
            return self._geometry
        geometry = geometry_of(self._model)
        if self._image_size is not None:
            geometry = geometry.of_images(self._image_size)
        return geometry

    def to_grid(self, layer: int = -1, query: Query = "cls", mask: Mask | None = None) -> GridMaps:
        """Return the attention of one query token, laid out on the image.

        Args:
            layer: one that was kept, negative from the last.
            query: "cls", "register N", the patch at (row, column), or a list with a patch per
                image; or "mean" over all patches.
            mask: the one under which the encoder ran: the keys are the visible patches, in the
                mask's order, which differs from image to image.

        Raises:
            KeyError: the layer was not kept.
            AttentionError: there is no such token, or the query patch is masked.
        """
        return to_grid(self.layer_weights(layer), self.geometry, query, mask)


def to_grid(
    weights: Tensor, geometry: Geometry, query: Query = "cls", mask: Mask | None = None
) -> GridMaps:
    """Return the attention of one query token, laid out on the image.

    Args:
        weights: (B, h, N, N), e.g. of `AttentionMaps`, or a rollout as (B, 1, N, N).
        geometry: layout of the tokens.
        query: "cls", "register N", the patch at (row, column), or a list with a patch per image;
            or "mean" over all patches.
        mask: the one under which the encoder ran.
    """
    if weights.ndim != 4:
        raise AttentionError(
            f"weights of shape {tuple(weights.shape)} are not (images, heads, queries, keys); "
            "give a rollout as rollout[:, None]"
        )
    queries, keys = weights.shape[-2:]
    visible = geometry.num_patches
    if mask is not None:
        visible = mask.ids_keep.shape[1]
    placeless = geometry.num_tokens - geometry.num_patches
    if not queries == keys == placeless + visible:
        raise AttentionError(
            f"{queries} queries and {keys} keys are not {placeless} tokens without a place and "
            f"{visible} patches; where the encoder ran under a mask, give it as mask=, where its "
            "tokens are laid out otherwise, geometry=Geometry(...)"
        )
    rows = _rows_of_query(weights, geometry, query, mask)  # (B, h, N)

    # Prefix tokens have no place in the image: the attention on them is returned beside the map
    prefix = geometry.num_prefix_tokens
    end = prefix + visible
    prefix_mass = rows[..., :prefix].sum(-1) + rows[..., end:].sum(-1)  # (B, h)
    patches = rows[..., prefix:end]  # (B, h, L), under a mask (B, h, K)

    # Under a mask, key k is patch ids_keep[k] of the grid
    if mask is not None:
        grid = patches.new_full((*patches.shape[:2], geometry.num_patches), float("nan"))
        ids = mask.ids_keep.to(grid.device)[:, None].expand_as(patches)  # (B, h, K)
        patches = grid.scatter(2, ids, patches)  # (B, h, L)
    return GridMaps(patches.unflatten(-1, geometry.grid_size), prefix_mass)


def _rows_of_query(weights: Tensor, geometry: Geometry, query: Query, mask: Mask | None) -> Tensor:
    """Return the weights (B, h, N) of one query token per image, or their mean over patches."""
    prefix = geometry.num_prefix_tokens
    if query == "mean":
        end = weights.shape[2] - geometry.num_suffix_tokens
        return weights[:, :, prefix:end].mean(dim=2)

    # One query token for all images, or a patch for each
    batch = len(weights)
    queries = query if isinstance(query, list) else [query] * batch
    numbers = [geometry.token(name) for name in queries]
    tokens = torch.tensor(numbers, dtype=torch.long, device="cpu")  # (B,)

    # Under a mask, a patch stands where ids_keep has it, if the encoder sees it at all
    if mask is not None:
        matches = mask.ids_keep.cpu() == tokens[:, None] - prefix  # (B, K)
        is_patch = tokens >= prefix  # (B,)
        masked = is_patch & ~matches.any(dim=1)  # (B,)
        if masked.any():
            image = int(masked.int().argmax())
            raise AttentionError(
                f"the patch {queries[image]} is masked in image {image}: the encoder does not see "
                "it, so it has no query there"
            )
        tokens = torch.where(is_patch, prefix + matches.int().argmax(dim=1), tokens)

    # One row for each image, since the patch may differ from image to image
    images = torch.arange(batch, device=weights.device)
    return weights[images, :, tokens.to(weights.device)]


def in_grid_order(weights: Tensor, mask: Mask | None, num_prefix_tokens: int) -> Tensor:
    """Reorder an encoder's weights under a mask: its visible patches stand in grid order.

    Args:
        weights: (B, h, N, N), tokens in the mask's order.
        mask: the one under which the encoder ran; None leaves the weights as they are.
        num_prefix_tokens: class token and registers, which stay first.

    Returns:
        (B, h, N, N).
    """
    if mask is None:
        return weights
    # Where each prefix token stands, and then the first, second, ... visible patch in grid order
    numbers = F.pad(mask.ids_keep, (num_prefix_tokens, 0), value=-1)  # (B, N)
    order = numbers.argsort(dim=1, stable=True)[:, None]  # (B, 1, N)

    # Rows are queries, columns are keys: both follow the same order
    queries_sorted = weights.take_along_dim(order[..., None], 2)
    return queries_sorted.take_along_dim(order[..., None, :], 3)
