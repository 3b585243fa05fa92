"""Look inside any vision transformer without changing it.

`AttentionMaps` captures what each token attends to; the measures say how far, how selectively, and
which input a result depends on.
"""

from vit.errors import AttentionError
from vit.interpret.capture import AttentionMaps, GridMaps, in_grid_order, to_grid
from vit.interpret.explanations import Faithfulness, faithfulness, legrad, relevance
from vit.interpret.geometry import Geometry, geometry_of
from vit.interpret.measures import (
    AttentionStatistics,
    attention_distance,
    attention_entropy,
    attention_rollout,
    attention_statistics,
    head_ablation,
    top_mass_mask,
)

__all__ = [
    "AttentionError",
    "AttentionMaps",
    "AttentionStatistics",
    "Faithfulness",
    "Geometry",
    "GridMaps",
    "attention_distance",
    "attention_entropy",
    "attention_rollout",
    "attention_statistics",
    "faithfulness",
    "geometry_of",
    "head_ablation",
    "in_grid_order",
    "legrad",
    "relevance",
    "to_grid",
    "top_mass_mask",
]
