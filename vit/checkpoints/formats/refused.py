"""Known families that this encoder does not compute: each is refused by name, with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Name, reason, and the ends of keys that mark the family; of those in brackets, all must be there. The first match counts, so
# special cases come first.
FAMILIES: tuple[tuple[str, str, tuple[str | tuple[str, ...], ...]], ...] = (
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
        (r"rope_embed\..*", r"rope_embeddings\..*", r"storage_tokens", r"embeddings\.patch_embeddings\.weight",
         ("reg_token", r"mlp\.fc1_g\.weight")),
    ),
    ("AIMv2", "norms without a mean", ((r"patch_embed\.norm\.weight", r"mlp\.fc1_g\.weight"),)),
    (
        "EVA, DINOv3 or another with rotary positions", "rotary positions, and mostly no bias on its keys",
        (r"rope\..*", r"freqs_(cos|sin|cis)", r"attn\.inner_attn_ln\.weight", r"attn\.rope\..*", r"mlp\.fc1_g\.weight",
         r"attn\.q_bias"),
    ),
    (
        "BEiT-3", "norms within attention and MLP",
        ((r"attn\.norm\.weight", r"blocks\.\d+\.mlp\.norm\.weight"), r"inner_attn_ln\.[AB]\.weight"),
    ),
    ("RADIO", "positions cut out of a larger table, and no norm after its blocks", (r"patch_generator\..*",)),
    (
        "a vision transformer with relative positions", "positions added to the attention",
        (r"rel_pos_[hw]", r"rel_pos\..*", r"relative_position_index"),
    ),
    ("a vision transformer of parallel blocks", "attention and MLP side by side",
     (r"blocks\.\d+\.((attns|ffns)\.\d+\..*|(in_norm|mlp_out_proj)\.weight)",)),
    ("a vision transformer with differential attention", "the difference of two attentions", (r"attn\.lambda_[qk]1",)),
    ("PE", "a norm before its blocks, and rotary positions",
     (r"attn_pool\.probe", (r"norm_pre\.weight", r"(attn_pool|blocks\.0)\.(latent|gamma_1)"))),
    ("SigLIP, or another that pools by attention", "pooling by attention", (r"attn_pool\..*", r"head\.probe")),
    (
        "BLIP", "images and text together, under its own names",
        (r"self_attn\.projection\.weight", r"visual_encoder\..*"),
    ),
    ("CLIP or PE", "a norm before its blocks, and mostly another activation", (r"norm_pre\.weight",)),
    (
        "CLIP, or another of its kind", "a norm before its blocks, and mostly another activation",
        (r"visual\.(class_embedding|conv1\.weight|trunk\..*)", r"pre_layrnorm\.weight", r"ln_pre\.weight"),
    ),
    ("a model of images and text", "a text network next to the image one", (r"text_model\..*",)),
    ("a distilled DeiT", "a second class token and head", (r"dist_token", r"head_dist\..*")),
    (
        "a hybrid of convolutions and attention", "a convolutional network before its blocks",
        (r"patch_embed\.backbone\..*", r"embeddings\.patch_embeddings\.backbone\..*"),
    ),
    ("CaiT", "talking heads and class attention", (r"blocks_token_only\..*", r"attn\.proj_[lw]\.weight")),
    ("XCiT", "attention between channels", (r"blocks\.\d+\.local_mp\..*", r"cls_attn_blocks\..*")),
    ("Hiera", "windows, and pooling between its stages", (r"pos_embed_(window|spatial)", r"blocks\.\d+\.proj\.weight")),
    ("ConvNeXt", "convolutions, no attention", (r"(dwconv|conv_dw)\.weight", r"downsample_layers\..*")),
    ("ResNet", "convolutions, no attention", (r"layer[1-4]\.\d+\.conv[1-3]\.weight",)),
    ("ResNet or RegNet", "convolutions, no attention", (r"embedder\.embedder\.convolution\.weight",)),
    ("a language model", "words, not patches", (r"(word_embeddings|embed_tokens|wte|tok_embeddings)\.weight",)),
)  # fmt: skip

# ends of the keys of files without a network, and what they are
OTHER_FILES = {
    r"lora_[AB]\..*": "this is a LoRA adapter, not a model; merge it into its model with peft first",
    r"state\.\d+\.\w+": "this is an optimizer's state; the weights are in another file",
}


def refusal(keys: Iterable[str]) -> str:
    """Say in a sentence which of `FAMILIES` the keys belong to, and why it cannot be loaded; "" for none."""
    keys = list(keys)

    def holding(end: str) -> str | None:
        pattern = re.compile(rf"(.*\.)?({end})", re.DOTALL)
        return next((key for key in keys if pattern.fullmatch(key)), None)

    for family, why, marks in FAMILIES:
        for mark in marks:
            found = [holding(end) for end in ((mark,) if isinstance(mark, str) else mark)]
            if None not in found:
                held = " and ".join(map(str, found))
                return f"this is {family} (it holds {held}): {why}, which this encoder does not compute"
    return ""


def other_file(keys: Iterable[str]) -> str:
    """Say which of `OTHER_FILES` the keys without a network belong to; "" for none."""
    ends = {end: re.compile(rf"(.*\.)?{end}", re.DOTALL) for end in OTHER_FILES}
    return next((OTHER_FILES[end] for key in keys for end in ends if ends[end].fullmatch(key)), "")
