"""Load any pretrained vision transformer as one model, and write it for others to load.

`loading.load_model` goes through `reading` (from a path to tensors), `network` (format and names), `architecture` (read off
the shapes, changed by the options) and `loading.build`. `formats` holds the tables of names, including our own format's.
"""

from vit.checkpoints.convert import convert_model
from vit.checkpoints.loading import load_model, load_trained
from vit.checkpoints.native import save_model
from vit.checkpoints.origin import Origin
from vit.checkpoints.report import Report
from vit.load_options import CheckpointError

__all__ = ["CheckpointError", "Origin", "Report", "convert_model", "load_model", "load_trained", "save_model"]
