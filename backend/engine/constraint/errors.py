"""The error of a constraint that cannot be enforced."""


class BadConstraint(Exception):
    """A constraint that cannot be enforced as it stands. ``path`` names the place, such as
    ``json_schema.properties.a.pattern`` or ``grammar line 3``; ``str`` gives both."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(f"{path}: {message}")
        self.message = message
        self.path = path
