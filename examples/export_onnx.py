"""Export a checkpoint's encoder to ONNX, and compare the outputs of both.

    pip install onnx onnxscript onnxruntime
    python examples/export_onnx.py CHECKPOINT model.onnx [--opset 18]

The input `images` is float32 (B, C, H, W) for any B, prepared as in the metadata, each a value in
JSON: image_size; interpolation, crop_share and squash (see `vit.inputs.Preparation`); mean and std
of pixels from 0 to 1. The outputs are `tokens` (B, N, D) and `pooled`: logits (B, classes), whose
names are class_names in the metadata, or, without a head, features (B, D).
"""

import argparse
import json
from pathlib import Path

import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from vit import load_model
from vit.attention import set_kernel


class EncoderWithHead(nn.Module):
    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.encoder(images)
        return tokens, self.encoder.forward_head(tokens)


parser = argparse.ArgumentParser()
parser.add_argument("checkpoint")
parser.add_argument("out")
parser.add_argument("--opset", type=int, default=18, help="of the operators, at least 18")
options = parser.parse_args()
if options.opset < 18:
    parser.error(f"--opset: torch does not write opset {options.opset}; 18 is the oldest")
if Path(options.out).exists():
    parser.error(f"{options.out} exists; remove it, or name another file")

# the model; flash attention is exported as one operation
encoder = load_model(options.checkpoint, part="encoder")
set_kernel(encoder, "flash")
program = EncoderWithHead(encoder).eval()

# export it with two images, because a batch of one would be taken as fixed
shape = (encoder.config.channels, *encoder.config.image_size)
torch.onnx.export(
    program,
    (torch.randn(2, *shape),),
    options.out,
    opset_version=options.opset,
    input_names=["images"],
    output_names=["tokens", "pooled"],
    dynamic_shapes=({0: "batch"},),
    dynamo=True,
    external_data=False,
    verbose=False,
)

# how its input is made, and the names of its classes
origin = encoder.origin
class_names = ()
if encoder.config.num_classes:
    class_names = origin.class_names
metadata = {
    "image_size": origin.image_size,
    "interpolation": origin.interpolation,
    "crop_share": origin.prepared.crop_share,
    "squash": origin.squash,
    "mean": origin.normalize.mean,
    "std": origin.normalize.std,
    "class_names": class_names,
}
written = onnx.load(options.out)
written.ir_version = onnx.helper.find_min_ir_version_for(written.opset_import)
onnx.helper.set_model_props(written, {key: json.dumps(value) for key, value in metadata.items()})
onnx.save(written, options.out)

# compare on a batch of another size
images = torch.randn(3, *shape)
outputs = onnxruntime.InferenceSession(options.out).run(None, {"images": images.numpy()})
with torch.no_grad():
    expected = program(images)
difference = 0.0
for theirs, ours in zip(outputs, expected, strict=True):
    difference = max(difference, abs(theirs - ours.numpy()).max())
print(f"{options.out}: differs from the model by at most {difference:.1e}")
