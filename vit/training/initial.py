"""The model that a run begins with: new, or with the weights of a loaded one.

Parts of it can be frozen by name, down to the thirds of a fused qkv layer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.config import OBJECTIVES, PRESETS, Config, ModelConfig, changed, spelled
from vit.data import Dataset
from vit.data.images import seen_by
from vit.errors import ConfigError, plural
from vit.inputs import Normalization
from vit.mae import Model
from vit.training.objectives import CLASSES

THIRDS = {"W_Q": 0, "W_K": 1, "W_V": 2}


def initial_model(
    config: Config, data: Dataset, loaded: Model | None = None
) -> tuple[Model, Normalization, list[str]]:
    """Return the model of a run at its first step, and what belongs to it.

    Args:
        config: all settings; they describe a `loaded` model (`follow`).
        data: the training data.
        loaded: what `model.init` names, from `vit.load_model`; it stays unchanged.

    Returns:
        The model, with the encoder of `loaded` and whatever else fits (`Objective.take_over`). The
        normalisation of its input: that of `loaded`, or of the training images. Notes on both.
    """
    objective = CLASSES[config.train.objective]
    encoder = config.model.vit_config(**objective.encoder_settings(data))
    if config.model.init and loaded is None:
        # training loads none
        load = f"fit(..., init=load_model({config.model.init!r}))"
        raise ConfigError("model.init", f"in Python, hand the loaded model over: {load}")
    model = objective.build_model(config, encoder)
    if loaded is None:
        return model, Normalization.measured_on(data.train.images), []

    # whatever fits from the loaded one; its head is copied by `take_over`
    state = loaded.encoder.state_dict()
    body = {key: value for key, value in state.items() if not key.startswith("head.")}
    model.encoder.load_state_dict(body, strict=False)
    origin = loaded.origin
    notes = [*origin.notes, objective.take_over(model, loaded, data)]
    notes += seen_by(origin.trained_on, data)

    # another number of classes means other images
    is_taught = loaded.encoder.config.num_classes == len(data.train.class_names) > 0
    may_have_seen = data.is_chosen and origin.may_have_seen(data.test.content_hash)
    saw_labels = config.data.labels < 1 and origin.data_content_hash != data.content_hash
    if is_taught and (may_have_seen or saw_labels):
        notes.append(
            "it was trained on classes, perhaps with images or labels that this run holds out: "
            "its scores may be optimistic"
        )
    return model, origin.normalize, [f"model.init: {note}" for note in notes]


def architecture_of(model: Model) -> dict[str, Any]:
    """Return a model's values for the section `model`: its encoder, and a decoder's size."""
    values = {
        name: value for name, value in model.encoder.config if name in ModelConfig.model_fields
    }
    if model.decoder is not None:
        size = model.decoder.config
        values |= {
            "decoder_dim": size.dim,
            "decoder_depth": size.depth,
            "decoder_heads": size.num_heads,
        }
    return values


def follow(config: Config, named: Collection[str], loaded: Model) -> tuple[Config, list[str]]:
    """Take over the architecture of the model that a run begins with.

    Args:
        config: all settings.
        named: keys of those that the command line names, which must agree with the model; those of
            a file yield.
        loaded: what `model.init` names.

    Returns:
        The settings that describe the model, and a note on what was taken over.
    """
    # e.g. grey ones
    channels = loaded.encoder.config.channels
    if channels != ModelConfig.channels:
        raise ConfigError(
            "model.init",
            f"{config.model.init} is for images of {plural(channels, 'channel')}, and training "
            f"images have {ModelConfig.channels}; use another checkpoint",
        )
    # a classifier has no decoder, and a run chooses how its encoder is regularised and read
    part = loaded
    if OBJECTIVES[config.train.objective].labels:
        part = loaded.encoder
    own = architecture_of(part)
    del own["drop_path"], own["global_pool"]

    # settings that the command line names must agree with the model
    current = config.model.filled
    preset = PRESETS[config.model.preset] if "model.preset" in named else ()
    differing = [name for name in own if own[name] != current[name]]
    for name in differing:
        if name in preset or f"model.{name}" in named:
            problem = f"{spelled(current[name])} cannot be used; {config.model.init} has"
            raise ConfigError(f"model.{name}", f"{problem} {spelled(own[name])}; leave it out")
    notes = []
    if differing:
        architecture = ", ".join(f"{name} {spelled(own[name])}" for name in differing)
        notes.append(f"model.init: the architecture is the checkpoint's: {architecture}")
    return changed(config, {f"model.{name}": value for name, value in own.items()}), notes


def freeze(model: Model, names: Sequence[str]) -> list[Tensor]:
    """Freeze parts of `model`.

    A name consists of components of a parameter's name, in their order: "patch_embed", "pos_embed",
    "encoder.blocks.0", "mlp", "decoder.norm1". W_Q, W_K and W_V stand for that third of every qkv
    layer, weight and bias, and W_O for every attention's proj; they can be narrowed down as well:
    "decoder.W_Q", "encoder.blocks.3.attn.W_K".

    Returns:
        Views of the frozen thirds of otherwise trainable parameters, each once. Their gradient is
        zero from now on; `restore_frozen_rows` protects them from weight decay.
    """
    # a dictionary, because names may overlap: each third once, in their order
    thirds: dict[tuple[nn.Parameter, int], None] = {}
    parameters = dict(model.named_parameters())
    for name in names:
        # a classifier's encoder may be named as within an autoencoder
        if model.decoder is None:
            name = name.removeprefix("encoder.")

        # the name among the parameters: a third stands within its qkv, W_O is proj
        matrix = name.rpartition(".")[2]
        parameter_name = name.replace("attn.W_O", "W_O").replace("W_O", "attn.proj")
        if matrix in THIRDS:
            parameter_name = name.removesuffix(matrix) + "qkv"

        # of every layer, unless the name gives one
        found = [value for key, value in parameters.items() if _contains(key, parameter_name)]
        if not found:
            parts = ".".join(parameters).split(".")
            known = ", ".join([*THIRDS, "W_O", *sorted({*parts})])
            raise ConfigError(
                "model.freeze", f"{name!r} is not a part of this model; it has {known}"
            )
        for parameter in found:
            if matrix in THIRDS:
                thirds[parameter, THIRDS[matrix]] = None
            else:
                parameter.requires_grad_(False)
    # a third whose parameter another name has frozen as a whole needs nothing more
    return [
        _freeze_third(parameter, third) for parameter, third in thirds if parameter.requires_grad
    ]


def restore_frozen_rows(optimizer: Optimizer, rows: list[Tensor]) -> None:
    """Undo the weight decay of frozen rows, from `freeze`, after every step of `optimizer`."""
    originals = [row.clone() for row in rows]

    def restore(*_: object) -> None:
        torch._foreach_copy_(rows, originals)

    if rows:
        optimizer.register_step_post_hook(restore)


def _freeze_third(parameter: nn.Parameter, third: int) -> Tensor:
    """Keep the gradient of a third of a parameter's rows at zero, and return a view of them."""

    def without_third(gradient: Tensor) -> Tensor:
        # autograd may still use the one that it passes
        gradient = gradient.clone()
        gradient.chunk(3)[third].zero_()
        return gradient

    parameter.register_hook(without_third)
    return parameter.detach().chunk(3)[third]


def _contains(key: str, name: str) -> bool:
    """Return whether the components of `name` are among those of `key`, in this order."""
    remaining = iter(key.split("."))
    # each search continues where the last one ended
    return all(component in remaining for component in name.split("."))
