"""When a program begins to use CUDA: when its modules stand, and before it holds the GPU."""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_device import Device, fake_target, made, points_file

from ncuflow.cli import dispatch
from ncuflow.gpu import lock, nvml
from ncuflow.run import builds, gpu
from ncuflow.run import launch as running


def begins(device: Any = None) -> Any:
    raise AssertionError("CUDA began")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A torch that fails where it is asked what the GPU can."""
    found: Any = ModuleType("torch")
    found.__spec__ = ModuleSpec("torch", None)
    found.cuda = SimpleNamespace(
        is_available=lambda: True,
        get_device_capability=begins,
        synchronize=begins,
    )
    monkeypatch.setitem(sys.modules, "torch", found)
    monkeypatch.delenv(gpu.BY_NVML, raising=False)
    return found


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        (["9.0"], (9, 0)),
        (["8.0"], (8, 0)),
        (["12.0"], (12, 0)),
        (["8.0", "9.0"], None),
        ([], None),
    ],
)
def test_nvml_answers_what_torch_is_asked_of_the_gpu(
    torch: Any, monkeypatch: pytest.MonkeyPatch, gpus: list[str], told: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(nvml, "capabilities", lambda: gpus)
    with gpu.cuda_not_begun():
        assert os.environ.get(gpu.BY_NVML) == (told and "1")
        if told is None:
            assert torch.cuda.get_device_capability is begins
        else:
            assert torch.cuda.get_device_capability() == told
            assert torch.cuda.get_device_capability(0) == told
    assert torch.cuda.get_device_capability is begins
    assert gpu.BY_NVML not in os.environ


def test_afterwards_torch_asks_as_before_also_after_an_error(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "capabilities", lambda: ["9.0"])
    monkeypatch.setenv(gpu.BY_NVML, "0")
    with pytest.raises(ImportError), gpu.cuda_not_begun():
        raise ImportError
    assert torch.cuda.get_device_capability is begins and os.environ[gpu.BY_NVML] == "0"


def test_without_torch_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(nvml, "capabilities", lambda: ["9.0"])
    with gpu.cuda_not_begun():
        assert gpu.BY_NVML not in os.environ
    gpu.begin_cuda()


def test_a_context_that_cannot_be_made_yet_is_no_error(torch: Any) -> None:
    """On a GPU that takes one program alone it is made when the GPU is held."""
    asked = []

    def busy() -> None:
        asked.append(True)
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    torch.cuda.synchronize = busy
    gpu.begin_cuda()
    assert asked


@pytest.mark.parametrize("compiles", [True, False])
def test_cuda_begins_when_modules_stand_and_before_the_gpu_is_held(
    torch: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    compiles: bool,
) -> None:
    """Where nobody compiles the driver makes the context while the libraries load."""
    monkeypatch.setattr(nvml, "capabilities", lambda: ["9.0"])
    monkeypatch.setenv("NCUFLOW_LOCK_DIR", str(tmp_path / "locks"))
    place = tmp_path / "gpu.lock"
    monkeypatch.setenv(lock.WAIT, str(place))
    device, order = Device(), []

    def notes(what: str) -> None:
        with place.open("a") as own:
            try:
                fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                what += ", the GPU held"
        told = torch.cuda.get_device_capability is not begins
        order.append(what + ", by NVML" * told + ", nothing collected" * (not gc.isenabled()))

    def noted(what: str, answer: Any = None) -> Callable[..., Any]:
        return lambda *given, **more: (notes(what), answer)[1]

    monkeypatch.setattr(running, "build_begun", noted("a build begins"))
    imports = importlib.import_module
    asked = noted("FlashInfer is imported")
    monkeypatch.setattr(
        gpu.importlib, "import_module", lambda n: asked() if n == "flashinfer" else imports(n)
    )
    monkeypatch.setattr(gpu, "begin_context", noted("its context begins"))
    monkeypatch.setattr(builds.WaitForBuild, "begin", noted("modules stand"))
    torch.cuda.synchronize = noted("CUDA begins")
    monkeypatch.setattr(gpu, "Gpu", noted("it measures", device))
    monkeypatch.setattr(running, "load", lambda name: fake_target(device))
    monkeypatch.setattr(builds, "CompilerWatch", lambda: SimpleNamespace(started=0))
    path, out = points_file(tmp_path, [point.as_dict() for point in made(1)]), tmp_path / "o.jsonl"
    words = ["launch", "fake", "--mode", "trace", "--points", str(path), "--out", str(out)]
    frozen = gc.get_freeze_count()
    with ExitStack() as build:
        if compiles:
            builds._compiling(build)
        assert dispatch(words) == 0
    assert order == [
        "a build begins",
        *(() if compiles else ("its context begins",)),
        "FlashInfer is imported, by NVML, nothing collected",
        "modules stand, by NVML",
        "CUDA begins",
        "it measures, the GPU held",
    ]
    said = [lock.WAITS, lock.STARTS, lock.WAITS, lock.BEGINS]
    assert [line for line in capsys.readouterr().err.splitlines() if line in said] == said
    assert gc.get_freeze_count() > frozen  # what it imported is not looked through again


FIRST = 70  # the handle of the first visible device, at a driver of tests


class Driver:
    """A driver that notes of which device a context was made, and answers `refused` with an error."""

    def __init__(self, refused: str = "") -> None:
        self.refused, self.begun, self.contexts = refused, False, list[int]()

    def cuInit(self, flags: int) -> int:  # noqa: N802
        self.begun = self.refused != "cuInit"
        return int(not self.begun)

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        assert self.begun
        device._obj.value = FIRST + ordinal
        return int(self.refused == "cuDeviceGet")

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        self.contexts.append(device.value)
        return int(self.refused == "cuDevicePrimaryCtxRetain")


@pytest.mark.parametrize(
    ("refused", "contexts"),
    [("", [FIRST]), ("cuInit", []), ("cuDeviceGet", []), ("cuDevicePrimaryCtxRetain", [FIRST])],
)
def test_the_driver_makes_the_first_devices_context_aside(
    monkeypatch: pytest.MonkeyPatch, refused: str, contexts: list[int]
) -> None:
    """Its modules are loaded as lazily as torch has them."""
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    opened, goes_on, driver = [], threading.Event(), Driver(refused)

    def found(name: str) -> Driver:
        assert goes_on.wait(60)
        opened.append((name, os.environ.get("CUDA_MODULE_LOADING")))
        return driver

    monkeypatch.setattr(gpu.ctypes, "CDLL", found)
    before = threading.enumerate()
    gpu.begin_context()
    goes_on.set()
    for thread in set(threading.enumerate()) - set(before):
        thread.join()
    assert opened == [("libcuda.so.1", "LAZY")]
    assert driver.contexts == contexts


@pytest.mark.parametrize("error", [OSError("cannot open shared object file"), AttributeError])
def test_without_a_driver_no_context_is_made(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def missing(name: str) -> None:
        raise error

    monkeypatch.setattr(gpu.ctypes, "CDLL", missing)
    gpu._retain_context()
