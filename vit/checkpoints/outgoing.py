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
from vit.checkpoints.origin import Origin
from vit.config import ViTConfig
from vit.errors import CheckpointError
from vit.mae import Model
from vit.weights import TIMM_EPS, timm_config


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

    def error(self, what: str) -> CheckpointError:
        """Return an error that says what the format and this model have."""
        return CheckpointError(f"{self.format} {what}, so it cannot be written")

    def require(self, **needed: Any) -> None:
        """Refuse a model unless all these settings have the values that the format computes."""
        for key, value in needed.items():
            has = getattr(self.model.encoder.config, key)
            if has != value:
                raise self.error(f"computes {key} {value}, this model has {has}")

    def require_squares(self) -> None:
        """Refuse a model whose images or patches are not square."""
        settings = self.model.encoder.config
        (height, width), (p, q) = settings.image_size, settings.patch_size
        if height != width or p != q:
            has = f"this model has {height} x {width} pixels in patches of {p} x {q}"
            raise self.error(f"computes square images of square patches, {has}")

    def require_alike(self, decoder: ViTConfig) -> None:
        """Refuse an autoencoder whose decoder's blocks are of another kind than the encoder's."""
        for key in ("qkv", "qkv_bias", "qk_norm", "mlp", "norm_eps"):
            kinds = [getattr(settings, key) for settings in (self.model.encoder.config, decoder)]
            if kinds[0] != kinds[1]:
                raise self.error(
                    f"computes one {key} in encoder and decoder, this model {kinds[0]} and {kinds[1]}"
                )

    def compare_eps(self, eps: float) -> None:
        """Note if this model's eps differs from the fixed one of the format's norms."""
        own = self.model.encoder.config.norm_eps
        if own != eps:
            self.notes.append(
                f"the norms of {self.format} have an eps of {eps:g}, this model's {own}: features differ slightly"
            )

    def rename(self, rules: Iterable[KeyRule], leave_out: Mapping[str, str] | None = None) -> None:
        """Set the tensors by the format's table.

        Args:
            rules: the table.
            leave_out: prefixes of our names to leave out -> the reason, for the notes.

        Raises:
            CheckpointError: the format has no place for a tensor.
        """
        state = {
            name.removeprefix("encoder."): value.detach().cpu()
            for name, value in self.model.state_dict().items()
        }
        for start, why in (leave_out or {}).items():
            left = [name for name in state if name.startswith(start)]
            if left:
                self.notes.append(f"left out, {len(left)} tensors ({left[0]}, ...): {why}")
            state = {name: value for name, value in state.items() if name not in left}
        self.tensors, unmapped = map_out(rules, state, channels=self.model.encoder.config.channels)
        if unmapped:
            raise CheckpointError(
                f"{self.format} has no place for {', '.join(unmapped[:4])}: it does not compute that"
            )


def to_timm(model: Model, origin: Origin) -> Outgoing:
    """Write the encoder for `timm.create_model("local-dir:FOLDER")`."""
    out = Outgoing(model, "timm")
    out.require(qkv="linear")
    out.compare_eps(TIMM_EPS)
    out.rename(ENCODER, {"decoder.": "timm's vision transformer has no decoder"})
    out.config = timm_config(
        model.encoder.config, origin.normalize, origin.prepared, origin.class_names
    )
    if model.encoder.config.num_classes and origin.problem_type:
        out.notes.append(
            f"its head is for {origin.problem_type}: timm's settings have no place for that"
        )
    return out


