"""Looks inside a model without changing it: what attention looks at, how far, how spread, and what it is good for."""

from vit.interpret.capture import AttentionMaps, GridMaps, to_grid
from vit.interpret.dynamics import Dynamics, DynamicsError, Matrix, read_dynamics
from vit.interpret.geometry import Geometry, geometry_of
from vit.interpret.layers import AttentionError, attention_layers
from vit.interpret.measures import (
    attention_distance,
    attention_entropy,
    attention_rollout,
    head_ablation,
    relevance,
    top_mass_mask,
)
from vit.interpret.recorder import DynamicsRecorder
from vit.interpret.statistics import AttentionStatistics, attention_statistics

__all__ = [
    "AttentionError",
    "AttentionMaps",
    "AttentionStatistics",
    "Dynamics",
    "DynamicsError",
    "DynamicsRecorder",
    "Geometry",
    "GridMaps",
    "Matrix",
    "attention_distance",
    "attention_entropy",
    "attention_layers",
    "attention_rollout",
    "attention_statistics",
    "geometry_of",
    "head_ablation",
    "read_dynamics",
    "relevance",
    "to_grid",
    "top_mass_mask",
]
