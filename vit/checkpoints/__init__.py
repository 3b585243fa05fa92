"""Any pretrained vision transformer in, one model out; and out again, for others to load."""

from vit.checkpoints.convert import convert_model
from vit.checkpoints.loading import load_model, load_trained
from vit.checkpoints.native import save_model
from vit.checkpoints.origin import Origin, Report
from vit.checkpoints.reading import CheckpointError

__all__ = ["CheckpointError", "Origin", "Report", "convert_model", "load_model", "load_trained", "save_model"]
