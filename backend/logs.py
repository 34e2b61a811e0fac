"""Where the server's messages go, and what they look like."""

import logging
import sys

from corral.backend.errors import Refused
from corral.backend.settings import Settings

_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}
_PLAIN = "\x1b[0m"


class _Coloured(logging.Formatter):
    """Warnings and errors in colours."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = _COLOURS.get(record.levelname)
        return f"{colour}{text}{_PLAIN}" if colour else text


def configure(settings: Settings) -> None:
    """Sends messages to stderr, and to ``--log-file``. Raises ``Refused`` when that cannot be
    written."""
    if settings.log_level == "none":
        logging.disable(logging.CRITICAL)
        return
    layout = "%(message)s"
    if settings.log_prefix:
        layout = f"%(levelname)-7s %(name)s: {layout}"
    if settings.log_timestamps:
        layout = f"%(asctime)s {layout}"
    stderr = logging.StreamHandler(sys.stderr)
    is_coloured = settings.log_colors
    if is_coloured is None:
        is_coloured = sys.stderr.isatty()
    stderr.setFormatter((_Coloured if is_coloured else logging.Formatter)(layout))
    handlers: list[logging.Handler] = [stderr]
    if settings.log_file is not None:
        try:
            file = logging.FileHandler(settings.log_file, encoding="utf-8")
        except OSError as error:
            message = f"--log-file: {settings.log_file}: {error.strerror}"
            raise Refused(message, param="log_file") from None
        file.setFormatter(logging.Formatter(layout))
        handlers.append(file)
    logging.basicConfig(level=settings.log_level.upper(), handlers=handlers)
    # Its lines would surround ours; what matters of them is printed by the server.
    if settings.log_level == "info":
        logging.getLogger("uvicorn.error").setLevel("WARNING")
