"""Rules about chat text: templates, parsing. No I/O."""
