"""What a process can say of itself: the date, and the versions of what is installed; nothing slow is imported."""

import importlib.metadata
import importlib.util
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path


def now() -> str:
    """The date as it is written everywhere: UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def package_version(*names: str) -> str | None:
    """Version of the first installed distribution of these names."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def remedy(module: str) -> str:
    """The command that installs a module that is missing: the packages of the smallest extra of ours which brings it."""
    name = module.partition(".")[0].replace("_", "-")
    try:
        asked = importlib.metadata.requires("ncuflow") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        asked = []
    extras: dict[str, list[str]] = {}
    for one in asked:
        wanted, _, condition = one.partition(";")
        if found := re.search(r'extra == "(\w+)"', condition):
            extras.setdefault(found[1], []).append(wanted.strip())
    brings = re.compile(rf"{re.escape(name)}(-python)?(?![\w.-])")
    fitting = (some for some in extras.values() if any(map(brings.match, some)))
    packages = min(fitting, key=len, default=[name])
    ours = [one for one in packages if not one.startswith("ncuflow[")]
    return f"pip install {shlex.join(ours)}"


def cutlass_dsl() -> str | None:
    """Version of the CuTe DSL, with which FlashInfer takes other kernels; None where its module is not found."""
    return package_version("nvidia-cutlass-dsl") if importlib.util.find_spec("cutlass") else None


def flashinfer_version() -> str | None:
    """Version of the FlashInfer that would be imported: of its distribution, else, of a source tree, what its folder says."""
    known = package_version("flashinfer-python", "flashinfer")
    folder = package_folder("flashinfer")
    return built_version(folder) if known is None and folder is not None else known


def built_version(folder: Path) -> str | None:
    """The version in a FlashInfer package's own metadata of its build."""
    meta = folder / "_build_meta.py"
    text = meta.read_text("utf-8") if meta.exists() else ""
    match = re.search(r"__version__\s*=\s*[\"']([^\"']+)", text)
    return match.group(1) if match else None


def package_folder(name: str) -> Path | None:
    """Folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def torch_cuda() -> str | None:
    """CUDA version that torch was built for, without importing torch (which takes seconds)."""
    folder = package_folder("torch")
    path = None if folder is None else folder / "version.py"
    if path is None or not path.exists():
        return None
    match = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", path.read_text("utf-8"), re.MULTILINE)
    return match.group(1) if match else None
