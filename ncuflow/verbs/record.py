"""Make a recording of an evidence folder: compressed, checked for secrets, with a manifest; or look after one.

    ncuflow record EVIDENCE_DIR [RECORDING_DIR] [--sweep SWEEP] [--name NAME] [--with-modules]
    ncuflow record --verify RECORDING_DIR
    ncuflow record --scrub REPORT.ncu-rep[.xz]|RECORDING_DIR...

Exit status 2, and nothing written, if a file holds something private or a report source files. --scrub masks what reports say
about their machine: a report keeps its length and its numbers, and what knows it by its sha256 is mended with it.
"""

from pathlib import Path

from ncuflow.evidence import location, manifest, recording
from ncuflow.evidence.recording import scrub_recording
from ncuflow.evidence.recording import scrub_report as scrub_report
from ncuflow.io import BadInput, UsageError


def command(
    folder: Path,
    /,
    *folders: Path,
    name: str | None = None,
    sweep: str = location.DEFAULT,
    with_modules: bool = False,
    verify: bool = False,
    scrub: bool = False,
) -> None:
    """Record, verify or scrub. Raises CaptureError for what may not be stored.

    Args:
        folder: EVIDENCE_DIR; with --verify or --scrub what these are of
        folders: RECORDING_DIR (default: recordings/<gpu>/<flashinfer>/<sweep>, as environment.json names them)
        name: name of the recording (default: its path below recordings, joined by dashes)
        sweep: the last folder of where it goes unless RECORDING_DIR is given
        with_modules: keep the compiled modules inside reports of sweeps, which are most of their size
        verify: check the sha256 of a recording's files
        scrub: mask what reports, or those of recordings, say about their machine
    """
    if (verify and scrub) or (len(folders) > 1 - verify and not scrub):
        raise UsageError("give EVIDENCE_DIR [RECORDING_DIR], or --verify RECORDING_DIR")
    if scrub:
        for place in (folder, *folders):
            for path in scrub_recording(place) if place.is_dir() else scrub_report(place):
                print(f"{path}: masked")
    elif verify:
        print(f"{folder}: {recording.verify(folder)} files match; {recording.judge(folder)}")
    else:
        _record(folder, folders[0] if folders else None, sweep, name, with_modules)


def _record(
    evidence: Path, target: Path | None, sweep: str, name: str | None, with_modules: bool
) -> None:
    if not evidence.is_dir():
        raise BadInput(evidence, "no folder of captures")
    if target is None:
        try:
            target = location.recording_folder(manifest.provenance(evidence), sweep)
        except BadInput:
            raise
        except ValueError as error:
            raise UsageError(f"{evidence}: {error}: give RECORDING_DIR") from None
    said = recording.measured(
        evidence, manifest.provenance(evidence), evidence / "environment.json"
    )
    files = recording.record(evidence, target, name or location.name(target), with_modules)["files"]
    size = sum(entry["bytes"] for entry in files.values())
    print(f"{target}: {len(files)} files, {size / 1e6:.1f} MB; verified: {said}")
