"""Families that are known, and not computed by this encoder: each is refused by name, with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Name, why, and the ends of keys by which it is known. The first that fits counts: what is special stands first.
FAMILIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Swin, SimMIM's too", "attention in shifted windows, with relative positions",
        (r"layers\.\d+\.blocks\.\d+\.(attention|attn)\..*",),
    ),
    (
        "BEiT, data2vec or SimMIM", "relative positions, and no bias on its keys",
        (r"relative_position_bias_table", r"attn\.q_bias", r"attention\.relative_position_bias\..*"),
    ),
    (
        "DINOv3", "rotary positions",
        (r"rope_embed\..*", r"rope_embeddings\..*", r"storage_tokens", r"embeddings\.patch_embeddings\.weight"),
    ),
    ("EVA", "rotary positions", (r"rope\..*", r"freqs_(cos|sin|cis)", r"inner_attn_ln\.weight", r"attn\.rope\..*")),
    (
        "a vision transformer with relative positions", "positions added to the attention",
        (r"rel_pos_[hw]", r"rel_pos\..*", r"relative_position_index"),
    ),
    (
        "CLIP", "a norm before its blocks, and mostly another activation",
        (r"visual\.(class_embedding|conv1\.weight|trunk\..*)", r"class_embedding", r"pre_layrnorm\.weight",
         r"norm_pre\.weight", r"text_model\..*"),
    ),
    ("SigLIP", "pooling by attention", (r"attn_pool\..*", r"head\.probe")),
    ("a distilled DeiT", "a second class token and head", (r"dist_token", r"head_dist\..*")),
    (
        "a hybrid of convolutions and attention", "a ResNet before its blocks",
        (r"patch_embed\.backbone\..*", r"embeddings\.patch_embeddings\.backbone\..*"),
    ),
    ("CaiT", "talking heads and class attention", (r"blocks_token_only\..*", r"attn\.proj_[lw]\.weight")),
    ("XCiT", "attention between channels", (r"blocks\.\d+\.local_mp\..*", r"cls_attn_blocks\..*")),
    ("Hiera", "windows, and pooling between its stages", (r"pos_embed_(window|spatial)", r"blocks\.\d+\.proj\.weight")),
    ("ConvNeXt", "convolutions, no attention", (r"(dwconv|conv_dw)\.weight", r"downsample_layers\..*")),
    ("ResNet", "convolutions, no attention", (r"layer[1-4]\.\d+\.conv[1-3]\.weight",)),
    ("a language model", "words, not patches", (r"(word_embeddings|embed_tokens|wte|tok_embeddings)\.weight",)),
)  # fmt: skip


def refusal(keys: Iterable[str]) -> str:
    """Which of `FAMILIES` the keys belong to and why it cannot be loaded, as a sentence; "" for none."""
    keys = list(keys)
    for family, why, ends in FAMILIES:
        pattern = re.compile(rf"(.*\.)?({'|'.join(ends)})", re.DOTALL)
        mark = next((key for key in keys if pattern.fullmatch(key)), None)
        if mark is not None:
            return f"this is {family} (it holds {mark}): {why}, which this encoder does not compute"
    return ""
