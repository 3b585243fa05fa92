"""transformers' ViT, ViTMAE and Dinov2 (with registers), as they stand on disk and, since 5.9, in memory."""

from __future__ import annotations

import math
from typing import Any

import torch

from vit.checkpoints.formats.format import HALVES, IMAGENET, Format, Hints, only_given, pair
from vit.checkpoints.formats.outgoing import Outgoing, renamed, require
from vit.checkpoints.names import Row, row, within
from vit.checkpoints.origin import Origin
from vit.checkpoints.reading import CheckpointError, Source
from vit.mae import Model

ON_DISK = (
    row("attn.qkv.@", *(f"attention.attention.{name}.@" for name in ("query", "key", "value"))),
    row("attn.proj.@", "attention.output.dense.@"),
)
IN_MEMORY = (
    row("attn.qkv.@", *(f"attention.{name}_proj.@" for name in "qkv")),
    row("attn.proj.@", "attention.o_proj.@"),
)
NORMS = (row("norm1.@", "layernorm_before.@"), row("norm2.@", "layernorm_after.@"))
VIT_ON_DISK = (
    *ON_DISK, *NORMS, row("mlp.fc1.@", "intermediate.dense.@"), row("mlp.fc2.@", "output.dense.@"),
)  # fmt: skip
VIT_IN_MEMORY = (*IN_MEMORY, *NORMS, row("mlp.fc1.@"), row("mlp.fc2.@"))
DINOV2_BLOCK = (
    row("norm1.@"), *ON_DISK, *IN_MEMORY, row("ls1.gamma", "layer_scale1.lambda1"),
    row("norm2.@"), row("mlp.fc1.@"), row("mlp.fc2.@"), row("ls2.gamma", "layer_scale2.lambda1"),
)  # fmt: skip
DINOV2_SWIGLU = (
    row("mlp.fc1.@", "mlp.weights_in.@"), row("mlp.fc2.@", "mlp.weights_out.@"),
    row("mlp.fc1.@", "mlp.gate_proj.@", "mlp.up_proj.@"), row("mlp.fc2.@", "mlp.down_proj.@"),
)  # fmt: skip

PATCHES = "embeddings.patch_embeddings.projection.@"
BODY = (
    row("cls_token", "embeddings.cls_token"),
    row("pos_embed", "embeddings.position_embeddings"),
    row("patch_embed.proj.@", PATCHES),
    row("norm.@", "layernorm.@"),
)


def _blocks(container: str) -> tuple[Row, ...]:
    return (
        *within(VIT_ON_DISK, container, "encoder.layer.#."),
        *within(VIT_IN_MEMORY, container, "layers.#."),
        *within(VIT_IN_MEMORY, container, "encoder.layer.#."),
    )


VIT_ENCODER = (*BODY, *_blocks("blocks.#."))
DECODER = (
    row("decoder.mask_token"),
    row("decoder.pos_embed", "decoder.decoder_pos_embed"),
    row("decoder.embed.@", "decoder.decoder_embed.@"),
    *(
        r
        for container in ("decoder.decoder_layers.#.", "decoder.decoder_encoder.layer.#.")
        for spelling in (VIT_ON_DISK, VIT_IN_MEMORY)
        for r in within(spelling, "decoder.blocks.#.", container)
    ),
    row("decoder.norm.@", "decoder.decoder_norm.@"),
    row("decoder.pred.@", "decoder.decoder_pred.@", change="pixels"),
)


def _anywhere(rows: tuple[Row, ...], model: str) -> tuple[Row, ...]:
    """The body of a model, in a task model under `model`, in a bare one without."""
    return (*within(rows, "", f"{model}."), *rows)


FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's numbers


