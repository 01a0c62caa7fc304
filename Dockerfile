# ncuflow on NVIDIA's CUDA image: nvcc, ncu and nsys are in it, torch and FlashInfer come with the extra `capture`.
#   docker build -t ncuflow .
#   docker run --rm --gpus all --cap-add=SYS_ADMIN -v "$PWD/outputs:/ncuflow/outputs" -v ncuflow-jit:/root/.cache ncuflow -j4 all
# SYS_ADMIN is for the counters where the driver keeps them to administrators; without it there are times and traces.
# By a tag, which its owner may move: --build-arg IMAGE=nvidia/cuda@sha256:… takes the one that you have looked at.
ARG IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04
FROM ${IMAGE}

RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv python3-dev g++ git cuda-nsight-compute-13-0 cuda-nsight-systems-13-0 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /ncuflow
COPY . .
RUN python3 -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --require-hashes -r requirements-hashes.lock \
    && /venv/bin/pip install --no-cache-dir -c requirements.lock '.[capture]'
ENV PATH=/venv/bin:$PATH CUDA_HOME=/usr/local/cuda

ENTRYPOINT ["snakemake"]
CMD ["-j1", "environment"]
