"""What a run of any architecture writes is loaded again, goes on, and computes the same elsewhere."""

import random
from pathlib import Path

import pytest
import timm
import torch
from small import close
from tiny import CLASSIFY, RECONSTRUCT, begin, dataset
from torch import Tensor
from transformers import AutoModel, AutoModelForImageClassification

from vit.checkpoints import load_model
from vit.checkpoints.convert import convert_model
from vit.config import Config, changed, flat_settings
from vit.encoder import VisionTransformer
from vit.errors import CheckpointError, ConfigError
from vit.training.loop import train_steps

pytestmark = pytest.mark.slow
CLOSE = 1e-4  # of float32 activations of order 1, by other orders of summing


def random_config(draw: random.Random) -> Config:
    """Settings that a run can have, of every kind."""
    while True:
        heads, decoder_heads = draw.randint(1, 4), draw.randint(1, 3)
        patch = draw.choice([2, 4, 5, (2, 4)])
        rows, columns = patch if isinstance(patch, tuple) else (patch, patch)
        model = {
            "image_size": (rows * draw.randint(1, 5), columns * draw.randint(2, 5)),
            "patch_size": patch,
            "embed_dim": heads * draw.choice([4, 5, 8, 12]),
            "num_heads": heads,
            "depth": draw.randint(1, 3),
            "mlp_ratio": draw.choice([1.0, 2.7, 8 / 3, 4.0, draw.uniform(0.3, 5)]),
            "class_token": draw.random() < 0.7,
            "registers": draw.choice([0, 0, 1, 4]),
            "pos_embed": draw.choice(["learned", "sincos"]),
            "qkv": draw.choice(["linear", "linear", "identity"]),
            "qkv_bias": draw.random() < 0.7,
            "layer_scale": draw.choice([None, None, 0.1]),
            "drop_path": draw.choice([0.0, 0.2]),
            "global_pool": draw.choice(["avg", "token"]),
            "decoder_dim": decoder_heads * draw.choice([4, 8]),
            "decoder_depth": draw.randint(1, 2),
            "decoder_heads": decoder_heads,
            "freeze": draw.choice([[], ["mlp"], ["patch_embed"]]),
        }
        optim = {
            "name": draw.choice(["adamw", "muon"]),
            "ema": draw.choice([0.0, 0.9]),
            "blr": 0.01,
        }
        settings = {**flat_settings({"model": model, "optim": optim}), "run.threads": 1}
        try:
            return changed(draw.choice([RECONSTRUCT, CLASSIFY]), settings)
        except ConfigError:
            continue  # two of them do not go together, and are refused in one line


@torch.no_grad()
def outputs(model: torch.nn.Module, images: Tensor) -> Tensor:
    """What a model is used for: the logits of a classifier, else the tokens."""
    encoder: VisionTransformer = model.encoder
    tokens = encoder(images)
    return encoder.forward_head(tokens) if encoder.config.num_classes else tokens


@torch.no_grad()
def computed_there(to: str, folder: Path, images: Tensor, classifier: bool) -> Tensor:
    """The same by timm or transformers."""
    if to == "timm":
        theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        return theirs(images) if classifier else theirs.forward_features(images)
    if classifier:
        return AutoModelForImageClassification.from_pretrained(folder).eval()(images).logits
    return AutoModel.from_pretrained(folder).eval()(images).last_hidden_state


@pytest.mark.tries(20)
@pytest.mark.filterwarnings("ignore")  # of transformers, on what a checkpoint leaves new
def test_every_run_loads_goes_on_and_exports_what_it_computes(draw, tmp_path):
    data = dataset(16)
    config = random_config(draw)
    run = begin(config, data=data)
    steps = train_steps(run)
    next(steps)
    run.save(tmp_path / "states")
    run.save_model(tmp_path / "model")
    run.save_model(tmp_path / "half", torch.float16)
    images = torch.randn(2, 3, *config.model.image_size)
    run.result.eval()
    expected = outputs(run.result, images)
    run.model.train()

    # what was written loads, and computes the same
    (state,) = (tmp_path / "states").glob("*.pt")
    for place in (tmp_path / "model", state):
        assert torch.equal(outputs(load_model(place), images), expected)
    load_model(tmp_path / "half")

    # the run goes on as if it had not stopped
    again = begin(config, tmp_path / "states", data)
    assert next(train_steps(again)).loss == next(steps).loss

    # elsewhere, it computes the same, or is refused in one line
    loaded = load_model(tmp_path / "model")
    for to in ("timm", "huggingface"):
        try:
            notes = convert_model(loaded, to, tmp_path / to)
        except CheckpointError:
            continue
        if any("eps" in note for note in notes):
            continue  # it is said that the other code computes with another one
        back = load_model(tmp_path / to)
        headed = back.encoder.config.num_classes > 0
        wanted = expected
        if headed != (loaded.encoder.config.num_classes > 0):
            wanted = loaded.encoder(images).detach()
        found = [outputs(back, images)]
        # ViTMAE hides patches at random by itself
        if to == "timm" or loaded.decoder is None:
            found.append(computed_there(to, tmp_path / to, images, headed))
        for values in found:
            close(values, wanted, CLOSE)
