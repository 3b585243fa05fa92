"""Pretrain a vision transformer by masked patch reconstruction, or train a classifier.

    python train.py                                            # configs/quickstart.yaml
    python train.py --config configs/cifar10_tiny_p4.yaml
    python train.py --config configs/folder.yaml --data my_images --out runs/mine
    python train.py --config configs/cifar10_tiny_p4.yaml --resume
    python train.py --config configs/finetune_cifar10_tiny_p4.yaml --model.init runs/cifar10_tiny_p4
    torchrun --standalone --nproc-per-node 2 train.py --config configs/cifar10_tiny_p4.yaml

`--debug` or VIT_DEBUG=1 shows where an error arose. The run itself is in vit/train.py.
"""

from vit.__main__ import run_program

if __name__ == "__main__":
    run_program("train_main")
