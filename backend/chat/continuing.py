"""A prompt that ends within its last message, for the model to go on with, as Hugging Face makes
it: what a template writes behind that message's text is cut off."""

from typing import Any, Final

from corral.backend.errors import Refused

#: A message's reasoning goes by three names; templates read the first, gpt-oss's the second.
REASONING: Final = ("reasoning_content", "thinking", "reasoning")

#: Stands behind the text to go on with: letters that no filter changes. The space tells whether the
#: template trims.
_TAG: Final = "GOES_ON_FROM_HERE_0a7d "


def tagged(final: dict[str, Any], source: str) -> tuple[dict[str, Any], str]:
    """The last message as a template of this source sees it, with the tag behind its text; and that
    text: of its content, or of its reasoning when there is no content yet. Raises Refused."""
    reasoning, names = final.get("reasoning_content"), ["content"]
    if not final.get("content") and isinstance(reasoning, str):
        names = [name for name in REASONING if final.get(name) == reasoning]
    if not any(name in source for name in names):
        raise _refused(f"the chat template does not show {names[0]}, so it cannot go on there")
    whole = final.get(names[0])
    if isinstance(whole, str):
        return final | dict.fromkeys(names, whole + _TAG), whole
    parts = list(whole) if isinstance(whole, list) else []
    for i, part in reversed(list(enumerate(parts))):
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            parts[i] = part | {"text": text + _TAG}
            return final | {"content": parts}, text
    raise _refused("the last message has no text to go on with")


def opened(text: str, last: str) -> str:
    """A prompt without the tag and what stands behind it. ``last`` is the text that must show."""
    at = text.rfind(_TAG.rstrip())
    if at < 0 or last.strip() not in text:
        raise _refused("the chat template does not show the last message as it is")
    kept = text[:at]
    return kept if text[at : at + len(_TAG)] == _TAG else kept.rstrip()


def _refused(message: str) -> Refused:
    return Refused(message, kind="template_error", param="messages")
