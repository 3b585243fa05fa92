"""The project's own file format: model.safetensors (the weights) and config.json (everything else).

The encoder's tensors have timm's names, and if timm computes the same, config.json also holds
timm's settings, so that timm's "local-dir:FOLDER" and transformers' AutoModel (through its
TimmWrapper) load such a folder too.

`Origin` is what a model carries once it is trained or loaded.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from vit.atomic import make_folder, replacing, write_json
from vit.config import DecoderConfig, ViTConfig, user_path
from vit.encoder import VisionTransformer
from vit.inputs import ModelInputs
from vit.mae import Model, build_autoencoder

if TYPE_CHECKING:
    from torchvision.transforms.v2 import Transform

NAME = "vit-patch-trainer"
FORMAT = f"{NAME}/1"
"""The "format" in config.json."""
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TRAINED_ON = "trained_on.npy"
"""The hashes of the images that a model was trained on, int64 (M,), in ascending order."""
NO_IMAGES = torch.empty(0, dtype=torch.int64, device="cpu")
"""The hashes of no image, int64 (0,)."""


# ---- Written -------------------------------------------------------------------------------------


def save_model(
    folder: str | Path,
    model: Model,
    origin: Origin | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write model.safetensors and config.json into `folder`, for `vit.checkpoints.load_model`.

    Args:
        folder: created if missing. The hashes of training images, if known, are in trained_on.npy.
        model: an encoder, or an autoencoder with its decoder.
        origin: `Origin`: how its input is made, and what is known of its data; None: the model's
            own, which every trained or loaded model has.
        dtype: of the weights on disk; they always load as float32.
    """
    origin = origin or model.origin
    # first, as config.json, which comes last, says that all is there
    folder = user_path(folder)
    if len(origin.trained_on):
        make_folder(folder)
        with replacing(folder / TRAINED_ON) as temporary, temporary.open("wb") as file:
            np.save(file, origin.trained_on.unique().numpy())
    else:
        # those of another model that was here
        (folder / TRAINED_ON).unlink(missing_ok=True)

    tensors = {
        name: value.cpu().to(dtype).contiguous() for name, value in named_tensors(model).items()
    }

    # our own settings
    config: dict[str, Any] = {
        "format": FORMAT,
        **architecture(model),
        "mean": origin.normalize.mean,
        "std": origin.normalize.std,
        "interpolation": origin.interpolation,
        "crop_share": origin.crop_share,
        "class_names": origin.class_names,
        "data": origin.data,
        "data_content_hash": origin.data_content_hash,
        "content_hash": weights_hash(model),
    }
    if origin.squash:
        config["squash"] = True

    # timm's settings beside them, under other keys, if its vision transformer computes exactly this
    encoder = model.encoder.config
    if encoder.qkv == "linear" and encoder.norm_eps == TIMM_EPS:
        config |= timm_config(encoder, origin)
        if model.decoder is not None:
            # timm has no place for the decoder's tensors
            config["model_args"]["pretrained_strict"] = False
    write_weights(folder, tensors, config)


