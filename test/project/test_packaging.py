"""What `pip install` of this project installs."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {"shmap_compiler": "shmap_compiler", "passes": "shmap_passes", "tools": "shmap_tools"}


def installed():
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["tool"]["setuptools"]


def folders_with(pattern):
    found = {
        path.parent.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob(pattern)
    }
    return {".".join((ROOMS[folder.parts[0]], *folder.parts[1:])) for folder in found}


def test_every_folder_of_modules_is_a_package():
    assert set(installed()["packages"]) == folders_with("*.py")


def test_every_other_file_is_installed_with_its_package():
    others = folders_with("*.css") | folders_with("*.js") | folders_with("py.typed")
    assert set(installed()["package-data"]) == others
