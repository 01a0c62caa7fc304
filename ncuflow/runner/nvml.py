"""NVML: the clocks of a GPU and what holds them back. Where it cannot tell, nothing is known."""

from __future__ import annotations

from typing import Any

IDLE = "gpu_idle"  # the one reason that holds nothing back
# Bits of nvmlClocksEventReason* (nvml.h), which nvidia-smi shows as clocks_throttle_reasons.active.
_REASONS = {
    0x1: IDLE,
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def throttle_reasons(mask: int) -> list[str]:
    """Names of NVML's clock throttle reasons; an unknown bit is kept as a number."""
    return [
        _REASONS.get(1 << bit, f"reason_{1 << bit:#x}")
        for bit in range(mask.bit_length())
        if mask >> bit & 1
    ]


def handle(uuid: str) -> Any:
    """NVML's handle of the GPU with this UUID, CUDA's without "GPU-"; None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:  # not installed, no library, a MIG slice: clocks are then unknown
        return None


def driver_version(gpu: Any) -> str | None:
    """Version of the driver; None without NVML."""
    if gpu is None:
        return None
    import pynvml

    return str(pynvml.nvmlSystemGetDriverVersion())


def clocks(gpu: Any) -> dict[str, Any] | None:
    """{"sm_mhz", "mem_mhz", "throttle": [reasons]}; None if NVML cannot tell."""
    if gpu is None:
        return None
    import pynvml

    try:
        return {
            "sm_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
            "mem_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
            "throttle": throttle(gpu),
        }
    except pynvml.NVMLError:
        return None


def throttle(gpu: Any) -> list[str]:
    """Reasons that hold the clocks back now; none if NVML cannot tell."""
    if gpu is None:
        return []
    import pynvml

    try:
        return throttle_reasons(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
    except pynvml.NVMLError:
        return []
