"""Kernel names: the template arguments of a demangled name, decoded to named parameters; what a kernel does, and whose it is.

A demangled name is what the profiler recorded, so it says what was launched, not what a default
was. The parameters' names are those of the ``template <…>`` lines in FlashInfer's headers, from the
source index of the evidence or, where there is none, from ``templates.yaml`` (``scripts/templates``
makes it); a template that is in neither with that many arguments is decoded by position.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ncuflow.io import read_yaml
from ncuflow.parsers.demangled import CUTE_MANGLED, cute_name, split, without_parameters
from ncuflow.target.contract import Target, known

Templates = Mapping[str, Sequence[Sequence[str]]]  # name -> parameters in order, of each overload
SHIPPED = Path(__file__).with_name("templates.yaml")
WORDS = read_yaml(Path(__file__).with_name("vocabulary.yaml"))
_CAST = re.compile(r"^\((?P<type>[\w:\s]+)\)\s*(?P<value>-?\w+)$")
_MANGLED, _LENGTH = re.compile("_ZN?(?=[1-9])"), re.compile(r"[1-9]\d{0,4}")
SAYING = 4  # characters of a word that tells two names apart, where there is one
LONGEST_NUMBER = 20  # digits; no argument of a template has as many
DEEPEST = 8  # traits classes that are opened within another: those of the headers are two deep
MERGE = "PersistentVariableLengthMergeStates"  # merges what a split over the KV cache left
COMPILED_FOR = "compiled for"  # the one argument of a mangled name: types, layouts and constants, as they were mangled
TRAITS = ("_P", "_D")  # of POD's kernel: the prefill's, and the decodes'


@dataclass(frozen=True)
class Argument:
    """A decoded template argument: parameter (``#3`` where not known), value, meaning or None."""

    parameter: str
    value: str
    meaning: str | None


@dataclass(frozen=True)
class DecodedName:
    """A decoded kernel: name without namespaces, arguments in order, and what follows from them."""

    name: str
    arguments: tuple[Argument, ...]
    derived: tuple[Argument, ...] = ()

    def value(self, parameter: str) -> str | None:
        """The value of a parameter, or None."""
        return next((a.value for a in self.arguments if a.parameter == parameter), None)


class Decoder:
    """Decodes kernel names by the templates of one FlashInfer, else by those of the tested versions.

    own: ``templates`` of that version's source index.
    """

    def __init__(self, own: Templates | None = None) -> None:
        shipped: Templates = read_yaml(SHIPPED)
        self.templates: dict[str, Sequence[Sequence[str]]] = {**shipped}
        self.meanings: dict[str, str] = dict(WORDS["vocabulary"])
        for target in known().values():
            self.templates |= {name: [names] for name, names in target.source.templates.items()}
            self.meanings |= target.source.meanings
        self.templates |= own or {}
        self._decoded: dict[str, DecodedName] = {}

    def decode(self, demangled: str) -> DecodedName:
        """A name without template arguments has none; never raises."""
        if mangled := CUTE_MANGLED.fullmatch(demangled):
            compiled_for = Argument(COMPILED_FOR, mangled["compiled_for"], None)
            return DecodedName(cute_name(demangled), (compiled_for,))
        if demangled not in self._decoded:
            name, arguments = split(without_parameters(demangled))
            short = _short(name)
            decoded = tuple(dict.fromkeys(self._named(short, arguments)))
            self._decoded[demangled] = DecodedName(short, decoded, tuple(_computed(decoded)))
        return self._decoded[demangled]

    def _named(
        self, template: str, arguments: list[str], suffix: str = "", deep: int = 0
    ) -> list[Argument]:
        """Arguments under their parameters' names; traits classes are opened in place.

        Of a kernel of two traits, ``KTraits_P`` and ``KTraits_D``, each name has the suffix of its own.
        """
        overloads = self.templates.get(template, ())
        # another number of arguments is another version's template: names would be shifted
        names = next((names for names in overloads if len(names) == len(arguments)), None)
        out: list[Argument] = []
        for index, text in enumerate(arguments):
            parameter = names[index] if names else f"#{index + 1}"
            inner, nested = split(text)
            if nested and deep < DEEPEST and _short(inner).endswith("KernelTraits"):
                of = parameter.removeprefix("KTraits")
                out += self._named(_short(inner), nested, of if of in TRAITS else "", deep + 1)
            elif not parameter.endswith("Params") and parameter != "CollectiveEpilogue":
                meaning = self.meanings.get(f"{template}.{parameter}", self.meanings.get(parameter))
                out.append(Argument(parameter + suffix, self._value(text, deep), meaning))
        return out

    def _value(self, text: str, deep: int = 0) -> str:
        """An argument as a reader writes it: ``(flashinfer::MaskMode)1`` is ``causal``."""
        cast = _CAST.match(text)
        if cast:
            return _of_cast(cast["type"].strip().split("::")[-1], cast["value"])
        if text in WORDS["types"]:
            return str(WORDS["types"][text])
        name, nested = split(text)
        if deep < DEEPEST and _short(name) == "DefaultAttention":
            flags = self._named("DefaultAttention", nested, deep=deep + 1)
            on = [a.parameter.removeprefix("use_") for a in flags if a.value == "true"]
            return "DefaultAttention" + (f" ({', '.join(on)})" if on else " (all off)")
        return re.sub(r"(?<=\d)[uUlL]+$", "", _short(name))


@cache
def _tested() -> Decoder:
    return Decoder()


def decode(demangled: str) -> DecodedName:
    """Decode a demangled kernel name by the templates of the tested versions."""
    return _tested().decode(demangled)


_WRITTEN = (
    (re.compile(r"\(bool\)0"), "false"),
    (re.compile(r"\(bool\)1"), "true"),
    (re.compile(r"\((?:unsigned )?(?:int|long|short|char)\)(?=-?\d)"), ""),
    (re.compile(r"(?<=\d)[ul]+\b"), ""),
    (re.compile(r"^void "), ""),
    (re.compile(r"(?<!\s)\s+(?=[>*&])"), ""),
)


def canonical(demangled: str) -> str:
    """A kernel's name with template arguments, alike however a tool writes numbers: ``8u``, ``(unsigned int)8``."""
    name = without_parameters(demangled)
    for pattern, text in _WRITTEN:
        name = pattern.sub(text, name)
    return name


def _short(name: str) -> str:
    """``KernelTraits`` of ``void flashinfer::KernelTraits``."""
    return name.split("(")[0].split("::")[-1].split(" ")[-1]


def _number(text: str) -> int | None:
    """An argument as a number; None where it is none, or longer than any that a compiler takes."""
    return int(text) if text.isdecimal() and len(text) < LONGEST_NUMBER else None


def _of_cast(kind: str, value: str) -> str:
    values = WORDS["enums"].get(kind, ())
    if (number := _number(value)) is not None and number < len(values):
        return str(values[number])
    return {"0": "false", "1": "true"}.get(value, value) if kind == "bool" else value


def _computed(arguments: Sequence[Argument]) -> Iterator[Argument]:
    """What the targets' headers compute of these arguments."""
    for suffix in ("", *TRAITS):
        number = {
            a.parameter.removesuffix(suffix): value
            for a in arguments
            if a.parameter.endswith(suffix) and (value := _number(a.value)) is not None
        }
        for target in known().values():
            for name, (meaning, compute) in target.source.computed.items():
                with suppress(KeyError, ArithmeticError):  # of a name that no compiler made
                    yield Argument(name + suffix, str(compute(number)), meaning)


# --- names by public schemes ----------------------------------------------------------------

SAYING = 1 << 11  # characters of a name that says so
_SCHEMES = Path(__file__).with_name("schemes.yaml")
# Types as the schemes write them, and the letters of cuBLAS's.
_TYPES = {
    "E4m3": "fp8", "E5m2": "e5m2", "E2m1": "nvfp4", "MxE4m3": "mxfp8", "MxE2m1": "mxfp4", "Bfloat16": "bf16", "Fp16": "f16",
    "Fp32": "f32", "bfloat16_t": "bf16", "half_t": "f16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16", "__half": "f16",
    "half": "f16", "c10::BFloat16": "bf16", "c10::Half": "f16", "float": "f32",
}  # fmt: skip
_LETTERS = {"h": "f16", "t": "bf16", "s": "f32", "q": "fp8"}
_AXES = ("m", "n", "k")


@cache
def built(demangled: str) -> dict[str, str]:
    """What a name says by a public scheme: types, tile, stages and more, in its order; {} of a name of none."""
    name = canonical(demangled[:SAYING])
    for pattern in _schemes().values():
        if found := pattern.search(name):
            said = {key.strip("_"): value for key, value in found.groupdict().items() if value}
            return _joined({key: _TYPES.get(value, value) for key, value in said.items()})
    return {}


def _joined(said: dict[str, str]) -> dict[str, str]:
    """A tile's sides as one word, and cuBLAS's letters of types as types."""
    for of in ("tile", "cluster"):
        sides = [said.pop(f"{of}_{axis}") for axis in _AXES if f"{of}_{axis}" in said]
        if len(sides) > 1:
            said[of] = "x".join(sides)
    letters = said.pop("types", "")
    if letters and set(letters) <= {*_LETTERS}:
        said |= {"type": _LETTERS[letters[0]], "output": _LETTERS[letters[-1]]}
    return said


@cache
def _schemes() -> dict[str, re.Pattern[str]]:
    return {name: re.compile(text) for name, text in read_yaml(_SCHEMES).items()}


# --- what a kernel does in a step, and whose it is -------------------------------------------

OTHER = "other"
TELLING = 1 << 13  # characters of a name; a search may take the square of what it looks through
COPY, COMMUNICATION, SAMPLING = "copy", "communication", "sampling"
FLASHINFER = "FlashInfer"
_FAMILIES = Path(__file__).with_name("families.yaml")


@cache
def family(name: str) -> str:
    """E.g. "norm"; "other" for a name that no pattern knows."""
    return (
        _first_pattern("families", without_parameters(name))
        or _first_pattern("families", name)
        or OTHER
    )


@cache
def owner(name: str) -> str | None:
    """E.g. "FlashInfer", by its name or because it is a kernel that a target knows; None where the name does not say it."""
    found = _first_pattern("owners", name)
    if found in (None, "CUTLASS") and target_of(name) is not None and "flashinfer" in name.lower():
        return FLASHINFER
    return found


@cache
def target_of(name: str) -> Target | None:
    """The kernel target of a FlashInfer kernel; the first of those that may launch it."""
    return next(iter(targets_of(bare(name))), None)


@cache
def targets_of(short: str) -> list[Target]:
    """The kernel targets whose calls may launch a kernel, by its name without namespaces and arguments."""
    return [
        one
        for one in known().values()
        if not one.generic
        and (
            short
            in (*(k.name for k in one.source.kernels), *one.rules.kernels, *one.rules.finishers)
            or (one.rules.named and re.fullmatch(one.rules.named, short))
        )
    ]


def _last(mangled: str, at: int) -> str:
    """The last of the names that stand one after another, each behind its length: ``kernel`` of ``_ZN2ns6kernelI…``."""
    last = mangled
    while found := _LENGTH.match(mangled, at):
        end = found.end() + int(found[0])
        if end > len(mangled):
            break
        last, at = mangled[found.end() : end], end
    return last


@cache
def bare(name: str) -> str:
    """A kernel's name without what it returns, namespaces, template arguments and parameters."""
    if found := _MANGLED.match(name):
        return _last(name, found.end())
    text = name.replace("(anonymous namespace)", "").replace("<unnamed>", "")
    angles = parentheses = 0
    kept: list[str] = []
    for character in text:
        if character in "()":
            if not angles and "".join(kept).strip():
                break  # its parameters
            parentheses += 1 if character == "(" else -1
        elif character in "<>" and not parentheses:
            angles += 1 if character == "<" else -1
        elif not angles and not parentheses:
            kept.append(character)
    words = "".join(kept).split()
    return (words[-1].split("::")[-1] if words else "") or name


def told_apart(names: Sequence[str], width: int = 24) -> dict[str, str]:
    """Each name without its arguments; of several that begin alike, behind the words that only it has: ``CUDAFunctor_add ·
    vectorized_elementwise_kernel``."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        alike[bare(name)[:width]].append(name)
    out = {name: bare(name) for name in names}
    for group in alike.values():
        words = {name: dict.fromkeys(_words(name)) for name in group}
        count = Counter(word for own in words.values() for word in own)
        for name, own in words.items():
            rare = sorted((word for word in own if count[word] < len(group)), key=count.__getitem__)
            if rare:
                out[name] = f"{' '.join(rare[:2])} · {bare(name)}"
    return out


def _words(name: str) -> list[str]:
    """Of a name with template arguments their words, of any other its own parts; those that say most first."""
    if _MANGLED.match(name):
        return re.findall(r"L[a-z]+(\d+)", name) or [name]
    text = name.replace("(anonymous namespace)", "")
    found = re.findall(r"\w+", text.partition("<")[2]) or bare(name).split("_")
    return sorted(found, key=lambda word: len(word) < SAYING or word[0].isdecimal())


def families() -> list[str]:
    """All that there are, in the order in which they are looked for."""
    return [*_patterns()["families"], OTHER]


def _first_pattern(what: str, name: str) -> str | None:
    name = name[:TELLING]
    return next((key for key, pattern in _patterns()[what].items() if pattern.search(name)), None)


@cache
def _patterns() -> dict[str, dict[str, re.Pattern[str]]]:
    return {
        what: {name: re.compile(text, re.IGNORECASE) for name, text in patterns.items()}
        for what, patterns in read_yaml(_FAMILIES).items()
    }
