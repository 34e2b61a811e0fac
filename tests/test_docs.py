"""What is written about Corral: each setting and route has its line, and nothing there is stale."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from litestar import Litestar

from corral.backend.app import create_app
from corral.backend.pool import Pool
from corral.backend.service import Service
from corral.backend.settings import Knob, Settings, knobs

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Assembled here, so that this file does not contain what it forbids.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("deb", "debian", "org"),
        ("proxy", "golang", "org"),
        ("crates", "io"),
    )
]


def tracked() -> list[Path]:
    """The project's files: those under version control, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def setting_row(knob: Knob) -> str:
    """The line of docs/settings.md for a setting."""
    flags = ", ".join(f"`{flag}`" for flag in knob.flags)
    names = ", ".join(f"`{name}`" for name in knob.env)
    default = f"`{knob.default}`" if knob.default else ""
    return f"| {flags} | {names} | {default} | {knob.help} |"


def test_every_setting_has_its_line_under_its_group() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    for knob in knobs():
        assert setting_row(knob) in sections[knob.group].splitlines(), setting_row(knob)


def test_no_documented_setting_is_gone() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `-")]
    assert len(rows) == len(knobs())


def test_every_flag_and_variable_named_in_the_docs_exists() -> None:
    flags = {flag for knob in knobs() for flag in knob.flags}
    flags |= {"--help", "--version", "--list-devices"}
    names = {name for knob in knobs() for name in knob.env}
    for page in PAGES:
        text = page.read_text()
        for command in re.findall(r"corral serve ([^`\n]*)", text):
            used = re.findall(r"(?<!\S)--?[a-z][\w-]*", command)
            assert set(used) <= flags, f"{page.name}: {command}"
        used = re.findall(r"\bCORRAL_[A-Z_]+\b", text)
        assert set(used) <= names, page.name


@pytest.fixture
def app() -> Litestar:
    settings = Settings(fake=True)
    return create_app(settings, Service(settings, Pool(settings)))


def api_routes(app: Litestar) -> set[tuple[str, str]]:
    """Method and path of everything in the OpenAPI document; parameters without their names."""
    found = set()
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            if "operation" in handler.opt:
                path = re.sub(r"{[^}]*}", "{}", route.path)
                found |= {(method, path) for method in handler.http_methods}
    return found


def test_every_route_of_the_api_is_documented(app: Litestar) -> None:
    page = re.sub(r"{[^}\n]*}", "{}", (ROOT / "docs" / "api.md").read_text())
    mentioned = set(re.findall(r"[`\s](/[\w/{}.-]*)", page))
    with_prefix = {path.removeprefix("/v1") for path in mentioned if path.startswith("/v1/")}
    missing = {path for _, path in api_routes(app)} - mentioned - with_prefix
    assert not missing


def test_every_documented_route_exists(app: Litestar) -> None:
    page = re.sub(r"{[^}\n]*}", "{}", (ROOT / "docs" / "api.md").read_text())
    headings = set(re.findall(r"^## (GET|POST|PUT|PATCH|DELETE) (/\S+)$", page, re.MULTILINE))
    assert len(headings) >= 12
    assert headings <= api_routes(app)


def test_the_changelog_begins_with_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == project["version"]


def test_the_readme_begins_with_the_two_commands() -> None:
    commands = re.findall(
        r"^(?:\$ )?((?:make|pip|corral|curl|python)\b.*)$", (ROOT / "README.md").read_text(), re.M
    )
    assert commands[0].startswith("make serve")
    assert commands[1].startswith("make test")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.split("#")[0]).exists(), target


def test_no_file_names_the_host_of_a_package_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in tracked()
        for host in REGISTRY_HOSTS
        if host.encode() in path.read_bytes()
    ]
    assert not found


def test_no_lock_names_an_index() -> None:
    for path in ROOT.glob("requirements*.txt"):
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", path.read_text())
