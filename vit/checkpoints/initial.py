"""Load the checkpoint that `model.init` names, for a run to begin with."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from vit.checkpoints.loading import assign_weights, find, read_network
from vit.config import OBJECTIVES, Config, changed
from vit.load_options import LoadOptions
from vit.mae import Model
from vit.training.initial import follow


def load_initial(config: Config, given: Collection[str] | None) -> tuple[Config, Model, list[str]]:
    """Load the checkpoint `config.model.init`, at the size that the settings say.

    Args:
        config: all settings.
        given: keys of the settings given explicitly; all others follow the checkpoint. None:
            all are given, as those of a run that is resumed.

    Returns:
        The settings that describe the model, the model, and notes on what follows and what is
        resized.

    Raises:
        CheckpointError: it cannot be read.
        ConfigError: as `vit.training.initial.follow`.
    """
    # what the checkpoint is; settings that are not given follow it. A bare file of weights does not
    # say its number of heads: if the settings do, it need not be guessed
    source = find(config.model.init)
    stated = LoadOptions()
    if given is not None and "model.num_heads" in given:
        stated = LoadOptions(num_heads=config.model.dimensions["num_heads"])
    network = read_network(source, stated)
    notes: list[str] = []
    if given is not None:
        config, notes = follow(config, given, network.encoder, network.decoder)

    # the size that the settings say, and a decoder only if the objective may take it over
    options = LoadOptions(
        image_size=config.model.image_size_2d, patch_size=config.model.patch_size_2d
    )
    if OBJECTIVES[config.train.objective].labels:
        options = changed(options, {"part": "encoder"})

    if "num_heads" not in network.hints.encoder and not network.encoder.qk_norm:
        options = changed(options, {"num_heads": config.model.dimensions["num_heads"]})

    # load it; that a decoder or head is new needs no warning in training
    with warnings.catch_warnings(action="ignore"):
        model = assign_weights(read_network(source, options))
    return config, model, notes
