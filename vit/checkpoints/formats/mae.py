"""facebookresearch/mae: pretrained models with their decoder, and fine-tuned classifiers."""

from __future__ import annotations

from dataclasses import replace

from vit.checkpoints.formats.format import Format, Hints, only_given, pair
from vit.checkpoints.formats.outgoing import Outgoing
from vit.checkpoints.formats.timm import ANCHOR, BATCHES, BLOCK, ENCODER, LINEAR_PROBE, TIMM_EPS
from vit.checkpoints.names import table, within
from vit.checkpoints.origin import Origin
from vit.checkpoints.reading import Source
from vit.mae import Model

DECODER = (
    *table("""
        decoder.mask_token      mask_token
        decoder.pos_embed       decoder_pos_embed
        decoder.embed.@         decoder_embed.@
        decoder.norm.@          decoder_norm.@
        decoder.pred.@          decoder_pred.@      (pixels)
    """),
    *within(BLOCK, "decoder.blocks.#.", "decoder_blocks.#."),
)


def mae_hints(source: Source) -> Hints:
    """Read the saved command line, `args`."""
    args = {key.removeprefix("args."): value for key, value in source.other.items() if key.startswith("args.")}
    norm_pix = args.get("norm_pix_loss")
    # files from `to_mae` state the heads; MAE's own leave them to the model's name
    encoder = only_given({"image_size": pair(args.get("input_size")), "num_heads": args.get("num_heads")})
    decoder = only_given({"num_heads": args.get("decoder_num_heads")})
    return Hints(encoder, decoder, norm_pix_loss=norm_pix if isinstance(norm_pix, bool) else None)


def fine_tuned_hints(source: Source) -> Hints:
    """Do the same, with the part of an image that its code evaluates: 224 of 256 pixels, but larger images whole."""
    hints = mae_hints(source)
    ours, size = "args.num_heads" in source.other, hints.encoder.get("image_size", (224, 224))
    return replace(hints, crop_share=1.0 if ours or size[0] > 224 else 0.875)


PRETRAINING = Format(
    name="facebookresearch/mae, pretraining",
    anchor=ANCHOR,
    marks=(r"decoder_pred\.weight", r"decoder_embed\.weight", r"args\.norm_pix_loss"),
    rules=(*ENCODER, *DECODER),
    hints=mae_hints,
)

FINE_TUNED = Format(
    name="facebookresearch/mae, fine-tuned",
    anchor=ANCHOR,
    marks=(r"args\.(blr|num_heads)",),  # timm's and DeiT's code has no blr; num_heads: from `to_mae` without a decoder
    rules=(*ENCODER, *LINEAR_PROBE),
    dropped=(BATCHES,),
    hints=fine_tuned_hints,
    global_pool="token",  # unless an fc_norm says otherwise
)


def to_mae(model: Model, origin: Origin) -> Outgoing:
    """Write for facebookresearch/mae: its code's names under "model", and what that code cannot know under "args"."""
    settings, out = model.encoder.config, Outgoing(model, "MAE's code")
    out.require(class_token=True, registers=0, qkv="linear", mlp="gelu", qk_norm=False, layer_scale=None)
    out.require(no_embed_class=False)
    # its models_vit.py has the final norm before taking the class token, or fc_norm after the mean of the patches
    if settings.num_classes and settings.fc_norm != (settings.global_pool == "avg"):
        pooling = f"global_pool {settings.global_pool} {'with' if settings.fc_norm else 'without'} fc_norm"
        raise out.error(f"has no classifier of {pooling}, as this model is")
    if model.decoder is not None:
        decoder = model.decoder.config.blocks(settings)
        if not decoder.qkv_bias:
            raise out.error("gives the decoder's q, k and v a bias, this model has none")
        out.require_alike(decoder)
    out.compare_eps(TIMM_EPS)
    out.rename((*ENCODER, *DECODER))
    out.config = {"num_heads": settings.num_heads, "input_size": list(settings.image_size)}
    if model.decoder is not None:
        out.config |= {"decoder_num_heads": model.decoder.config.num_heads, "norm_pix_loss": model.norm_pix_loss}
    return out
