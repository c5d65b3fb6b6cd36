"""The packages that a binary is made of, read from the binary, its linker map and dpkg.

Shared libraries are those that the loader finds (`ldd`). Static ones are the archives of which the
linker took at least one member, as GNU ld's map says (`-Wl,-Map=FILE`). Others, which a process
opens while it runs, are named by the caller.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import subprocess
from collections.abc import Iterable

DOCUMENTS = pathlib.Path("/usr/share/doc")
SHARED, STATIC, OPENED, INSTALLED = "shared", "static", "opened", "installed"


class UnknownTermsError(Exception):
    """A library of which no package and no file says the terms."""


@dataclasses.dataclass(frozen=True)
class Package:
    """One package, with those of its libraries that are linked, and its terms as it states them."""

    name: str
    version: str
    architecture: str
    distribution: str  # debian, ubuntu; empty for what no package manager knows
    linkage: str  # SHARED, STATIC, OPENED; INSTALLED beside the binary
    libraries: tuple[str, ...]
    terms: str


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def shared_libraries(binary: pathlib.Path) -> list[pathlib.Path]:
    """Those that the loader finds; one that it does not find is an error."""
    text = _run("ldd", str(binary))
    if missing := re.findall(r"(\S+) => not found", text):
        raise UnknownTermsError(f"{binary}: not found: {', '.join(missing)}")
    named = re.findall(r"=> (/\S+)", text) + re.findall(r"(?m)^\s*(/\S+) \(0x", text)
    return [pathlib.Path(name) for name in named]


def static_libraries(link_map: pathlib.Path) -> list[pathlib.Path]:
    """Archives outside of the build folder of which a member was linked."""
    included = re.search(r"Archive member included.*?\n\n(.*?)\n\n\S", link_map.read_text(), re.S)
    if not included:
        raise ValueError(f"{link_map}: no map of GNU ld")
    archives = re.findall(r"(?m)^(\S+\.a)\(", included[1])
    return sorted({pathlib.Path(name).resolve() for name in archives if name.startswith("/")})


def _candidates(library: pathlib.Path) -> list[str]:
    """Paths under which dpkg may know a file: its own first, for a link may be of another package;
    with and without /usr."""
    found = []
    for path in (str(library.resolve()), str(library)):
        found += [path, path.removeprefix("/usr"), "/usr" + path]
    return list(dict.fromkeys(found))


def owners(libraries: Iterable[pathlib.Path]) -> dict[pathlib.Path, str]:
    """The package that installed each file (`libc6:amd64`); a file of no package has no entry."""
    by_path = {library: _candidates(library) for library in libraries}
    paths = [path for candidates in by_path.values() for path in candidates]
    if not paths:
        return {}
    # Ends with 1 where a path is of no package, and lists the others.
    listed = subprocess.run(["dpkg-query", "-S", *paths], capture_output=True, text=True).stdout
    known = {}
    for line in listed.splitlines():
        names, _, path = line.rpartition(": ")
        known[path] = names.split(",")[0]
    found = {
        library: next((known[path] for path in candidates if path in known), "")
        for library, candidates in by_path.items()
    }
    return {library: package for library, package in found.items() if package}


def _distribution() -> str:
    release = pathlib.Path("/etc/os-release").read_text()
    return re.search(r'(?m)^ID="?([^"\n]+)', release)[1]


def _of_dpkg(name: str, linkage: str, libraries: Iterable[pathlib.Path]) -> Package:
    fields = _run("dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}", name)
    package, version, architecture = fields.split("\t")
    copyright_file = DOCUMENTS / package / "copyright"
    if not copyright_file.exists():
        raise UnknownTermsError(f"{package}: {copyright_file} is missing")
    terms = copyright_file.read_text(errors="replace")
    names = tuple(sorted({library.name for library in libraries}))
    return Package(package, version, architecture, _distribution(), linkage, names, terms)


def _of_file(library: pathlib.Path, linkage: str, licences: dict[str, pathlib.Path]) -> Package:
    matching = [path for stem, path in licences.items() if library.name.startswith(stem)]
    if not matching or not matching[0].exists():
        named = f" ({matching[0]} is missing)" if matching else ""
        raise UnknownTermsError(f"{library}: no package owns it, and no file states its terms{named}")
    version = re.search(r"\.so\.([\d.]+)$", library.resolve().name)
    terms = matching[0].read_text(errors="replace")
    name = library.name.partition(".")[0]
    number = version[1] if version else ""
    return Package(name, number, "", "", linkage, (library.name,), terms)


def packages(
    binary: pathlib.Path,
    link_map: pathlib.Path | None = None,
    opened: Iterable[pathlib.Path] = (),
    licences: dict[str, pathlib.Path] | None = None,
) -> list[Package]:
    """Every package, by name. `licences`: files of the terms of libraries that no package owns, by
    how the names of those libraries begin."""
    by_linkage = {
        SHARED: shared_libraries(binary),
        STATIC: static_libraries(link_map) if link_map else [],
        OPENED: list(opened),
    }
    found: list[Package] = []
    for linkage, libraries in by_linkage.items():
        owner = owners(libraries)
        owned: dict[str, list[pathlib.Path]] = {}
        for library in libraries:
            if library in owner:
                owned.setdefault(owner[library], []).append(library)
            else:
                found.append(_of_file(library, linkage, licences or {}))
        found += [_of_dpkg(name, linkage, files) for name, files in owned.items()]
    return sorted(found, key=lambda package: (package.name, package.linkage))


def installed(status: pathlib.Path) -> list[Package]:
    """Every package of a system, from dpkg's own list (/var/lib/dpkg/status), without their terms."""
    found = []
    for paragraph in status.read_text(errors="replace").split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Version|Architecture|Status): (.*)$", paragraph))
        if fields.get("Status", "").endswith(" installed"):
            names = fields["Package"], fields["Version"], fields["Architecture"]
            found.append(Package(*names, _distribution(), INSTALLED, (), ""))
    return found
