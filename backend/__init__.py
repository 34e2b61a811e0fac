"""The server side of Corral: engine, chat rules, HTTP API."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: The folder that holds ``backend/``, ``frontend/``, ``templates/`` and ``static/``, in a
#: checkout and in a wheel alike.
ROOT = Path(__file__).resolve().parent.parent

try:
    __version__ = version("corral")
except PackageNotFoundError:  # running from a bare source tree
    __version__ = "0.0.0"
