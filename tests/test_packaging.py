"""The project as it is installed: lock files, wheel, sdist, and the command run from elsewhere."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("backend", "frontend", "templates", "static")


def run(*command: str | Path, cwd: Path = ROOT, **environ: str) -> str:
    """The command's output; fails with it when the command does."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CORRAL", "LLAMA"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=keep | environ,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def progress(log: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command run as ``make`` runs its installations."""
    show = (sys.executable, ROOT / ".ci" / "progress.py", log, "Installing")
    return subprocess.run([*show, *command], capture_output=True, text=True, timeout=60)


def locked(name: str) -> dict[str, list[str]]:
    """The versions a lock file allows, by package (several where systems differ)."""
    versions: dict[str, list[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if match := re.match(r"([\w.-]+)==([^ ]+)", line):
            versions.setdefault(match[1], []).append(match[2])
    return versions


def group(name: str) -> list[Requirement]:
    """The requirements of a dependency group, its included groups' as well."""
    found = []
    for entry in PROJECT["dependency-groups"][name]:
        found += [Requirement(entry)] if isinstance(entry, str) else group(entry["include-group"])
    return found


def test_the_package_list_is_the_tree() -> None:
    modules = {path.parent for top in FOLDERS[:2] for path in (ROOT / top).rglob("*.py")}
    expected = {"corral." + ".".join(path.relative_to(ROOT).parts) for path in modules}
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    assert listed == expected | {"corral.templates", "corral.static"}


def test_every_folder_of_modules_is_a_package() -> None:
    for top in FOLDERS[:2]:
        for path in (ROOT / top).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path.parent


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("requirements.txt", [Requirement(text) for text in PROJECT["project"]["dependencies"]]),
        ("requirements-dev.txt", group("dev")),
    ],
    ids=["requirements.txt", "requirements-dev.txt"],
)
def test_the_lock_allows_what_pyproject_asks(lock: str, wanted: list[Requirement]) -> None:
    versions = locked(lock)
    for requirement in wanted:
        name = requirement.name.lower()
        assert name in versions, f"{name} is not in {lock}: run make lock"
        assert all(map(requirement.specifier.contains, versions[name])), f"{name}: run make lock"


def test_the_test_side_has_the_very_libraries_that_are_served_with() -> None:
    dev = locked("requirements-dev.txt")
    assert {name: dev.get(name) for name in locked("requirements.txt")} == locked(
        "requirements.txt"
    )


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements*.txt")), ids=lambda path: path.name)
def test_every_locked_package_has_a_hash(lock: Path) -> None:
    entries = re.split(r"\n(?=\S)", lock.read_text().strip())
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)


def build(source: Path, kind: str, out: Path) -> None:
    hook = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    run(sys.executable, "-c", hook, out, cwd=source)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist, built from a copy of the tree: nothing old is packed."""
    source = tmp_path_factory.mktemp("source")
    files = run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in files:
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("dist")
    build(source, "sdist", out)
    # The wheel is built from the sdist, as an installer would: what the sdist forgets is missed.
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(source / "unpacked", filter="data")
    (unpacked,) = (source / "unpacked").iterdir()
    build(unpacked, "wheel", out)
    return out


def packed(built: Path) -> set[str]:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_brings_nothing_but_corral(built: Path) -> None:
    tops = {name.split("/")[0] for name in packed(built)}
    assert tops == {"corral", f"corral-{PROJECT['project']['version']}.dist-info"}


def test_the_wheel_has_every_module_template_and_static_file(built: Path) -> None:
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS)
    expected = {"corral/" + name for name in names.splitlines() if (ROOT / name).is_file()}
    assert expected <= packed(built), sorted(expected - packed(built))


def test_the_wheel_carries_the_licence(built: Path) -> None:
    assert any(name.endswith("/licenses/LICENSE") for name in packed(built))


def test_an_installed_corral_runs_from_anywhere(built: Path, tmp_path: Path) -> None:
    home = tmp_path / "clean"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # Corral's libraries are borrowed from this environment (nothing is compiled again), Corral is
    # not: the path line is read after site-packages and its import hook is not run.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(*pip, "--disable-pip-version-check", "--no-cache-dir", wheel)

    ask = (
        "import corral.backend as b; print(b.ROOT); "
        "print(*[f.is_dir() for f in (b.ROOT / 'templates', b.ROOT / 'static')])"
    )
    root, found = run(python, "-c", ask, cwd=Path("/")).splitlines()
    assert Path(root) == site / "corral"
    assert found == "True True"
    version = run(home / "bin" / "corral", "--version", cwd=Path("/"))
    assert PROJECT["project"]["version"] in version
    serve = (home / "bin" / "corral", "serve", "--help")
    assert "--parallel" in run(*serve, cwd=Path("/"), COLUMNS="500")


def test_a_failed_installation_ends_make_and_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = progress(log, "sh", "-c", "echo Collecting numpy; echo no compiler >&2; exit 3")
    assert done.returncode == 3
    assert done.stdout.endswith("] failed\n")
    assert "no compiler" in done.stderr
    assert str(log) in done.stderr


def test_a_good_installation_is_one_line_and_keeps_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = progress(log, "sh", "-c", "echo '  [5/10] Building'; printf 'half a line \\303'")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"Installing \[0:\d\d\] done\n", done.stdout)
    assert "[5/10] Building" in log.read_text()


def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    assert progress(tmp_path / "log", str(tmp_path / "nothing")).returncode != 0


def meter() -> Any:
    """What ``make`` shows of an installation; the script is no part of the package."""
    spec = importlib.util.spec_from_file_location("progress", ROOT / ".ci" / "progress.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Meter("Installing")


@pytest.mark.parametrize(
    ("line", "doing"),
    [
        ("Collecting numpy==2.4.6 (from -r requirements.txt (line 9))\n", "Collecting numpy"),
        ("  Building wheel for uvloop (pyproject.toml): started\n", "Building wheel for uvloop"),
        ("  [12/48] Building CXX object vendor/x.cpp.o\n", "compiling, 25 %"),
        ("[ 37%] Building CXX object vendor/x.cpp.o\n", "compiling, 37 %"),
        ("  Installing build dependencies: started\n", "Installing build dependencies"),
        ("anything else\n", ""),
    ],
)  # fmt: skip
def test_an_installation_shows_what_it_is_at(line: str, doing: str) -> None:
    shown = meter()
    shown.see(line)
    assert shown.doing == doing
