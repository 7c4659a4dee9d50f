"""The public surface: what is exported, documented, and imported along with it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeAlias

import pytest

import freshtoken
import freshtoken.abc
import freshtoken.auth
import freshtoken.errors
import freshtoken.events
import freshtoken.stores
import freshtoken.testing
from freshtoken import (
    Disposition,
    FreshTokenError,
    OAuthClient,
    Secret,
    Session,
    TokenManager,
)
from freshtoken._foundation.records import Failure
from freshtoken._protocol.classification import error_for

Public: TypeAlias = Any

ROOT = Path(freshtoken.__file__).parent
COLLECTIONS = [
    freshtoken,
    freshtoken.abc,
    freshtoken.events,
    freshtoken.stores,
    freshtoken.testing,
]
DEPENDENCIES = {"anyio", "cryptography", "httpx", "pyjwt", "tenacity"}
HEAVY = {
    "anyio",
    "asyncio",
    "cryptography",
    "httpx",
    "httpx2",
    "jwt",
    "pytest",
    "rich",
    "ssl",
    "tenacity",
    "trio",
}


def public_names() -> list[str]:
    """Every public name, as ``module:name``."""
    return [
        f"{module.__name__}:{name}" for module in COLLECTIONS for name in module.__all__
    ]


def resolve(address: str) -> Public:
    module, _, name = address.partition(":")
    return getattr(importlib.import_module(module), name)


def public_classes() -> list[str]:
    return [one for one in public_names() if inspect.isclass(resolve(one))]


def public_callables() -> list[str]:
    """Functions, and the methods that public classes define, as ``module:a.b``."""
    found = []
    for address in public_names():
        value = resolve(address)
        if inspect.isfunction(value):
            found.append(address)
        elif inspect.isclass(value):
            found += [
                f"{address}.{name}"
                for base in value.__mro__
                if base.__module__.startswith("freshtoken")
                for name, member in vars(base).items()
                if inspect.isfunction(member) and not name.startswith("_")
            ]
    return sorted(set(found))


def function(address: str) -> Public:
    value: Public = importlib.import_module(address.partition(":")[0])
    for name in address.partition(":")[2].split("."):
        value = getattr(value, name)
    return value


def section(docstring: str, title: str) -> dict[str, str]:
    """Return the entries of one section of a docstring: name and text."""
    lines = inspect.cleandoc(docstring).splitlines()
    if f"{title}:" not in lines:
        return {}
    entries: dict[str, str] = {}
    for line in lines[lines.index(f"{title}:") + 1 :]:
        if line and not line.startswith(" "):
            break
        entry = re.match(r"    (\*{0,2}\w+)(?: \([^)]*\))?: ?(.*)", line)
        if entry is not None:
            entries[entry.group(1).lstrip("*")] = entry.group(2)
    return entries


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- Names --------------------------------------------------------------------------


@pytest.mark.parametrize("module", COLLECTIONS, ids=lambda module: module.__name__)
def test_the_names_are_a_sorted_list_without_private_ones(module: ModuleType) -> None:
    assert module.__all__ == sorted(set(module.__all__))
    assert [name for name in module.__all__ if name.startswith("_")] == []


@pytest.mark.parametrize("address", public_names())
def test_every_name_is_there(address: str) -> None:
    assert resolve(address) is not None


def test_a_star_import_brings_the_names_and_nothing_else() -> None:
    names: dict[str, object] = {}
    exec("from freshtoken import *", names)  # noqa: S102 -- there is no other way
    names.pop("__builtins__")

    assert sorted(names) == freshtoken.__all__


def test_dir_shows_the_names() -> None:
    """Also before anything was imported, and after everything was."""
    program = "import freshtoken; print(*dir(freshtoken))"

    assert run(program).split() == freshtoken.__all__
    assert dir(freshtoken) == freshtoken.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="TokenManagr"):
        _ = freshtoken.TokenManagr  # type: ignore[attr-defined]  # that is the test
    with pytest.raises(ImportError):
        exec("from freshtoken import token_manager")  # noqa: S102 -- mypy would refuse


def test_every_error_is_exported() -> None:
    errors = {
        name
        for name, value in vars(freshtoken.errors).items()
        if inspect.isclass(value) and value.__module__ == "freshtoken.errors"
    }

    assert errors <= set(freshtoken.__all__)


def test_every_event_is_exported() -> None:
    events = {one.__name__ for one in descendants(freshtoken.events.Event)}

    assert events == {
        name
        for name in freshtoken.events.__all__
        if issubclass(getattr(freshtoken.events, name), freshtoken.events.Event)
    }


def descendants(cls: type[Any]) -> set[type[Any]]:
    """Return a class and all that derive from it in the package."""
    found = {cls} if cls.__module__.startswith("freshtoken") else set()
    return found.union(*(descendants(one) for one in cls.__subclasses__()))


# -- Documentation ------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [name for name in public_names() if inspect.isclass(resolve(name))]
    + public_callables(),
)
def test_every_public_thing_says_what_it_is(address: str) -> None:
    docstring = function(address).__doc__ or ""
    summary = docstring.splitlines()[0] if docstring else ""

    assert summary.endswith((".", "?")), summary
    assert len(summary) > len("Do it.")
    assert not summary.startswith(f"{address.rpartition(':')[2]}("), "made by dataclass"


@pytest.mark.parametrize("address", public_callables())
def test_documented_arguments_are_those_of_the_signature(address: str) -> None:
    method = function(address)
    parameters = inspect.signature(method).parameters
    documented = section(method.__doc__ or "", "Args")
    catch_all = [
        name for name, one in parameters.items() if one.kind is one.VAR_KEYWORD
    ]

    assert catch_all or documented.keys() <= parameters.keys()


@pytest.mark.parametrize("address", public_classes())
def test_the_arguments_of_a_class_are_documented_by_their_names(address: str) -> None:
    """All of them where there is a list: one that is left out looks as if not there."""
    cls = resolve(address)
    documented = section(cls.__doc__ or "", "Args")
    if not documented:
        return

    assert documented.keys() == inspect.signature(cls).parameters.keys()


@pytest.mark.parametrize("address", public_callables())
def test_documented_errors_exist(address: str) -> None:
    raised = section(function(address).__doc__ or "", "Raises")

    for name in raised:
        error = getattr(freshtoken, name, None) or getattr(
            importlib.import_module("builtins"), name, None
        )
        error = error or getattr(freshtoken.testing, name, None)
        assert error is not None, name
        assert issubclass(error, Exception)


@pytest.mark.parametrize(
    ("method", "errors"),
    [
        ("add_session", {"MisconfiguredError", "StoreError"}),
        ("auth", {"MisconfiguredError"}),
        (
            "begin_sign_in",
            {
                "ClientRejectedError",
                "MisconfiguredError",
                "RetryableError",
                "StoreError",
            },
        ),
        ("client_credentials", {"MisconfiguredError", "StoreError"}),
        (
            "complete_sign_in",
            {
                "AccessDeniedError",
                "AuthorizationResponseError",
                "ClientRejectedError",
                "MisconfiguredError",
                "RetryableError",
                "SignInRequiredError",
                "StoreError",
                "TokenRejectedError",
            },
        ),
        ("end_session", {"RetryableError", "StoreError"}),
        ("get_session", {"MisconfiguredError", "SignInRequiredError", "StoreError"}),
        (
            "get_token",
            {
                "AccessDeniedError",
                "ClientRejectedError",
                "MisconfiguredError",
                "RetryableError",
                "SignInRequiredError",
                "StoreError",
            },
        ),
    ],
)
def test_the_manager_says_what_it_raises(method: str, errors: set[str]) -> None:
    docstring = getattr(TokenManager, method).__doc__

    assert section(docstring, "Raises").keys() == errors


def test_every_method_of_the_manager_is_held_by_the_test_above() -> None:
    methods = {
        name
        for name, _ in inspect.getmembers(TokenManager, inspect.isfunction)
        if not name.startswith("_")
    }

    assert methods == {
        "add_session",
        "auth",
        "begin_sign_in",
        "client_credentials",
        "complete_sign_in",
        "end_session",
        "get_session",
        "get_token",
    }


@pytest.mark.parametrize(
    "address", [one for one in public_callables() if "testing" not in one]
)
def test_options_are_keyword_only(address: str) -> None:
    """What has a default and stands beside other arguments is called by its name."""
    parameters = list(inspect.signature(function(address)).parameters.values())
    positional = [
        one.name
        for one in parameters[2:]
        if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is not one.empty
    ]

    assert positional == []


# -- Errors -------------------------------------------------------------------------


def drawn_tree() -> dict[str, str]:
    """Read the drawing in the module's docstring: each class and its parent."""
    drawing = (freshtoken.errors.__doc__ or "").split("```")[1]
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in drawing.strip().splitlines():
        found = re.match(r"([│├└─ ]*)(\w+)", line)
        assert found is not None, line
        depth = len(found.group(1)) // 3
        path[depth:] = [found.group(2)]
        parents[path[-1]] = path[-2] if depth else "Exception"
    return parents


