"""One folder in, one model out: model.safetensors and config.json, without the training code."""

from vit.checkpoints.native import LoadedModel, load_model, save_model

__all__ = ["LoadedModel", "load_model", "save_model"]
