"""What can be known to be wrong with the settings before a model is loaded."""

import os
import ssl

from corral.backend.chat.template import ChatTemplate
from corral.backend.defaults import constraint
from corral.backend.errors import Refused
from corral.backend.placement import llama_options
from corral.backend.settings import Settings, default_data_dir


def check(settings: Settings) -> None:
    """Raises ``Refused`` for settings that contradict each other or cannot be had. Makes the folder
    for conversations."""
    llama_options(settings)
    _check_certificate(settings)
    _check_constraint(settings)
    _check_template(settings)
    _check_media(settings)
    _check_data_dir(settings)


def _check_certificate(settings: Settings) -> None:
    certificate, key = settings.ssl_cert_file, settings.ssl_key_file
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        missing = "--ssl-cert-file" if certificate is None else "--ssl-key-file"
        raise Refused(f"{missing} is missing: HTTPS needs both files", param="ssl_cert_file")
    try:
        # A password would be asked for at the terminal, by a server that may have none.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise Refused(
            f"--ssl-cert-file {certificate} and --ssl-key-file {key} cannot be used: {reason}",
            param="ssl_cert_file",
        ) from None


def _check_constraint(settings: Settings) -> None:
    """What shows without the model's vocabulary; the rest does when the model is loaded."""
    if settings.grammar and settings.json_schema:
        raise Refused("--grammar and --json-schema exclude each other", param="grammar")
    demanded = constraint(settings)
    if demanded is None or demanded.kind == "lark":
        return
    # Costs a tenth of a second, which most starts need not wait for.
    from corral.backend.engine import constraint as constraints

    try:
        if demanded.kind == "gbnf":
            constraints.gbnf_lark.translate(demanded.source)
        else:
            constraints.compile_constraint(demanded, constraints.Vocabulary(_Bytes()))
    except constraints.BadConstraint as error:
        flag = "--grammar" if demanded.kind == "gbnf" else "--json-schema"
        raise Refused(f"{flag}: {error}", param=error.path.split(".")[0]) from None


def _check_template(settings: Settings) -> None:
    if settings.chat_template and settings.chat_template_file:
        message = "--chat-template and --chat-template-file exclude each other"
        raise Refused(message, param="chat_template")
    source = settings.chat_template_file or settings.chat_template
    try:
        ChatTemplate(source, bos_token="", eos_token="")
    except Refused as error:
        flag = "--chat-template-file" if settings.chat_template_file else "--chat-template"
        raise Refused(f"{flag}: {error.message}", param=flag[2:].replace("-", "_")) from None


def _check_media(settings: Settings) -> None:
    """Whether the projector fits the model shows when both are loaded."""
    file, folder = settings.mmproj, settings.media_path
    if file is not None and settings.mmproj_auto and not settings.fake:
        try:
            with file.open("rb") as opened:
                problem = "" if opened.read(4) == b"GGUF" else "not a GGUF file"
        except FileNotFoundError:
            problem = "no such file"
        except OSError as error:
            problem = error.strerror or "it cannot be read"
        if problem:
            raise Refused(f"--mmproj {file}: {problem}", param="mmproj")
    if 0 < settings.image_max_tokens < settings.image_min_tokens:
        message = "--image-max-tokens is less than --image-min-tokens"
        raise Refused(message, param="image_max_tokens")
    if folder is not None and not folder.is_dir():
        raise Refused(f"--media-path {folder}: no such folder", param="media_path")


class _Bytes:
    """A vocabulary of the 256 bytes, and an end: enough for a schema, which names no tokens."""

    n_vocab = 257
    eog_tokens = frozenset({256})

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text.encode())

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return bytes([token]) if token < 256 else b"<end>" if special else b""


def _check_data_dir(settings: Settings) -> None:
    folder = settings.data_dir or default_data_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        problem = f"{folder} cannot be made: {error.strerror}"
    else:
        if os.access(folder, os.W_OK):
            return
        problem = f"{folder} cannot be written to"
    raise Refused(f"{problem}; choose another folder with --data-dir", param="data_dir")
