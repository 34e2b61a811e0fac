"""A chat template that somebody is trying out: rendered in a process of its own, which may take so
much time and memory and no more. The server's own templates are the operator's choice; this one
may be anything.

``python -m corral.backend.chat.trial`` is that process: a ``Trial`` comes in, ``Tried`` goes out.
"""

import asyncio
import contextlib
import sys
from typing import Any, Final

import msgspec
from msgspec import Struct

from corral.backend.chat.capabilities import Capabilities
from corral.backend.chat.model import ChatModel
from corral.backend.chat.template import ChatTemplate
from corral.backend.chat.types import ChatRequest, Written
from corral.backend.errors import Broken, CorralError, Refused

#: Seconds of a core it may take, and bytes of memory; and seconds in all, where cores are busy.
CPU_S: Final = 3
MEMORY: Final = 1 << 30
WALL_S: Final = 15.0


class Trial(Struct, frozen=True, kw_only=True):
    """A template and a conversation for it. ``options`` are those of ``ChatModel``."""

    source: str
    bos_token: str
    eos_token: str
    controls: list[str]
    options: dict[str, Any]
    request: ChatRequest


class Tried(Struct, frozen=True, kw_only=True):
    """What became of it: the prompt and what the template can say, or an objection in words."""

    prompt: Written = Written("")
    can: Capabilities | None = None
    objection: str = ""


async def tried(trial: Trial) -> Tried:
    """Renders in a process of its own. Raises Refused ``template_error`` with the template's
    objection, or when it takes too much, and Broken when there can be no process."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "corral.backend.chat.trial",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise Broken(f"the template cannot be tried: {error}") from error
    try:
        async with asyncio.timeout(WALL_S):
            answer, _ = await process.communicate(msgspec.msgpack.encode(trial))
    except TimeoutError:
        raise _too_much(f"{WALL_S:g} seconds") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode:
        raise _too_much(f"{CPU_S} seconds of a core or {MEMORY >> 20} MiB")
    found = msgspec.msgpack.decode(answer, type=Tried)
    if found.objection:
        raise Refused(found.objection, kind="template_error")
    return found


def _too_much(limit: str) -> Refused:
    return Refused(f"the chat template takes more than {limit}", kind="template_error")


def render(trial: Trial) -> Tried:
    """Renders here. Never raises for what the template does."""
    try:
        template = ChatTemplate(
            trial.source, bos_token=trial.bos_token, eos_token=trial.eos_token, may_queue=True
        )
        model = ChatModel(template, frozenset(trial.controls), **trial.options)
        return Tried(prompt=model.render(trial.request), can=model.can)
    except CorralError as error:
        return Tried(objection=error.message)
    except SyntaxError as error:  # Python's, of what Jinja made of it
        return Tried(objection=f"the chat template cannot be compiled: {error.msg}")


def _limit() -> None:
    try:
        import resource
    except ImportError:  # not everywhere; the time in all is limited still
        return
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """The process."""
    trial = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Trial)
    _limit()
    sys.stdout.buffer.write(msgspec.msgpack.encode(render(trial)))


if __name__ == "__main__":
    main()
