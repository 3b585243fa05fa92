"""Load any pretrained vision transformer as one model.

`loading.load_model` goes through `reading` (from a path to tensors), `network` (recognise the
format), `rename` (our names for the tensors) and `architecture` (read off the shapes, changed by
the options), and assigns the weights. `formats` holds the tables of names; `convert` writes for
other libraries.
"""

from vit.checkpoints.loading import load_model
from vit.checkpoints.report import Report
from vit.errors import CheckpointError
from vit.weights import save_model

__all__ = ["CheckpointError", "Report", "load_model", "save_model"]
