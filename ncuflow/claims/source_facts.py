"""Source facts: what the index of the installed FlashInfer says of names, files and signatures.

Each question answers None (unknown) where the index does not hold what it would take to know. The
index is ``source_index.json`` of ``ncuflow.source.index``; ``signatures`` and ``exports`` are
optional.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

HEADERS = "data/include/flashinfer/"


class SourceFacts:
    """Questions to a source index, which a claim decided over the source may ask."""

    def __init__(self, index: Mapping[str, Any]) -> None:
        self.index = index

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The calls by the name that claims use."""
        return {
            "header_defines": self.header_defines,
            "api_file": self.api_file,
            "reads_variable": self.reads_variable,
            "read_at": self.read_at,
            "exports": self.exports,
            "accepts": self.accepts,
            "requires": self.requires,
            "default": self.default,
            "position": self.position,
        }

    def header_defines(self, name: str, header: str | None = None) -> bool | None:
        """Whether a function of this name is defined in that CUDA header, or in any of
        FlashInfer's.

        header: below include/flashinfer, e.g. ``attention/variants.cuh``.
        """
        headers: dict[str, list[list[Any]]] = self.index.get("functions") or {}
        if header is not None:
            headers = {path: found for path, found in headers.items() if path == HEADERS + header}
        if not headers:
            return None
        return any(name == function[2] for found in headers.values() for function in found)

    def api_file(self, target: str, role: str) -> str | None:
        """The file of a target's API symbol (roles: python, jit, …), below the package's folder."""
        symbol = self.index.get("targets", {}).get(target, {}).get("api", {}).get(role)
        return str(symbol["file"]) if symbol else None

    def reads_variable(self, name: str) -> bool | None:
        """Whether the package reads this environment variable; unknown where no Python module does.

        The index holds what Python modules read, and not every name of those; C++ and CUDA sources read more.
        """
        return True if name in (self.index.get("environment") or {}) else None

    def read_at(self, name: str) -> str | None:
        """Where the package reads this environment variable first: file below the package's folder, and line."""
        places = (self.index.get("environment") or {}).get(name)
        return f"{places[0]['file']}:{places[0]['line']}" if places else None

    def exports(self, name: str) -> bool | None:
        """Whether ``import flashinfer`` has this name."""
        names = self.index.get("exports")
        return None if names is None else name in names

    def accepts(self, function: str, parameter: str) -> bool | None:
        """Whether a call may pass this parameter by name; unknown where ``**kwargs`` takes the
        rest.
        """
        parameters = self._parameters(function)
        if parameters is None:
            return None
        if any(p["name"] == parameter for p in parameters):
            return True
        return None if any(p["kind"] == "var_keyword" for p in parameters) else False

    def requires(self, function: str, parameter: str) -> bool | None:
        """Whether a call without this parameter is a TypeError."""
        parameters = self._parameters(function)
        if parameters is None:
            return None
        return any(
            p["name"] == parameter and p.get("default") is None and not p["kind"].startswith("var_")
            for p in parameters
        )

    def default(self, function: str, parameter: str) -> str | None:
        """The default of a parameter as it is written in the source."""
        for found in self._parameters(function) or ():
            if found["name"] == parameter:
                return found.get("default")
        return None

    def position(self, function: str, parameter: str) -> int | None:
        """The slot of a parameter that can be passed by position, from 0."""
        positional = [p for p in self._parameters(function) or () if p["kind"] == "positional"]
        names = [p["name"] for p in positional]
        return names.index(parameter) if parameter in names else None

    def _parameters(self, function: str) -> list[dict[str, Any]] | None:
        """Of each: name, kind (positional, keyword, var_positional, var_keyword), default as text."""
        signatures = self.index.get("signatures") or {}
        return signatures.get(function)
