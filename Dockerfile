# docker build -t vit .                                          the CPU
# docker build -t vit --build-arg TORCH=cu128 .                  CUDA 12.8; another cuNNN for another version
# With data/ and runs/ in the current folder:
# docker run --rm -v "$PWD:/work" vit train --config folder --data my_images
# docker run --rm -v "$PWD:/work" --gpus all --shm-size 2g vit train --config gpu_cifar10_tiny_p2
FROM python:3.12-slim

# torch.compile, which long runs use on a GPU and in bf16 on a CPU, compiles C and C++
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# torch's wheels bring CUDA with them, so both kinds begin with the same image
ARG TORCH=cpu
RUN pip install --no-cache-dir torch torchvision --index-url https://download.pytorch.org/whl/${TORCH}

COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE /source/
COPY configs /source/configs
COPY vit /source/vit
RUN pip install --no-cache-dir /source && rm -r /source

WORKDIR /work
ENTRYPOINT ["vit"]
CMD ["--help"]
