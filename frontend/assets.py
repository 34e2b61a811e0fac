"""Style, script and fonts, read once; their address changes with their content."""

import hashlib
from pathlib import Path

#: What is served, by ending; text is UTF-8, which Litestar adds.
TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".woff2": "font/woff2",
}


class Assets:
    """The files of ``static/``. ``base`` is where pages find them."""

    def __init__(self, folder: Path) -> None:
        self.files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in TYPES
        }
        # One name for all, so that relative addresses in style and script stay true.
        digest = hashlib.sha256()
        for name, content in self.files.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        self.digest = digest.hexdigest()[:12]
        self.base = f"/static/{self.digest}"
