"""A model to be written for timm or transformers, by the tables that also read their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.formats.huggingface import (
    DECODER,
    DECODER_SETTINGS,
    DINOV2_BLOCK,
    DINOV2_BODY,
    DINOV2_SWIGLU,
    ENCODER_SETTINGS,
    FILTERS,
    HEAD,
    VIT_ENCODER,
)
from vit.checkpoints.formats.timm import ENCODER
from vit.checkpoints.names import KeyRule, map_out, within
from vit.errors import CheckpointError
from vit.inputs import Preparation
from vit.mae import Model
from vit.weights import TIMM_EPS, Origin, timm_config


@dataclass
class Outgoing:
    """A model, and the content of its files in a foreign format.

    Attributes:
        model: the model to write.
        format: the format's name in messages.
        tensors: by their names in the format.
        config: the content of config.json.
        preprocessor: the content of preprocessor_config.json; empty for none.
        notes: on what was left out, or is computed differently there.
    """

    model: Model
    format: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def error(self, difference: str) -> CheckpointError:
        """Return an error that says what the format computes and what this model has."""
        return CheckpointError(f"{self.format} {difference}, so it cannot be written")

    def require(self, **settings: Any) -> None:
        """Refuse a model unless its encoder has all these settings, which the format computes."""
        for key, required in settings.items():
            value = getattr(self.model.encoder.config, key)
            if value != required:
                raise self.error(f"computes {key} {required}, this model has {value}")

    def compare_eps(self, eps: float) -> None:
        """Note if this model's eps differs from the fixed one of the format's norms."""
        model_eps = self.model.encoder.config.norm_eps
        if model_eps != eps:
            self.notes.append(
                f"the norms of {self.format} have an eps of {eps:g}, this model's {model_eps}: "
                "features differ slightly"
            )

    def rename(self, rules: Iterable[KeyRule], left_out: Mapping[str, str] | None = None) -> None:
        """Set the tensors by the format's table.

        Args:
            rules: the table.
            left_out: prefixes of our names to leave out -> the reason, for the notes.

        Raises:
            CheckpointError: the format has no place for a tensor.
        """
        # our names: an autoencoder's encoder has no `encoder.` in front
        state = {}
        for name, value in self.model.state_dict().items():
            state[name.removeprefix("encoder.")] = value.detach().cpu()

        # what the format does not have
        for prefix, reason in (left_out or {}).items():
            names = [name for name in state if name.startswith(prefix)]
            if names:
                self.notes.append(f"left out, {len(names)} tensors ({names[0]}, ...): {reason}")
            for name in names:
                del state[name]

        # all others must have a place
        self.tensors, unmapped = map_out(rules, state, channels=self.model.encoder.config.channels)
        if unmapped:
            raise CheckpointError(
                f"{self.format} has no place for {', '.join(unmapped[:4])}: "
                "it does not compute that"
            )


def to_timm(model: Model, origin: Origin) -> Outgoing:
    """Write the encoder for `timm.create_model("local-dir:FOLDER")`."""
    out = Outgoing(model, "timm")
    out.require(qkv="linear")
    out.compare_eps(TIMM_EPS)
    out.rename(ENCODER, {"decoder.": "timm's vision transformer has no decoder"})
    # timm rounds the size to which the share of it belongs by itself
    prepared = Preparation(origin.interpolation, origin.crop_share, origin.squash)
    out.config = timm_config(model.encoder.config, origin.normalize, prepared, origin.class_names)
    if model.encoder.config.num_classes and origin.problem_type:
        out.notes.append(
            f"its head is for {origin.problem_type}: timm's settings have no place for that"
        )
    return out


# ---- transformers --------------------------------------------------------------------------------


def to_huggingface(model: Model, origin: Origin) -> Outgoing:
    """Write for transformers' `from_pretrained`.

    It becomes a ViTMAE if it is an autoencoder, a Dinov2 if it has layer scales, else a ViT.
    """
    # the class that computes this model
    settings = model.encoder.config
    if model.decoder is not None:
        name = "ViTMAE"
        write = _vit_mae
    elif settings.layer_scale is not None:
        name = "Dinov2"
        write = _dinov2
    else:
        name = "ViT"
        write = _vit
    out = Outgoing(model, f"transformers' {name}")
    out.require(class_token=True, qkv="linear", qk_norm=False, no_embed_class=False)

    # the settings that all of them have, and the class's own; a square is one number
    config = {theirs: getattr(settings, ours) for ours, theirs in ENCODER_SETTINGS.items()}
    for key in ("image_size", "patch_size"):
        height, width = config[key]
        config[key] = [height, width]
        if height == width:
            config[key] = height
    config["hidden_act"] = "gelu"
    config["qkv_bias"] = settings.qkv_bias
    config["torch_dtype"] = "float32"
    hidden = round(settings.embed_dim * settings.mlp_ratio)
    out.config = config | write(out, origin, hidden)
    if settings.global_pool == "avg":
        out.notes.append(
            "its features are the mean of the patches, which transformers' settings do not say: "
            "load it again with global_pool avg"
        )

    # how the input is prepared: resized, then cropped to the model's share of it
    height, width = settings.image_size
    share = origin.prepared.crop_share
    size = {"shortest_edge": round(height / share)}
    if height != width or origin.squash:
        size = {"height": round(height / share), "width": round(width / share)}
    if height != width and not origin.squash:
        out.notes.append("transformers squashes pictures of another shape; this package crops them")
    numbers = {name: number for number, name in FILTERS.items()}
    out.preprocessor = {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": size,
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "resample": numbers[origin.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": origin.normalize.mean,
        "image_std": origin.normalize.std,
    }
    return out


def _require_squares(out: Outgoing) -> None:
    for key in ("image_size", "patch_size"):
        height, _ = getattr(out.model.encoder.config, key)
        out.require(**{key: (height, height)})


def _vit_mae(out: Outgoing, origin: Origin, hidden: int) -> dict[str, Any]:
    """Set the tensors for ViTMAE, and return its own settings.

    Args:
        out: the files.
        origin: of the model.
        hidden: the width of the MLP in the encoder's blocks.
    """
    # what it computes
    model = out.model
    assert model.decoder is not None
    decoder = model.decoder.config.blocks(model.encoder.config)
    out.require(registers=0, layer_scale=None, mlp="gelu", fc_norm=False)
    _require_squares(out)
    # one setting there is that of all blocks, so the decoder's must be the encoder's
    for key in ("qkv", "qkv_bias", "qk_norm", "mlp", "norm_eps"):
        out.require(**{key: getattr(decoder, key)})

    out.rename((*within(VIT_ENCODER, "", "vit."), *DECODER))
    config = {
        "model_type": "vit_mae",
        "architectures": ["ViTMAEForPreTraining"],
        "intermediate_size": hidden,
        "decoder_intermediate_size": round(decoder.embed_dim * decoder.mlp_ratio),
        "norm_pix_loss": model.norm_pix_loss,
    }
    for ours, theirs in DECODER_SETTINGS.items():
        config[theirs] = getattr(model.decoder.config, ours)
    return config


def _vit(out: Outgoing, origin: Origin, hidden: int) -> dict[str, Any]:
    """Set the tensors for ViT, and return its own settings.

    Args:
        out: the files.
        origin: of the model, with the names of its classes.
        hidden: the width of the MLP in a block.
    """
    settings = out.model.encoder.config
    out.require(registers=0, mlp="gelu", fc_norm=False)
    config: dict[str, Any] = {"model_type": "vit", "intermediate_size": hidden}

    # without a head that it has
    if settings.num_classes == 0 or settings.global_pool != "token":
        config["architectures"] = ["ViTModel"]
        no_head = (
            "this head reads the mean of the patches, that of transformers reads the class token"
        )
        out.rename((*VIT_ENCODER, *HEAD), {"head.": no_head})
        return config

    # a classifier, with the names of its classes
    config["architectures"] = ["ViTForImageClassification"]
    out.rename((*within(VIT_ENCODER, "", "vit."), *HEAD))
    names = origin.class_names or tuple(f"LABEL_{i}" for i in range(settings.num_classes))
    config["id2label"] = {}
    config["label2id"] = {}
    for i, name in enumerate(names):
        config["id2label"][str(i)] = name
        # two classes with the same name ("crane" in ImageNet) must not become one entry
        if name in config["label2id"]:
            name = f"{name} ({i})"
        config["label2id"][name] = i
    if origin.problem_type:
        config["problem_type"] = origin.problem_type
    return config


def _dinov2(out: Outgoing, origin: Origin, hidden: int) -> dict[str, Any]:
    """Set the tensors for Dinov2, and return its own settings.

    Args:
        out: the files.
        origin: of the model.
        hidden: the width of the MLP in a block.
    """
    settings = out.model.encoder.config
    width = settings.embed_dim
    registers = settings.registers
    out.require(fc_norm=False)
    _require_squares(out)

    # transformers computes the hidden width from a whole ratio, for SwiGLU as two thirds of it in
    # steps of 8
    is_swiglu = settings.mlp == "swiglu"
    if is_swiglu:
        ratio = round(settings.mlp_ratio * 3 / 2)
        theirs = (width * ratio * 2 // 3 + 7) // 8 * 8
    else:
        ratio = round(settings.mlp_ratio)
        theirs = width * ratio
    if theirs != hidden:
        raise out.error(f"has no MLP of {hidden} hidden values on a width of {width}")
    if registers and bool(out.model.encoder.pos_embed[:, 1 : 1 + registers].any()):
        raise out.error("has no positions for registers, this model has")

    # tensors, and the token for masked patches, which is used in its training only
    block = DINOV2_BLOCK
    if is_swiglu:
        block = (*DINOV2_SWIGLU, *DINOV2_BLOCK)
    no_head = {"head.": "Dinov2's classifier reads two vectors side by side"}
    out.rename((*DINOV2_BODY, *within(block, "blocks.#.", "encoder.layer.#.")), no_head)
    out.tensors["embeddings.mask_token"] = torch.zeros(1, width)

    # its settings; with registers it is a model of its own, without rows for them in the table
    config: dict[str, Any] = {
        "model_type": "dinov2",
        "architectures": ["Dinov2Model"],
        "mlp_ratio": ratio,
        "use_swiglu_ffn": is_swiglu,
        "layerscale_value": settings.layer_scale,
    }
    if registers:
        positions = out.tensors["embeddings.position_embeddings"]  # (1, N, D)
        out.tensors["embeddings.position_embeddings"] = torch.cat(
            [positions[:, :1], positions[:, 1 + registers :]], dim=1
        )
        config["model_type"] = "dinov2_with_registers"
        config["architectures"] = ["Dinov2WithRegistersModel"]
        config["num_register_tokens"] = registers
    return config