def test_the_tree_of_errors_is_as_drawn() -> None:
    actual = {
        one.__name__: one.__base__.__name__
        for one in descendants(FreshTokenError)
        if one.__base__ is not None and one.__module__ == "freshtoken.errors"
    }

    assert drawn_tree() == actual


def test_no_other_module_has_public_errors_of_the_tree() -> None:
    elsewhere = {
        one.__name__
        for one in descendants(FreshTokenError)
        if one.__module__ != "freshtoken.errors"
    }

    assert elsewhere == set()


@pytest.mark.parametrize("name", drawn_tree())
def test_an_error_is_made_without_details(name: str) -> None:
    """As fakes of applications do."""
    error = getattr(freshtoken, name)("it broke")

    assert str(error) == "it broke"
    assert name.endswith("Error")
    documented = section(type(error).__doc__ or "", "Attributes")
    assert [field for field in documented if not hasattr(error, field)] == []
    assert [field for field in vars(error) if field.startswith("_")] == []


@pytest.mark.parametrize("disposition", Disposition)
def test_an_error_survives_the_way_to_another_process(disposition: Disposition) -> None:
    """Task queues pickle what a task raised."""
    failure = Failure(
        disposition, "advice", error="e", extra=MappingProxyType({"suberror": 1})
    )
    error = error_for(failure, issuer="https://idp.test", session_id="crm")

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 -- our own

    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


