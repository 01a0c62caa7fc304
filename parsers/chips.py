"""Chips as ncu names them, and the GPUs that have them: whose counters the registry has names for.

Apart from the registry, since a capture that asks for a chip reads nothing of what a metric is called on a page.
"""

from typing import NamedTuple

ANY = "*"  # in the place of a chip: all of them


class ChipGpus(NamedTuple):
    """A chip as ncu's --chips names it: GPUs that have it, and their compute capability."""

    products: str
    capabilities: tuple[str, ...]


# As NVIDIA's list of GPUs has them, in the order of time. Where several chips are of one capability, the library has the
# same names for all, but that of those of 7.5 two have no tensor cores. No target runs on TU102: it is read only.
CHIPS = {
    "tu102": ChipGpus("T4, RTX 20", ("7.5",)),
    "ga100": ChipGpus("A100, A30", ("8.0",)),
    "ga102": ChipGpus("A10, A40, RTX 30", ("8.6",)),
    "ga10b": ChipGpus("Jetson Orin", ("8.7",)),
    "ad102": ChipGpus("L4, L40S, RTX 40", ("8.9",)),
    "gh100": ChipGpus("H100, H200, GH200", ("9.0",)),
    "gb100": ChipGpus("B200, GB200", ("10.0",)),
    "gb110": ChipGpus("B300, GB300", ("10.3",)),
    "gb10b": ChipGpus("Jetson Thor", ("11.0", "10.1")),  # the first since CUDA 13
    "gb202": ChipGpus("RTX PRO Blackwell, RTX 50", ("12.0",)),
    "gb20b": ChipGpus("GB10 (DGX Spark)", ("12.1",)),
}
_OF = {capability: name for name, chip in CHIPS.items() for capability in chip.capabilities}


def chip_of(capability: str | None) -> str:
    """The chip whose names the GPUs of a compute capability ("9.0") have; ANY, the names that all chips have, where
    none is known."""
    return _OF.get(capability or "", ANY)


def unknown(capability: str | None) -> str | None:
    """What to know of the numbers of a GPU whose chip is not in the registry; None where it is."""
    if chip_of(capability) != ANY:
        return None
    which = (
        f"a chip of compute capability {capability}" if capability else "a chip that is not named"
    )
    return (
        f"ncuflow's registry lacks the counters of {which}: read are those that other chips have too, tensor work is"
        " not (`ncu --query-metrics --chips CHIP` lists a chip's own)"
    )
