"""The web UI: HTTP in, HTML out."""
