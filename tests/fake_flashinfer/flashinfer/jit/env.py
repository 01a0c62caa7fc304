"""Where things lie, as FlashInfer has it: links of the package are resolved."""

import os
from pathlib import Path

_package = Path(__file__).resolve().parents[1]
FLASHINFER_WORKSPACE_DIR = Path(os.environ["FLASHINFER_WORKSPACE_BASE"]) / ".cache/flashinfer/0.0.1"
FLASHINFER_JIT_DIR = FLASHINFER_WORKSPACE_DIR / "cached_ops"
FLASHINFER_GEN_SRC_DIR = FLASHINFER_WORKSPACE_DIR / "generated"
FLASHINFER_INCLUDE_DIR = (_package / "data/include").resolve()
FLASHINFER_AOT_DIR = _package / "data/aot"
