"""Formats that llguidance takes more widely than they are."""

from typing import Any, Final

#: Formats of OpenAPI that are ranges of integers.
_INTEGERS: Final = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
#: Days that exist, in years from 1 on, and no leap seconds: their rules are more than a pattern can
#: say.
_YEAR: Final = r"(?:\d{3}[1-9]|\d\d[1-9]\d|\d[1-9]\d\d|[1-9]\d{3})"
_LEAP_YEAR: Final = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATES: Final = (
    rf"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    rf"|(?:0[13578]|1[02])-31)|{_LEAP_YEAR}-02-29)"
)
_TIMES: Final = r"\d\d:\d\d:[0-5]\d"
_NARROWER: Final = {
    "date": f"^{_DATES}$",
    "time": f"^{_TIMES}",
    "date-time": f"^{_DATES}.{_TIMES}",
}


def narrow(schema: dict[str, Any]) -> None:
    """Adds to a schema what its ``format`` asks for beyond llguidance's reading."""
    name = schema.get("format")
    if not isinstance(name, str):
        return
    more: dict[str, Any] | None = None
    if name in _INTEGERS and schema.get("type") == "integer":
        low, high = _INTEGERS[name]
        more = {"minimum": low, "maximum": high}
    elif name in _NARROWER:
        more = {"pattern": _NARROWER[name]}
    if more is not None and isinstance(both := schema.get("allOf", []), list):
        schema["allOf"] = [*both, more]
