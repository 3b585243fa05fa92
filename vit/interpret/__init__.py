"""Look inside a model without changing it: what its attention looks at, how far, how evenly, and what depends on it."""

from vit.interpret.capture import AttentionMaps, GridMaps, in_grid_order, to_grid
from vit.interpret.geometry import Geometry, geometry_of
from vit.interpret.inputs import ModelWithImages, with_data, with_files
from vit.interpret.layers import AttentionError, attention_layers
from vit.interpret.measures import (
    attention_distance,
    attention_entropy,
    attention_rollout,
    head_ablation,
    relevance,
    top_mass_mask,
)
from vit.interpret.panels import Panels, class_relevance, head_panels, reconstruction_relevance, rollout_panels
from vit.interpret.statistics import AttentionStatistics, attention_statistics

__all__ = [
    "AttentionError",
    "AttentionMaps",
    "AttentionStatistics",
    "Geometry",
    "GridMaps",
    "ModelWithImages",
    "Panels",
    "attention_distance",
    "attention_entropy",
    "attention_layers",
    "attention_rollout",
    "attention_statistics",
    "class_relevance",
    "geometry_of",
    "head_ablation",
    "head_panels",
    "in_grid_order",
    "reconstruction_relevance",
    "relevance",
    "rollout_panels",
    "to_grid",
    "top_mass_mask",
    "with_data",
    "with_files",
]
