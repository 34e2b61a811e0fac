"""The presets that come with the server, each as the JSON object a person could have written."""

from typing import Any

_ROLEPLAY = (
    "You play the character that the user describes, and stay in that role. Write what the"
    " character says and does, never what the user's own character says, thinks or does."
)
_JSON = (
    "Take the facts that are asked for from the user's text. Answer with one JSON object and"
    " nothing else. What the text does not say is null; make nothing up."
)
_CODE = (
    "You are an experienced programmer. Give complete code that runs, in a fenced block that"
    " names its language, and then no more than a few sentences about it."
)

#: By name. They cannot be changed; see ``docs/presets.md`` for what each is for.
BUILT_IN: dict[str, dict[str, Any]] = {
    "precise": {"temperature": 0.3, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "balanced": {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    # Far down the list of words is where the surprises are; min_p alone cuts what makes no sense.
    "creative": {"temperature": 1.1, "top_k": 0, "top_p": 1.0, "min_p": 0.05},
    "deterministic": {"temperature": 0.0, "seed": 0},
    "concise": {
        "temperature": 0.5,
        "system": "Answer in as few words as will do. No introduction, no summary.",
    },
    "code": {"temperature": 0.2, "top_p": 0.95, "repeat_penalty": 1.0, "system": _CODE},
    "json": {"temperature": 0.0, "response_format": {"type": "json_object"}, "system": _JSON},
    # DRY keeps long scenes from going round in circles.
    "roleplay": {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.08,
        "dry_multiplier": 0.8,
        "dry_penalty_last_n": -1,
        "system": _ROLEPLAY,
    },
}
