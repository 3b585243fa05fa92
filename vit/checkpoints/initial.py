"""Load the checkpoint that `model.init` names, for a run to begin with."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from vit.checkpoints.loading import build, find, read_network
from vit.config import OBJECTIVES, Config
from vit.load_options import LoadOptions
from vit.mae import Model
from vit.training.initial import follow


def load_initial(config: Config, given: Collection[str] | None) -> tuple[Config, Model, list[str]]:
    """Load the checkpoint `config.model.init`, at the size that the settings say.

    Args:
        config: all settings.
        given: keys of the settings given explicitly; all others follow the checkpoint. None: all are given, as those of
            a run that is resumed.

    Returns:
        The settings that describe the model, the model, and notes on what follows and what is resized.

    Raises:
        CheckpointError: it cannot be read.
        ConfigError: as `vit.training.initial.follow`.
    """
    # what it is
    source = find(config.model.init)
    network = read_network(source, LoadOptions(channels=3))
    notes: list[str] = []
    if given is not None:
        config, notes = follow(config, given, network.encoder, network.decoder)

    # as the settings say; a bare file of weights does not state its number of heads, and settings do
    stated = "num_heads" in network.hints.encoder or network.encoder.qk_norm
    options = LoadOptions(
        part="encoder" if OBJECTIVES[config.train.objective].labels else None,
        channels=3,
        image_size=config.model.image_size_2d,
        patch_size=config.model.patch_size_2d,
        num_heads=None if stated else config.model.dimensions["num_heads"],
    )
    with warnings.catch_warnings(action="ignore"):  # about a decoder or head with new weights
        return config, build(read_network(source, options)), notes
