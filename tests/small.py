"""Small models, ours and those of other libraries, that tests of checkpoints save, load and compare."""

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
import timm
import tiny
import torch
import transformers as hf
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from tiny import M, randomize
from torch import Tensor, nn

from vit.checkpoints import load_model
from vit.checkpoints.formats.self_supervised import DECODER
from vit.checkpoints.formats.timm import ENCODER
from vit.checkpoints.names import map_out
from vit.config import DecoderConfig
from vit.errors import CheckpointError
from vit.mae import MaskedAutoencoder, Model

SIZES = dict(image_size=(16, 16), patch_size=(4, 4), embed_dim=32, depth=2, num_heads=4)
TIMM = dict(img_size=(16, 16), patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5)
HUGGINGFACE = dict(
    image_size=16,
    patch_size=4,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
)


def random_model(model: M) -> M:
    """`model` with random weights, which do not learn."""
    return randomize(model).eval().requires_grad_(False)


def autoencoder(
    norm_pix_loss: bool = True, depth: int = 1, **settings: object
) -> MaskedAutoencoder:
    """One of ours, with a decoder of `depth` blocks."""
    decoder = DecoderConfig(dim=24, depth=depth, num_heads=3)
    return tiny.autoencoder(norm_pix_loss, decoder, **SIZES | settings)


def timm_model(**settings: object) -> TimmVisionTransformer:
    return random_model(TimmVisionTransformer(**TIMM | settings))


def timm_state(**settings: object) -> dict[str, Tensor]:
    return timm_model(**settings).state_dict()


def timm_folder(
    folder: Path, name: str = "vit_tiny_patch16_224", **sizes: object
) -> TimmVisionTransformer:
    """One of timm's models, which timm writes into a folder."""
    model = random_model(timm.create_model(name, pretrained=False, **sizes))
    timm.models.save_for_hf(model, folder, model_args=sizes, safe_serialization=True)
    return model


def transformers_model(
    kind: type[hf.PreTrainedModel] = hf.ViTModel, **settings: object
) -> hf.PreTrainedModel:
    return kind(kind.config_class(**HUGGINGFACE | settings)).eval()


def mae_state(model: MaskedAutoencoder) -> dict[str, Tensor]:
    """The tensors of one of ours under the names of facebookresearch/mae."""
    state = {name.removeprefix("encoder."): value for name, value in model.state_dict().items()}
    tensors, unmapped = map_out((*ENCODER, *DECODER), state, model.encoder.config.channels)
    assert not unmapped
    return tensors


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def renamed(state: Mapping[str, Tensor], table: str) -> dict[str, Tensor]:
    """Tensors under other names: each row has a regular expression and what takes its place."""
    result = {}
    for name, value in state.items():
        for row in filter(str.strip, table.splitlines()):
            old, *new = row.split()
            name = re.sub(old, "".join(new), name)
        result[name] = value
    return result


def change(folder: Path, within: str = "", without: str = "", **settings: object) -> None:
    """Change config.json, or the part of it called `within`; leave `without` out."""
    config = json.loads((folder / "config.json").read_text())
    config.pop(without, None)
    (config[within] if within else config).update(settings)
    (folder / "config.json").write_text(json.dumps(config))


def refused(source: object, **asked: object) -> str:
    """The one line by which `load_model` refuses."""
    with pytest.raises(CheckpointError) as error:
        load_model(source, **asked)
    assert error.value.exit_code == 2
    return str(error.value)


def warned(source: object, **asked: object) -> str:
    """What `load_model` warns of."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        load_model(source, **asked)
    # a collector of garbage may warn within the block, of what other tests left open
    ours = [warning for warning in caught if warning.category is UserWarning]
    return " ".join(str(warning.message) for warning in ours)


def close(ours: Tensor, theirs: Tensor, within: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=within)


@torch.no_grad()
def agree(ours: Model, theirs: nn.Module) -> None:
    """Tokens and answers of both are close, if `theirs`, of any library, gives them."""
    encoder = ours.encoder
    images = torch.randn(2, encoder.config.channels, *encoder.config.image_size)
    tokens = encoder(images)
    answer = theirs(images)
    if hasattr(answer, "last_hidden_state"):
        close(tokens, answer.last_hidden_state)
    else:
        close(encoder.forward_head(tokens), getattr(answer, "logits", answer))
    if hasattr(theirs, "forward_features"):
        close(tokens, theirs.forward_features(images))
