# ncuflow on NVIDIA's CUDA image: nvcc, ncu and nsys are in it, torch and FlashInfer come with the extra `capture`.
#   docker build -t ncuflow .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" ncuflow explain report.ncu-rep
# By a tag, which its owner may move: --build-arg IMAGE=nvidia/cuda@sha256:… takes the one that you have looked at.
ARG IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04
FROM ${IMAGE}

RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv python3-dev g++ git cuda-nsight-compute-13-0 cuda-nsight-systems-13-0 \
    && rm -rf /var/lib/apt/lists/*

# The dependencies before the tree: what is edited in the project does not download them again.
WORKDIR /ncuflow
COPY requirements.lock requirements-hashes.lock pyproject.toml ./
RUN python3 -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --require-hashes -r requirements-hashes.lock \
    && /venv/bin/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; o = p['optional-dependencies']; print(*[d for d in p['dependencies'] + o['pipeline'] + o['capture'] + o['mcp'] if not d.startswith('ncuflow')], sep='\n')" >/tmp/needs \
    && /venv/bin/pip install --no-cache-dir -c requirements.lock -r /tmp/needs

COPY . .
# Whoever runs it may write its outputs, caches of modules among them.
RUN /venv/bin/pip install --no-cache-dir --no-deps . \
    && mkdir -p -m 1777 /work /home/any outputs .snakemake && chmod 1777 .
ENV PATH=/venv/bin:$PATH CUDA_HOME=/usr/local/cuda HOME=/home/any
WORKDIR /work

ENTRYPOINT ["ncuflow"]
CMD ["--help"]
