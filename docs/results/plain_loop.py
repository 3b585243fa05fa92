"""A masked autoencoder of vit-pytorch in a plain loop: one epoch, from a folder of images to a file of weights.

The job of docs/speed.md, as one would write it in an afternoon: torchvision's transforms, a DataLoader, AdamW.

    python docs/results/plain_loop.py cifar10-jpeg/train 10000 plain_loop.pt

A fourth argument, bf16, computes the model in it.
"""

import sys
import time

import torch
import vit_pytorch
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

folder, images, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
bf16 = sys.argv[4:] == ["bf16"]
prepare = transforms.Compose([
    transforms.RandomResizedCrop(32, scale=(0.2, 1.0), interpolation=transforms.InterpolationMode.BICUBIC),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
    transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
])  # fmt: skip
every = ImageFolder(folder, prepare)
dataset = Subset(every, list(range(0, len(every), len(every) // images))[:images])
loader = DataLoader(dataset, batch_size=256, shuffle=True, num_workers=2)
encoder = vit_pytorch.ViT(
    image_size=32,
    patch_size=4,
    num_classes=10,
    dim=192,
    depth=12,
    heads=3,
    mlp_dim=768,
    dim_head=64,
    pool="mean",
)
model = vit_pytorch.MAE(
    encoder=encoder,
    masking_ratio=0.75,
    decoder_dim=192,
    decoder_depth=4,
    decoder_heads=3,
    decoder_dim_head=64,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95), weight_decay=0.05)
begin = time.perf_counter()
for batch, _ in loader:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save(model.state_dict(), out)
print(
    f"{images} images in {time.perf_counter() - begin:.1f} s, loss of the last batch {loss.item():.3f}"
)
