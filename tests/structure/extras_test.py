"""The client's extras are what its modules import, in the versions that the tests run with."""

import ast
import pathlib
import re
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "client/python"
PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
# Names of distributions whose module has another name.
MODULES = {"grpcio": "grpc", "protobuf": "google"}
# The files that may need an extra as soon as they are imported; others work without it.
OF_EXTRA = {"torch": "torch*.py", "jax": "jax/**/*.py", "ray": "ray.py"}


def distribution(requirement):
    return re.match(r"[\w-]+", requirement)[0]


def module(requirement):
    name = distribution(requirement)
    return MODULES.get(name, name.replace("-", "_"))


NEEDED = {module(requirement) for requirement in PROJECT["dependencies"]}
EXTRAS = {
    extra: {module(requirement) for requirement in requirements}
    for extra, requirements in PROJECT["optional-dependencies"].items()
}


def imported(tree):
    """Packages of others that a file imports, wherever it does."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            if node.args and isinstance(node.args[0], ast.Constant):
                names.add(node.args[0].value.partition(".")[0])
    return names - sys.stdlib_module_names - {"simgrad", "__future__"}


def at_import(tree):
    """Packages of others that a file cannot be imported without."""
    body = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom, ast.Try))]
    return imported(ast.Module(body, []))


FILES = {
    path.relative_to(CLIENT / "simgrad"): ast.parse(path.read_text())
    for path in (CLIENT / "simgrad").rglob("*.py")
    if "v1" not in path.parts  # generated
}


def of_extra(extra):
    found = (CLIENT / "simgrad").glob(OF_EXTRA[extra])
    return {path.relative_to(CLIENT / "simgrad") for path in found}


def test_all_that_is_imported_is_declared():
    declared = NEEDED.union(*EXTRAS.values())
    undeclared = {str(path): imported(tree) - declared for path, tree in FILES.items()}
    assert {path: names for path, names in undeclared.items() if names} == {}


@pytest.mark.parametrize("extra", ["torch", "jax", "ray", "progress"])
def test_all_that_an_extra_installs_is_imported(extra):
    assert EXTRAS[extra] <= set().union(*map(imported, FILES.values()))


@pytest.mark.parametrize("extra", OF_EXTRA)
def test_the_modules_of_an_extra_need_it_and_nothing_else(extra):
    files = of_extra(extra)
    assert files
    needed = set().union(*(at_import(FILES[path]) for path in files))
    assert needed - NEEDED == EXTRAS[extra]


def test_no_other_module_needs_an_extra():
    others = FILES.keys() - set().union(*map(of_extra, OF_EXTRA))
    needed = {str(path): at_import(FILES[path]) - NEEDED for path in others}
    assert {path: names for path, names in needed.items() if names} == {}


@pytest.mark.parametrize("extra", ["jax", "ray"])
def test_the_tests_run_with_what_the_extra_would_install(extra):
    """The pinned release is within the bounds that the extra declares."""
    (requirement,) = PROJECT["optional-dependencies"][extra]
    pins = (ROOT / f"tests/with_{extra}/requirements.txt").read_text()
    pinned = re.search(rf"(?m)^{distribution(requirement)}==([\d.]+)$", pins)[1]

    def number(version):
        return tuple(map(int, version.split(".")))

    bounds = re.findall(r"(>=|<)([\d.]+)", requirement)
    assert bounds
    for relation, bound in bounds:
        assert number(pinned) >= number(bound) if relation == ">=" else number(pinned) < number(bound)