# -- Values -------------------------------------------------------------------------


def test_values_are_frozen() -> None:
    client = OAuthClient("https://idp.test", client_id="web")
    session = Session(id="crm", issuer="https://idp.test", client_id="web")

    for value, field in ((client, "client_id"), (session, "id")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, "other")
        assert not hasattr(value, "__dict__")


@pytest.mark.parametrize(
    "secretive",
    [
        Secret("shy"),
        freshtoken.AccessToken("shy"),
        OAuthClient("https://idp.test", client_id="web", client_secret="shy"),
        TokenManager(
            OAuthClient("https://idp.test", client_id="w", client_secret="shy")
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_holds_a_secret_neither_shows_nor_pickles_it(secretive: object) -> None:
    assert "shy" not in repr(secretive)
    assert "shy" not in str(secretive)
    with pytest.raises(TypeError):
        pickle.dumps(secretive)


# -- What an import costs -----------------------------------------------------------


def imported_by(program: str) -> set[str]:
    """Return the packages that a program brings in."""
    output = run(f"{program}\nimport sys\nprint(*sys.modules)")
    return {name.partition(".")[0] for name in output.split()}


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert imported_by("import freshtoken") & HEAVY == set()


def test_importing_everything_imports_no_http_client_and_no_test_tool() -> None:
    """They come when they are used; httpx2 only where hooks are made."""
    program = "from freshtoken import *; import freshtoken.testing, freshtoken.auth"
    imported = imported_by(program)

    assert imported & {"httpx", "httpx2", "pytest", "rich", "trio"} == set()
    assert "anyio" in imported


def test_making_a_manager_imports_no_http_client() -> None:
    program = (
        "from freshtoken import OAuthClient, TokenManager\n"
        "TokenManager(OAuthClient('https://idp.test', client_id='web'))"
    )

    assert imported_by(program) & {"httpx", "httpx2", "pytest", "trio"} == set()


def test_the_pytest_plugin_imports_itself_alone() -> None:
    """It is loaded in every test run of everybody who has the library installed."""
    program = (
        "import pytest, sys\n"
        "before = set(sys.modules)\n"
        "import freshtoken.pytest_plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )

    assert run(program).split() == ["freshtoken", "freshtoken.pytest_plugin"]


# -- The distribution ---------------------------------------------------------------


def test_five_dependencies_and_no_other() -> None:
    required = importlib.metadata.requires("freshtoken") or []
    names = {
        re.split(r"[^\w.-]", line, maxsplit=1)[0]
        for line in required
        if "extra ==" not in line
    }

    assert names == DEPENDENCIES


def test_the_plugin_is_registered() -> None:
    points = importlib.metadata.entry_points(group="pytest11", name="freshtoken")

    assert [one.value for one in points] == ["freshtoken.pytest_plugin"]


def test_the_types_are_published() -> None:
    assert (ROOT / "py.typed").is_file()
