"""The installed FlashInfer: its Python API, CUDA headers and symbols."""
