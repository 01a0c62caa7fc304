# The checksums of the outputs: whether each is still as it was made. Included behind all rules: their outputs are what is looked at.
OUTPUTS = [output.regex() for rule in workflow.rules for output in rule.output]


# A remote job starts Snakemake again, and a run that is under way is not to be disturbed: its files are not noted yet.
if workflow.is_main_process and not workflow.output_settings.dryrun:
    try:
        if checksums.alone():
            checksums.remove_damaged(SETTINGS.outputs, OUTPUTS)
            if LIVE:  # what failed for good is tried again
                loss.forget(RUNNING.root, Path(SETTINGS.outputs, RUN, "tables"))
            # A run that finds nothing to do ends before it notes anything.
            checksums.note(SETTINGS.outputs, OUTPUTS)
    except OSError as error:  # a folder that may not be written
        refuse(_refused(error))


def finish():
    """Note what was made, and say what came of it."""
    try:
        checksums.note(SETTINGS.outputs, OUTPUTS)
    except OSError as error:  # the pages stand all the same
        print(f"note: {_refused(error)}", file=sys.stderr)
    if DISPLAY:
        DISPLAY.end()
    missing = losses()
    for _line in missing:
        print(_line, file=sys.stderr)
    return 1 if missing else 0


onsuccess:
    # The pages are made, without what is missing.
    if finish():
        sys.exit(1)


onerror:
    finish()
