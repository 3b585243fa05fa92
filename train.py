"""Pretrain a vision transformer by masked patch reconstruction, or train a classifier.

    python train.py                                            # configs/quickstart.yaml
    python train.py --config configs/cifar10_tiny_p4.yaml
    python train.py --config configs/folder.yaml --data my_images --out runs/mine
    python train.py --config configs/cifar10_tiny_p4.yaml --resume
    python train.py --config configs/finetune_cifar10_tiny_p4.yaml --model.init runs/cifar10_tiny_p4
    torchrun --standalone --nproc-per-node 2 train.py --config configs/cifar10_tiny_p4.yaml

The run itself is in vit/train.py.
"""

from vit.training.process import end, leave_signals_to_the_system, open_closed_streams

if __name__ == "__main__":
    open_closed_streams()
    leave_signals_to_the_system()
    from vit.cli import train_main  # only now, because this import takes a while

    end(train_main())
