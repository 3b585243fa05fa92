"""Check by one forward pass of both that a model in memory computes what was loaded from it.

Tensors do not show an activation, a hook or a replaced `forward`.
"""

from __future__ import annotations

from contextlib import suppress
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vit.checkpoints.network import Network
from vit.isolation import eval_mode, outputs_of
from vit.masking import mask_from_noise

TOLERANCE = 1e-4
"""The largest difference between outputs, relative to the largest value."""


@torch.no_grad()
def compare_outputs(network: Network) -> None:
    """Refuse a model in memory that computes something else than the model loaded from it.

    Both see one image of noise, in float32 on the CPU. The given model keeps its weights, its mode
    and its gradients.
    """
    # the module that holds the network: the library's own, or the part of it that sees images
    modules = network.modules
    theirs = modules[network.prefix]
    library_model = network.source.module
    if library_model is not None and library_model in theirs.modules():
        theirs = library_model

    # the layers and the final norms, under the given model's names; a layer holds the norm that
    # holds the weight
    ours = network.model
    our_stages: dict[str, nn.Module] = {}
    their_stages: dict[str, nn.Module] = {}
    for name, tensor in network.tensors.items():
        levels = 2 if name.endswith(".norm1.weight") else 1
        if levels == 1 and name not in ("norm.weight", "decoder.norm.weight"):
            continue
        root: nn.Module = ours if name.startswith("decoder.") else ours.encoder
        place = tensor.theirs[0].rsplit(".", levels)[0]
        our_stages[place] = root.get_submodule(name.rsplit(".", levels)[0])
        their_stages[place] = modules[f"{place}."]

    # transformers' autoencoder masks patches by the noise that it is given
    generator = torch.Generator().manual_seed(0)
    config = ours.encoder.config
    image = torch.randn(1, config.channels, *config.image_size, generator=generator)
    mask = None
    options: dict[str, Tensor] = {}
    if "noise" in signature(theirs.forward).parameters:
        patches = ours.encoder.patch_embed.num_patches
        options["noise"] = torch.rand(1, patches, generator=generator)
        visible = int(patches * (1 - network.source.config["mask_ratio"]))
        mask = mask_from_noise(options["noise"], visible)

    # both passes
    result, expected = _run(ours, our_stages, image, mask)
    try:
        answer, outputs = _run(theirs, their_stages, image, **options)
    except Exception as error:  # the model is another's code
        raise network.error(f"it computes no image: {error}") from error

    # the stages, and the output of the whole model: its tokens or, from its own head, the logits
    compared = [(place, value, outputs.get(place)) for place, value in expected.items()]
    if mask is None:
        answer = getattr(answer, "logits", getattr(answer, "last_hidden_state", answer))
        possible = [result]
        # DeiT's two heads read two tokens, and a user's own head stands outside
        if not hasattr(theirs, "head_dist") and not network.options.global_pool:
            pooled = ours.encoder.fc_norm(ours.encoder.pool(result))
            possible.append(pooled if network.own_head else ours.encoder.head(pooled))
        for value in possible:
            if isinstance(answer, Tensor) and answer.shape == value.shape:
                compared.append(("answer", value, answer))
    for place, value, their_value in compared:
        # None if it was not computed at all
        difference = float("inf")
        if their_value is not None and their_value.shape == value.shape:
            # values that are nan or infinite are refused, or allowed, elsewhere
            finite = value.nan_to_num()
            difference = float((finite - their_value.nan_to_num()).abs().max() / finite.abs().max())
        if difference > TOLERANCE:
            raise network.error(
                f"its {place} computes something else than this encoder: "
                f"the outputs differ by {difference:.1e} of the largest value"
            )

    # A module around it, if it takes images, passes them on unchanged or normalised as in the
    # origin, for pixels up to 1 or up to 255.
    wrapper = network.source.given_model
    if wrapper is None or wrapper is theirs:
        return
    place = network.tensors["patch_embed.proj.weight"].theirs[0].removesuffix(".weight")
    embedding = modules[f"{place}."]
    reached: dict[str, Tensor] = {}
    with suppress(Exception):
        reached = _run(wrapper, {place: embedding}, image)[1]
    normalize = ours.origin.normalize
    mean, std = (torch.tensor(values)[:, None, None] for values in (normalize.mean, normalize.std))
    usual = [image, (image - mean) / std, (image / 255 - mean) / std]
    embedded = [_run(embedding, {}, pixels)[0] for pixels in usual]
    if place in reached and not any(
        torch.allclose(reached[place], tokens, atol=1e-4) for tokens in embedded
    ):
        raise network.error(
            f"its {type(wrapper).__name__} changes images before they reach {place}, which is not "
            "loaded; load the model within it"
        )


def _run(
    model: nn.Module, stages: dict[str, nn.Module], *inputs: Any, **options: Tensor
) -> tuple[Any, dict[str, Tensor]]:
    """Return the outputs of a model and of each of its stages in evaluation mode, after hooks.

    It is computed in float32 on the CPU.
    """
    weights = {}
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        weights[name] = value.float().cpu() if value.is_floating_point() else value.cpu()
    with (
        eval_mode(model),
        outputs_of(stages) as outputs,
        torch.random.fork_rng(devices=[]),
        # without a compiler's graphs, whose shapes may differ
        torch.compiler.set_stance("force_eager"),
    ):
        return functional_call(model, weights, inputs, options), outputs
