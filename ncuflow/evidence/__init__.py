"""Evidence: manifests, recordings, provenance, what may be stored."""
