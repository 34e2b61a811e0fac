"""Measurements: ``python -m bench``."""

import os

from corral.backend.engine.client import ENVIRONMENT

# Before llama.cpp is loaded here: the bare loop gets the same surroundings as an engine.
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
