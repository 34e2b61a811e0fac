"""Why something was not done, in the reader's language.

What the store, the engine and the checks in front of it say is English, as programs get it. What of
it people meet on the pages is listed here, and said to them in their language; the rest is shown as
it is.
"""

import re
from functools import cache

from corral.frontend.words import _, later, number

#: As the source says them, with a name in braces for each value; a test finds each of them there.
#: Of two that fit the first counts.
KNOWN = (
    # conversations
    later("There is no such conversation; it may have been deleted"),
    later("There is no such message; it may have been deleted"),
    later("There is no such picture; it may have been deleted"),
    later("There is no such notebook; it may have been deleted"),
    later("There is no such batch; it may have been deleted"),
    later("There is no such row in this batch"),
    later("A reply is still being written there. Wait for it, or stop it first"),
    later("Only a reply can be continued"),
    later("Only replies are shown side by side"),
    later("This conversation was renamed elsewhere meanwhile; load the page again"),
    later("This message was changed elsewhere meanwhile; load the page again to see it"),
    later("These settings were changed elsewhere meanwhile"),
    later("This message is not waiting any more: it was sent, edited or removed meanwhile"),
    later("There are {n} messages waiting here already; your text is kept"),
    later("There is no preset {name} to bring back"),
    later("There is no preset {name}"),
    later("{name} comes with the server and stays as it is; use another name for a copy"),
    later("expected 1 to {n} printable characters without / and spaces around them"),
    later("the {what} cannot be read or written: {error}"),
    # the engine
    later("the prompt has {n} tokens; the context holds {n_ctx}, answer included"),
    later("the prompt holds no tokens"),
    later("all slots are busy and the queue is full"),
    later("the server is shutting down"),
    later("the engine is restarting"),
    later("the engine {reason} while working on this request"),
    later("this takes longer than {n} seconds to compile"),
    later("the chat template does not show system messages"),
    # files
    later("this model takes no {what}; start the server with --mmproj"),
    later("the picture is empty; send PNG, JPEG, WebP, GIF, BMP or TIFF"),
    later("this is {format}, which is not supported; send PNG, JPEG, WebP, GIF, BMP or TIFF"),
    later("this {format} is damaged or cut off"),
    later("this {format} has {n} bytes; at most {limit} are allowed"),
    # addresses
    later("There is no such page"),
    later("There is nothing to look at here"),
)
_MEMBER = re.compile(r"(prompt|messages|input|name|version)(\[\d+\]|\.\w+)*")


def sentence(message: str) -> str:
    """An error message as a person reads it: in their language where it is known, and a capital
    first, unless a name comes first."""
    if not (known := _translated(message)):
        place, _colon, rest = message.partition(": ")
        if known := _translated(rest):
            # A file's name is of use to people, that of an API's member is not.
            known = known if _MEMBER.fullmatch(place) else f"{place}: {known}"
    message = known or message
    is_word = message.partition(" ")[0].isalpha()
    return message[:1].upper() + message[1:] if is_word else message


def _translated(message: str) -> str:
    for template, pattern in _patterns():
        if found := pattern.fullmatch(message):
            values = {name: _value(text) for name, text in found.groupdict().items()}
            return _(template).format(**values)
    return ""


def _value(text: str) -> str:
    return number(int(text)) if text.isascii() and text.isdecimal() else text


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (template, re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+)", re.escape(template)), re.S))
        for template in KNOWN
    )