def huggingface_hints(source: Source) -> Hints:
    """What config.json and preprocessor_config.json say.

    Raises:
        CheckpointError: an activation that our encoder does not compute.
    """
    config = source.config
    if config.get("hidden_act", "gelu") != "gelu":
        raise CheckpointError(
            f"{source.path}: the activation {config['hidden_act']!r} is not computed here, only gelu is"
        )
    encoder: dict[str, Any] = {
        "image_size": _size(config, "image_size"),
        "patch_size": _size(config, "patch_size"),
        "channels": config.get("num_channels"),
        "embed_dim": config.get("hidden_size"),
        "depth": config.get("num_hidden_layers"),
        "num_heads": config.get("num_attention_heads"),
        "norm_eps": config.get("layer_norm_eps"),
    }
    decoder = {
        "dim": config.get("decoder_hidden_size"),
        "depth": config.get("decoder_num_hidden_layers"),
        "num_heads": config.get("decoder_num_attention_heads"),
    }
    labels = config.get("id2label") or {}
    # transformers writes LABEL_0, LABEL_1, ... where nobody gave names.
    names = [str(labels[key]) for key in sorted(labels, key=lambda key: int(key) if str(key).isdigit() else 0)]
    processor = source.preprocessor
    resample = processor.get("resample")
    mean, std = (_numbers(processor.get(key)) for key in ("image_mean", "image_std"))
    if processor.get("do_normalize") is False:
        channels = encoder["channels"] if type(encoder["channels"]) is int else 3
        mean, std = (0.0,) * channels, (1.0,) * channels
    factor, notes = processor.get("rescale_factor", 1 / 255), []
    if processor.get("do_rescale") is False or not math.isclose(factor, 1 / 255):
        notes.append("its preprocessor does not bring pixels from 0-255 to 0-1, as is done here before normalising")
    return Hints(
        only_given(encoder),
        only_given(decoder) if "decoder_hidden_size" in config else {},
        norm_pix_loss=config.get("norm_pix_loss"),
        mean=mean,
        std=std,
        interpolation=None if resample is None else FILTERS.get(resample, f"filter {resample}"),
        class_names=tuple(names) if not all(name.startswith("LABEL_") for name in names) else (),
        notes=tuple(notes),
    )


def _size(config: dict[str, Any], key: str) -> Any:
    """A size as (height, width); what is none, as it is, to be refused."""
    return pair(config.get(key)) or config.get(key)


def _numbers(values: Any) -> tuple[float, ...] | None:
    return tuple(map(float, values)) if values is not None else None


POOLER = (r"(.*\.)?pooler\.dense\..*", "the pooler, a tanh layer that this encoder does not have")
ANCHOR = r"embeddings\.patch_embeddings\.projection\.weight"

VIT_MAE = Format(
    name="Hugging Face ViTMAE",
    anchor=rf"(?:vit\.)?{ANCHOR}",
    marks=(r"decoder\.decoder_pred\.weight", r"decoder\.decoder_embed\.weight"),
    rows=(*_anywhere(VIT_ENCODER, "vit"), *DECODER),
    hints=huggingface_hints,
    norm_eps=1e-12,
)

VIT = Format(
    name="Hugging Face ViT",
    anchor=rf"(?:vit\.)?{ANCHOR}",
    marks=(r"(vit\.)?(encoder\.layer|layers)\.\d+\.layernorm_before\.weight",),
    rows=(*_anywhere(VIT_ENCODER, "vit"), row("head.@", "classifier.@")),
    dropped=(POOLER,),
    hints=huggingface_hints,
    global_pool="token",
    norm_eps=1e-12,
    mean=HALVES[0],
    std=HALVES[1],
    interpolation="bilinear",
)

DINOV2 = Format(
    name="Hugging Face Dinov2",
    anchor=rf"(?:dinov2(?:_with_registers)?\.)?{ANCHOR}",
    marks=(r"(dinov2(_with_registers)?\.)?encoder\.layer\.\d+\.layer_scale1\.lambda1",),
    rows=tuple(
        r
        for model in ("dinov2.", "dinov2_with_registers.", "")
        for r in (
            *within((*BODY, row("reg_token", "embeddings.register_tokens")), "", model),
            *within((*DINOV2_BLOCK, *DINOV2_SWIGLU), "blocks.#.", f"{model}encoder.layer.#."),
        )
    ),
    dropped=(
        (r"(.*\.)?embeddings\.mask_token", "DINOv2's token for hidden patches, of use in its training alone"),
        (
            r"classifier\..*",
            "Dinov2's classifier reads the class token beside the mean of the patches, this head one of them",
        ),
    ),
    hints=huggingface_hints,
    mean=IMAGENET[0],
    std=IMAGENET[1],
)


