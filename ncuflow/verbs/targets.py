"""What can be measured here: the kernel targets, and FlashInfer's APIs by their trace templates.

    ncuflow targets                                  on this machine
    ncuflow targets --results apis_results.json      with what a capture of the target `apis` came to
    ncuflow targets --gpu B200                       the points of the default sweep on a GPU that need not be here
    ncuflow targets --gpu 12.0 --sweep kernels       by its compute capability, and of another sweep
    ncuflow targets --coverage                       each call that FlashInfer offers, and the target that measures it

Nothing is run: of an API that is "ready", a capture says whether it builds and agrees with its reference. Without
FlashInfer or without a GPU the list says so, and has the rest. With --gpu each point of a sweep is there, planned or left
out with the reason, and before them the backends that FlashInfer has not for every GPU; that needs no GPU and no torch.
Where FlashInfer is installed, its own source says which GPUs it has them for.
"""

from pathlib import Path
from typing import Literal

from ncuflow.io import UsageError
from ncuflow.run import listing
from ncuflow.run.listing import Measurable, TargetsAnswer
from ncuflow.verbs.options import AS_TEXT, Printed


def command(
    *,
    results: Path | None = None,
    gpu: str | None = None,
    sweep: str | None = None,
    coverage: bool = False,
    format: Literal["text", "json", "markdown"] = "text",
    printed: Printed = AS_TEXT,
) -> None:
    """Raises BadInput where --results has no results of the target ``apis``; UsageError for an unknown GPU or sweep.

    Args:
        results: of a capture of such APIs, as JSON
        gpu: plan a sweep for it: a GPU's name, or a compute capability
        sweep: of the settings, with --gpu; default: default
        coverage: FlashInfer's own list of calls instead, by areas, those without a target first
        format: text (the default), json or markdown
    """
    if sweep is not None and gpu is None:
        raise UsageError("--sweep is planned for a GPU: it needs --gpu")
    if coverage and (gpu or results):
        raise UsageError(
            "--coverage is of FlashInfer's source: it takes neither --gpu nor --results"
        )
    if coverage:
        rows, total = listing.coverage()
        ready = sum(row["status"] == "target" for row in rows)
    elif gpu is not None:
        rows, total = listing.planned(gpu, "default" if sweep is None else sweep)
        ready = sum(row["status"] == "planned" for row in rows)
    else:
        facts, why = listing.gpu()
        measured = listing.measured_apis(results) if results else {}
        rows = [*listing.targets(facts, why), *listing.apis(facts, measured)]
        ready = sum(row["status"] in listing.READY for row in rows)
        total = f"{ready} of {len(rows)} can be measured here"
    found = TargetsAnswer(ready=ready, targets=[Measurable.model_validate(row) for row in rows])
    text = listing.markdown if format == "markdown" else listing.text
    printed.as_asked(format).tell(found, lambda: text(rows, total))
