"""The commonest families that this encoder does not compute.

Each is refused by name, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Name, reason, and the ends of keys that mark the family. The first match counts, so special cases
# come first.
FAMILIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Swin, SimMIM's too", "attention in shifted windows, with relative positions",
        (r"layers\.\d+\.blocks\.\d+\.(attention|attn)\..*",),
    ),
    (
        "BEiT, data2vec or SimMIM", "relative positions, and no bias on its keys",
        (r"relative_position_bias_table", r"attention\.relative_position_bias\..*"),
    ),
    (
        "DINOv3", "rotary positions",
        (
            r"rope_embed\..*", r"rope_embeddings\..*", r"storage_tokens",
            r"embeddings\.patch_embeddings\.weight",
        ),
    ),
    (
        "EVA, or another with rotary positions", "rotary positions, and mostly no bias on its keys",
        (
            r"rope\..*", r"freqs_(cos|sin|cis)", r"attn\.inner_attn_ln\.weight", r"attn\.rope\..*",
            r"mlp\.fc1_g\.weight", r"attn\.q_bias",
        ),
    ),
    (
        "SigLIP, or another that pools by attention", "pooling by attention",
        (r"attn_pool\..*", r"head\.probe"),
    ),
    (
        "CLIP, or another of its kind", "a norm before its blocks, and mostly another activation",
        (
            r"norm_pre\.weight", r"visual\.(class_embedding|conv1\.weight|trunk\..*)",
            r"pre_layrnorm\.weight", r"ln_pre\.weight",
        ),
    ),
)  # fmt: skip

# ends of the keys of files without a network, and what they are
OTHER_FILES = {
    r"lora_[AB]\..*":
        "this is a LoRA adapter, not a model; merge it into its model with peft first",
    r"state\.\d+\.\w+": "this is an optimizer's state; the weights are in another file",
}  # fmt: skip


def refusal(keys: Iterable[str]) -> str:
    """Say which of `FAMILIES` the keys belong to, and why it cannot be loaded; "" for none."""
    keys = list(keys)
    for family, reason, ends in FAMILIES:
        pattern = re.compile(rf"(.*\.)?({'|'.join(ends)})", re.DOTALL)
        for key in keys:
            if pattern.fullmatch(key):
                return (
                    f"this is {family} (it holds {key}): {reason}, "
                    "which this encoder does not compute"
                )
    return ""


def other_file(keys: Iterable[str]) -> str:
    """Say which of `OTHER_FILES` the keys without a network belong to; "" for none."""
    for key in keys:
        for end, description in OTHER_FILES.items():
            if re.fullmatch(rf"(.*\.)?{end}", key, re.DOTALL):
                return description
    return ""