def to_huggingface(model: Model, origin: Origin) -> Outgoing:
    """Write for transformers' `from_pretrained`: ViTMAE for an autoencoder, Dinov2 with layer scales, else ViT."""
    settings = model.encoder.config
    name, write = "Dinov2", _dinov2
    if model.decoder is not None:
        name, write = "ViTMAE", _vit_mae
    elif settings.layer_scale is None:
        name, write = "ViT", _vit
    out = Outgoing(model, f"transformers' {name}")
    out.require(class_token=True, qkv="linear", qk_norm=False, no_embed_class=False)
    config = {theirs: getattr(settings, ours) for ours, theirs in ENCODER_SETTINGS.items()}
    for key in ("image_size", "patch_size"):
        config[key] = config[key][0] if len({*config[key]}) == 1 else list(config[key])
    config |= {"hidden_act": "gelu", "qkv_bias": settings.qkv_bias, "torch_dtype": "float32"}
    out.config = config | write(out, origin, round(settings.embed_dim * settings.mlp_ratio))
    (height, width), share = settings.image_size, origin.prepared.crop_share
    size = {"shortest_edge": round(height / share)}
    if height != width:
        size = {"height": round(height / share), "width": round(width / share)}
        out.notes.append("transformers squashes pictures of another shape; this package crops them")
    out.preprocessor = {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": size,
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "resample": {name: number for number, name in FILTERS.items()}[origin.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": origin.normalize.mean,
        "image_std": origin.normalize.std,
    }
    return out


def _vit_mae(out: Outgoing, origin: Origin, hidden: int) -> dict[str, Any]:
    """Set the tensors for ViTMAE, and return its own settings; the blocks' MLP is `hidden` wide."""
    model = out.model
    out.require(registers=0, layer_scale=None, mlp="gelu", fc_norm=False)
    out.require_squares()
    out.rename((*within(VIT_ENCODER, "", "vit."), *DECODER))
    assert model.decoder is not None
    decoder = model.decoder.config.blocks(model.encoder.config)
    out.require_alike(decoder)
    return {
        "model_type": "vit_mae",
        "architectures": ["ViTMAEForPreTraining"],
        "intermediate_size": hidden,
        **{
            theirs: getattr(model.decoder.config, ours) for ours, theirs in DECODER_SETTINGS.items()
        },
        "decoder_intermediate_size": round(decoder.embed_dim * decoder.mlp_ratio),
        "norm_pix_loss": model.norm_pix_loss,
    }


def _vit(out: Outgoing, origin: Origin, hidden: int) -> dict[str, Any]:
    """Set the tensors for ViT, and return its own settings; the blocks' MLP is `hidden` wide."""
    settings = out.model.encoder.config
    out.require(registers=0, mlp="gelu", fc_norm=False)
    headed = settings.num_classes > 0 and settings.global_pool == "token"
    body = within(VIT_ENCODER, "", "vit.") if headed else VIT_ENCODER
    no_head = {
        "head.": "this head reads the mean of the patches, that of transformers the class token"
    }
    out.rename((*body, *HEAD), {} if headed else no_head)
    architecture = "ViTForImageClassification" if headed else "ViTModel"
    config: dict[str, Any] = {
        "model_type": "vit",
        "architectures": [architecture],
        "intermediate_size": hidden,
    }
    if headed:
        names = origin.class_names or tuple(f"LABEL_{i}" for i in range(settings.num_classes))
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        # two classes with the same name ("crane" in ImageNet) must not become one entry
        config["label2id"] = {
            n if names.index(n) == i else f"{n} ({i})": i for i, n in enumerate(names)
        }
        if origin.problem_type:
            config["problem_type"] = origin.problem_type
    return config


def _dinov2(out: Outgoing, origin: Origin, hidden: int) -> dict[str, Any]:
    """Set the tensors for Dinov2, and return its own settings; the blocks' MLP is `hidden` wide."""
    settings = out.model.encoder.config
    out.require(fc_norm=False)
    out.require_squares()

    # transformers computes the hidden width from a whole ratio
    gated, width, registers = settings.mlp == "swiglu", settings.embed_dim, settings.registers
    ratio = round(settings.mlp_ratio * (3 / 2 if gated else 1))
    if ((width * ratio * 2 // 3 + 7) // 8 * 8 if gated else width * ratio) != hidden:
        raise out.error(f"has no MLP of {hidden} hidden values on a width of {width}")
    if registers and bool(out.model.encoder.pos_embed[:, 1 : 1 + registers].any()):
        raise out.error("has no positions for registers, this model has")

    rules = (*(DINOV2_SWIGLU if gated else ()), *DINOV2_BLOCK)
    no_head = {"head.": "Dinov2's classifier reads two vectors side by side"}
    out.rename((*DINOV2_BODY, *within(rules, "blocks.#.", "encoder.layer.#.")), no_head)
    if registers:
        positions = out.tensors["embeddings.position_embeddings"]
        kept = torch.cat([positions[:, :1], positions[:, 1 + registers :]], dim=1)
        out.tensors["embeddings.position_embeddings"] = kept
    out.tensors["embeddings.mask_token"] = torch.zeros(
        1, width
    )  # used in its training only; we have none
    name = "Dinov2WithRegisters" if registers else "Dinov2"
    return {
        "model_type": "dinov2_with_registers" if registers else "dinov2",
        "architectures": [f"{name}Model"],
        "mlp_ratio": ratio,
        "use_swiglu_ffn": gated,
        "layerscale_value": settings.layer_scale,
        **({"num_register_tokens": registers} if registers else {}),
    }
