"""Settings as a form sends them."""

from litestar.datastructures import FormMultiDict
from msgspec.structs import replace

from corral.backend.answer_settings import ANY_VOCABULARY
from corral.backend.errors import Broken, Refused
from corral.frontend import tuning, typed
from corral.frontend.knobs import KNOBS
from corral.frontend.reasons import sentence
from corral.frontend.site import Site
from corral.frontend.tuning import Own
from corral.frontend.typed import Typed
from corral.frontend.words import _

#: What the fields' names begin with in forms that hold others too.
PREFIX = "s."


def read(
    form: FormMultiDict, old: Own | None = None, *, prefix: str = PREFIX, is_begun: bool = False
) -> Typed:
    """The settings of a form's ``s.`` fields, made from ``old`` ones; see ``typed.parse``."""
    texts = {
        name: value.replace("\r\n", "\n")
        for name in (*KNOBS, "preset", "source")
        if isinstance(value := form.get(prefix + name, ""), str)
    }
    nones = {value for value in form.getall(f"{prefix}none", []) if isinstance(value, str)}
    reset = form.get("reset")
    if isinstance(reset, str) and reset in KNOBS:
        texts[reset] = ""
        nones.discard(reset)
    return typed.parse(texts, frozenset(nones), old or Own(), is_begun=is_begun)


async def checked(site: Site, given: Typed) -> Typed:
    """The same, with what only the server can tell of it."""
    if given.errors:
        return given
    try:
        await tuning.in_force(site, given.own)
        problem = await _problem(site, given.own)
    except Refused as error:
        name = typed.field_of(error.param) or "preset"
        return replace(given, errors={name: sentence(error.message)})
    return replace(given, errors={"form": sentence(problem)}) if problem else given


async def _problem(site: Site, own: Own) -> str:
    """What the engine's compiler has against a schema or grammar; a model that is loading has
    nothing. Raises Refused when it takes too long."""
    wanted = own.params(ANY_VOCABULARY).constraint
    if wanted is None or site.service.info is None:
        return ""
    try:
        return (await site.service.check_constraint(wanted)).problem
    except Refused as error:
        raise Refused(error.message, param="grammar") from None
    except Broken:
        return ""


def words_of(given: Typed) -> str:
    """What is wrong, for a place that is not beside the fields."""
    names = {name: _(knob.label) for name, knob in KNOBS.items()} | {"preset": _("Preset")}
    return " · ".join(f"{names[name]}: {words}" for name, words in given.errors.items())


async def valid(site: Site, form: FormMultiDict) -> Own:
    """The settings of a form. Raises Refused that names the fields."""
    given = await checked(site, read(form))
    if given.errors:
        raise Refused(words_of(given), param="settings")
    return given.own


def version_of(form: FormMultiDict) -> int:
    """The version that a form was made from, or the one that it is to replace all the same.
    Raises Refused."""
    version = form.get("over") or form.get("version")
    if not (isinstance(version, str) and version.isdecimal() and len(version) < 10):
        raise Refused(_("The form lacks the version it was made from"), param="version")
    return int(version)