def to_huggingface(model: Model, origin: Origin) -> Outgoing:
    """For transformers' `from_pretrained`: ViTMAE for an autoencoder, Dinov2 where there are layer scales, else ViT."""
    settings = model.encoder.config
    notes: list[str] = []
    require(model, "transformers", class_token=True, qkv="linear", qk_norm=False, no_embed_class=False)
    config: dict[str, Any] = {
        "hidden_size": settings.embed_dim,
        "num_hidden_layers": settings.depth,
        "num_attention_heads": settings.num_heads,
        "hidden_act": "gelu",
        "layer_norm_eps": settings.norm_eps,
        "image_size": _number_or_list(settings.image_size),
        "patch_size": _number_or_list(settings.patch_size),
        "num_channels": settings.channels,
        "qkv_bias": settings.qkv_bias,
        "torch_dtype": "float32",
    }
    hidden = round(settings.embed_dim * settings.mlp_ratio)
    no_head = "this head reads the mean of the patches, that of transformers the class token"
    if model.decoder is not None:
        require(model, "transformers' ViTMAE", registers=0, layer_scale=None, mlp="gelu", fc_norm=False)
        decoder = model.decoder.config.blocks(settings)
        tensors = renamed(model, (*within(VIT_ENCODER, "", "vit."), *DECODER), "ViTMAE", {}, notes)
        config |= {
            "model_type": "vit_mae",
            "architectures": ["ViTMAEForPreTraining"],
            "intermediate_size": hidden,
            "decoder_hidden_size": decoder.embed_dim,
            "decoder_num_hidden_layers": decoder.depth,
            "decoder_num_attention_heads": decoder.num_heads,
            "decoder_intermediate_size": round(decoder.embed_dim * decoder.mlp_ratio),
            "norm_pix_loss": model.norm_pix_loss,
        }
    elif settings.layer_scale is not None:
        require(model, "transformers' Dinov2", fc_norm=False)
        tensors, config = _dinov2(model, config, hidden, notes)
    else:
        require(model, "transformers' ViT", registers=0, mlp="gelu", fc_norm=False)
        headed = settings.num_classes > 0 and settings.global_pool == "token"
        body = within(VIT_ENCODER, "", "vit.") if headed else VIT_ENCODER
        tensors = renamed(
            model, (*body, row("head.@", "classifier.@")), "ViT", {} if headed else {"head.": no_head}, notes
        )
        architecture = "ViTForImageClassification" if headed else "ViTModel"
        config |= {"model_type": "vit", "architectures": [architecture], "intermediate_size": hidden}
        if headed:
            names = origin.class_names or tuple(f"LABEL_{i}" for i in range(settings.num_classes))
            config["id2label"] = {str(i): name for i, name in enumerate(names)}
            # Two classes of one name ("crane" in ImageNet) must not become one entry.
            config["label2id"] = {n if names.index(n) == i else f"{n} ({i})": i for i, n in enumerate(names)}
    height, width = settings.image_size
    preprocessor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": {name: number for number, name in FILTERS.items()}[origin.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": origin.normalize.mean,
        "image_std": origin.normalize.std,
    }
    return Outgoing(tensors, config, preprocessor, notes)


def _dinov2(
    model: Model, config: dict[str, Any], hidden: int, notes: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    settings = model.encoder.config
    gated = settings.mlp == "swiglu"
    width, ratio = settings.embed_dim, settings.mlp_ratio * (3 / 2 if gated else 1)
    fitting = int(width * round(ratio))
    if (((fitting * 2 // 3) + 7) // 8 * 8 if gated else fitting) != hidden:
        raise CheckpointError(f"transformers' Dinov2 has no MLP of {hidden} hidden values on a width of {width}")
    registers = settings.registers
    table = model.encoder.pos_embed
    if registers and bool(table[:, 1 : 1 + registers].any()):
        raise CheckpointError("transformers' Dinov2 has no positions for registers, this model has")
    rows = (
        *BODY, row("reg_token", "embeddings.register_tokens"),
        *within((*(DINOV2_SWIGLU if gated else ()), *DINOV2_BLOCK), "blocks.#.", "encoder.layer.#."),
    )  # fmt: skip
    tensors = renamed(model, rows, "Dinov2", {"head.": "Dinov2's classifier reads two vectors side by side"}, notes)
    if registers:
        positions = tensors["embeddings.position_embeddings"]
        tensors["embeddings.position_embeddings"] = torch.cat([positions[:, :1], positions[:, 1 + registers :]], dim=1)
    tensors["embeddings.mask_token"] = torch.zeros(1, width)  # of its training; it has a place for one and we have none
    name = "Dinov2WithRegisters" if registers else "Dinov2"
    config |= {
        "model_type": "dinov2_with_registers" if registers else "dinov2",
        "architectures": [f"{name}Model"],
        "mlp_ratio": round(ratio),
        "use_swiglu_ffn": gated,
        "layerscale_value": settings.layer_scale,
    }
    if registers:
        config["num_register_tokens"] = registers
    return tensors, config


def _number_or_list(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