def write_weights(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write model.safetensors, with our settings in its metadata, then config.json.

    config.json also gets the SHA-256 of the weights, which `load_model` checks.
    """
    # transformers requires the format; our settings are there for a copy of the file alone
    metadata = {"format": "pt"}
    if config.get("format") == FORMAT:
        metadata[NAME] = json.dumps(config)

    # The header is 8 bytes of length, then JSON, padded to a multiple of 8. The library itself
    # writes several keys of metadata in an order that differs from process to process.
    content = memoryview(save(tensors))
    length = 8 + int.from_bytes(content[:8], "little")
    places = json.loads(bytes(content[8:length]))
    header = json.dumps({"__metadata__": metadata, **places}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    parts = (len(header).to_bytes(8, "little"), header, content[length:])
    digest = hashlib.sha256()
    make_folder(folder)
    with replacing(folder / WEIGHTS) as temporary, temporary.open("wb") as file:
        for part in parts:
            file.write(part)
            digest.update(part)

    # last: a config.json says that all of its model is there
    write_json(folder / CONFIG, {**config, "sha256": digest.hexdigest()})


def named_tensors(model: Model) -> dict[str, Tensor]:
    """Return a model's tensors by their names in files: timm's, without `encoder.` in front."""
    return {name.removeprefix("encoder."): value for name, value in model.state_dict().items()}


def weights_hash(model: Model) -> str:
    """Return 16 hexadecimal digits that identify a model's weights.

    They are a hash of names, shapes and half-precision values, so that a copy in half precision has
    the same.
    """
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)}\n".encode())
        digest.update(value.cpu().half().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def checkpoint_hash(model: Model) -> str:
    """Return the hash of the weights in a model's checkpoint, else that of the model's own.

    A loaded model has the hash in its checkpoint's config.json, even if it was resized, lost its
    head, or was trained since.
    """
    stored = model.origin and model.origin.details.get("content_hash")
    return stored or weights_hash(model)


# ---- The architecture ----------------------------------------------------------------------------


def architecture(model: Model) -> dict[str, Any]:
    """Return plain values from which a model can be rebuilt.

    They are the settings of the encoder and of the decoder, and its target; None without a decoder.
    """
    return {
        "encoder": model.encoder.config.model_dump(),
        "decoder": model.decoder and model.decoder.config.model_dump(),
        "norm_pix_loss": model.norm_pix_loss,
    }


def build_model(encoder: ViTConfig, decoder: DecoderConfig | None, norm_pix_loss: bool) -> Model:
    """Build an encoder, or an autoencoder if there is a decoder, with new weights."""
    if decoder is None:
        return VisionTransformer(encoder)
    return build_autoencoder(encoder, decoder, norm_pix_loss)


# ---- For timm ------------------------------------------------------------------------------------

SAME_ARGUMENTS = (
    "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "class_token", "no_embed_class",
    "qkv_bias", "qk_norm", "global_pool", "fc_norm",
)  # fmt: skip
"""timm's model arguments that have our names."""
TIMM_EPS = 1e-6
"""The eps of timm's norms, which no argument changes."""


def timm_config(settings: ViTConfig, origin: Origin) -> dict[str, Any]:
    """Return timm's config.json for an encoder, which transformers' TimmWrapper reads too.

    Args:
        settings: the encoder's.
        origin: how its input is made, and the names of its classes, or of the training data's.
    """
    model_args = {name: getattr(settings, name) for name in SAME_ARGUMENTS}
    model_args["img_size"] = settings.image_size
    model_args["in_chans"] = settings.channels
    model_args["reg_tokens"] = settings.registers

    # any of timm's models with the same MLP will do: model_args states everything else
    width = settings.embed_dim
    hidden = settings.hidden_dim
    timm_name = "vit_base_patch16_224"
    if settings.mlp == "swiglu":
        # gate and value count together in timm
        hidden *= 2
        timm_name = "vit_giant_patch14_dinov2"

    # ratio x width is rounded here, but truncated in timm
    ratio = hidden / width
    if int(width * ratio) != hidden:
        ratio = math.nextafter(ratio, math.inf)
    model_args["mlp_ratio"] = ratio

    # None would keep the architecture's own; 0 means no layer scale, but ours may begin at 0
    model_args["init_values"] = 0
    if settings.layer_scale is not None:
        model_args["init_values"] = settings.layer_scale or 1e-5

    config = {
        "architecture": timm_name,
        # not in model_args, because TimmWrapper passes it separately
        "num_classes": settings.num_classes,
        "num_features": settings.embed_dim,
        "global_pool": settings.global_pool,
        "model_args": model_args,
        "pretrained_cfg": {
            "input_size": [settings.channels, *settings.image_size],
            "fixed_input_size": True,
            "interpolation": origin.interpolation,
            "crop_pct": origin.crop_share,
            "crop_mode": "squash" if origin.squash else "center",
            "mean": origin.normalize.mean,
            "std": origin.normalize.std,
            "num_classes": settings.num_classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
        # for transformers, even if the weights are in half precision
        "torch_dtype": "float32",
    }
    # class_names may be those of the training data alone
    if 0 < settings.num_classes == len(origin.class_names):
        config["label_names"] = origin.class_names
    return config


@dataclass(frozen=True, kw_only=True)
class Origin(ModelInputs):
    """Where a model came from and how its input is made: its `origin`, once trained or loaded.

    Attributes:
        source: the run folder, or the name or path that was loaded; "" for neither.
        class_names: of the head, or of the training data; empty if unknown.
        data: name of the training data; "" if unknown.
        data_content_hash: `vit.data.Dataset.content_hash` of the training and test images; "" if
            unknown.
        trained_on: hashes of the images that it was trained on, int64 (M,), as in
            `vit.data.ImageSet`; empty if unknown.
        format: of the file that was loaded.
        details: the whole config.json of a loaded model.
        report: a `vit.checkpoints.Report` on each tensor of a loaded model, else None.
    """

    source: str = ""
    class_names: tuple[str, ...] = ()
    data: str = ""
    data_content_hash: str = ""
    trained_on: Tensor = field(default=NO_IMAGES, repr=False, compare=False)
    format: str = NAME
    details: dict[str, Any] = field(default_factory=dict)
    report: Any = None

    @property
    def problem_type(self) -> str:
        """The kind of task of the head, as transformers calls it; "" for one of several classes.

        For example multi_label_classification.
        """
        problem_type = str(self.details.get("problem_type") or "")
        return problem_type.replace("single_label_classification", "")

    @property
    def notes(self) -> list[str]:
        """What was assumed or changed when the model was loaded."""
        return getattr(self.report, "notes", [])

    def may_have_seen(self, content_hash: str) -> bool:
        """Return whether nothing tells that the training held out the images with this hash.

        Args:
            content_hash: of the `vit.data.ImageSet`.
        """
        # the hash of the data is that of the training images, "-", that of the test images
        tested_on = self.data_content_hash.rpartition("-")[2]
        return not len(self.trained_on) and tested_on != content_hash

    @property
    def transform(self) -> Transform:
        """A torchvision v2 transform that makes the model's input, for a Dataset or a v2.Compose.

        PIL images of any mode and orientation become the model's input float32 (C, H, W), just as
        their files do by `read_images` and `normalize`; uint8 tensors (..., 3, h, w) or
        (..., 1, h, w) become (..., C, H, W), just as by `inputs`.
        """
        # torchvision's transforms take seconds to import
        from vit.transform import ModelTransform

        return ModelTransform(self)


# ---- Its classes ---------------------------------------------------------------------------------


def class_key(name: str) -> str:
    """Return a name as it is stored and compared, however the system encodes it."""
    # file names are UTF-8, even where the locale decodes their bytes otherwise
    with suppress(UnicodeError):
        name = os.fsencode(name).decode()
    # an accent is a character of its own, or part of a letter
    return unicodedata.normalize("NFC", name)


def match_classes(names: Sequence[str], class_names: Sequence[str]) -> list[int] | None:
    """Return for each of `class_names` its number among `names`, in whatever order they are.

    Numbers as names are compared as numbers, because as text 10 comes before 2.

    Args:
        names: of a model's classes; empty if they have none: then their numbers, from 0, are
            theirs.
        class_names: of a data set's classes.

    Returns:
        None if they are not the same classes, or two have the same name.
    """
    ours: list[str] | list[int] = [class_key(name) for name in names]
    theirs: list[str] | list[int] = [class_key(name) for name in class_names]
    if ours == theirs:
        return list(range(len(ours)))

    # as numbers
    if all(name.isdecimal() and len(name) < 19 for name in (*names, *class_names)):
        ours = [int(name) for name in names] or list(range(len(class_names)))
        theirs = [int(name) for name in class_names]

    # each is there once
    if len(set(ours)) < len(ours) or sorted(ours) != sorted(theirs):
        return None
    number_of = {name: number for number, name in enumerate(ours)}
    return [number_of[name] for name in theirs]
