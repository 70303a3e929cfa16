"""Addresses of servers and of folders."""

from urllib.parse import urlsplit

import pytest

from inorder.errors import InvalidArgument
from inorder.spark.addresses import check_url
from inorder.transport.address import Address, folder_of, host_and_port, is_address, parse, without_secrets
from inorder.transport.credentials import Credentials


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("grpc://127.0.0.1:8085", Address("127.0.0.1:8085")),
        ("grpc://example.com:1/", Address("example.com:1")),
        ("grpc://[::1]:8085?project=shop", Address("[::1]:8085", "shop")),
        ("grpc://h:1?project=example.com%3Ashop&timeout=2.5", Address("h:1", "example.com:shop", 2.5)),
        (
            "grpc://h:1?tls=1&ca=/a&certificate=c&key=k&token_file=t",
            Address("h:1", credentials=Credentials(True, "/a", "c", "k", None, "t")),
        ),
        ("grpc://localhost:1?token=a.b", Address("localhost:1", credentials=Credentials(token="a.b"))),
    ],
)
def test_an_address_is_read(url: str, address: Address) -> None:
    assert is_address(url)
    assert parse(url) == address


@pytest.mark.parametrize("host", ["localhost", "10.0.0.1", "::1"])
def test_a_host_and_its_port_are_read_as_they_were_written(host: str) -> None:
    written = host_and_port(host, 8085)
    assert urlsplit(f"//{written}").hostname == host
    assert parse(f"grpc://{written}") == Address(written)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("grpc://host", "a server: grpc://host:port, as in"),
        ("grpc://:8085", "a server: grpc://host:port"),
        ("grpc:host:8085", "a server: grpc://host:port"),
        ("grpc://host:8085/orders", "a server: grpc://host:port"),
        ("grpc://host:70000", "a server: grpc://host:port"),
        ("grpc://me:secret@host:1", "a server: grpc://host:port, as in .*, not 'grpc://…@host:1'"),
        ("http://host:1", "a server: grpc://host:port"),
        ("grpc://host:1?colour=red", "unknown option 'colour'; there are project, timeout"),
        ("grpc://host:1?project=a&project=b", "option 'project' is given twice"),
        ("grpc://host:1?project=a/b", "project: letters, digits and -_.: only, not 'a/b'"),
        ("grpc://host:1?project=", "project: letters"),
        ("grpc://host:1?timeout=soon", "timeout: a number of seconds, not 'soon'"),
        ("grpc://host:1?timeout=0", "timeout: above 0, up to 86400, not 0"),
        ("grpc://host:1?tls=yes", "tls: 1 or 0, not 'yes'"),
        ("grpc://host:1?ca=x", "ca: needs tls=1"),
        ("grpc://host:1?tls=1&ca=", "ca: is empty"),
        ("grpc://host:1?tls=1&key=x", "certificate and key: give both, or none"),
        ("grpc://host:1?tls=1&token=SECRET&token_file=x", "token and token_file: give one of them"),
        ("grpc://host:1?token=SECRET", "token: needs tls=1, or it could be read on the way to host"),
        ("grpc://10.0.0.1:1?token_file=SECRET", "token: needs tls=1"),
        ("grpc://host:1?tls=1&token=SECRET&x=1", "unknown option 'x'"),
    ],
)
def test_what_is_wrong_is_named(url: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem.replace("?", r"\?")) as raised:
        parse(url)
    assert "SECRET" not in str(raised.value)


def test_an_address_does_not_show_its_token() -> None:
    assert "SECRET" not in repr(parse("grpc://localhost:1?token=SECRET"))


def test_folders_are_none() -> None:
    assert not is_address("file:./data")
    assert not is_address("./grpc")


def test_a_folder_has_the_options_that_stand_behind_it() -> None:
    assert folder_of("file:./data%3F?journal=sqlite&sync=none") == ("./data?", {"journal": "sqlite", "sync": "none"})


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("file:./data?journl=sqlite", "file:./data: unknown option 'journl'; there are journal, sync, sync_seconds"),
        ("file:./data?sync=none&sync=commit", "file:./data: option 'sync' is given twice"),
    ],
)
def test_an_option_of_a_folder_that_is_misspelt_is_named(target: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        folder_of(target)
    with pytest.raises(InvalidArgument, match=problem):  # also by who only reads there
        check_url(target)


def test_names_are_plain_in_the_project_of_the_address() -> None:
    address = parse("grpc://h:1?project=shop")
    assert address.topic("orders") == "projects/shop/topics/orders"
    assert address.subscription("projects/other/subscriptions/s") == "projects/other/subscriptions/s"
    assert address.name_of("projects/shop/topics/orders") == "orders"
    assert address.name_of("projects/other/topics/orders") == "projects/other/topics/orders"
    assert address.name_of("orders") == "orders"


def test_an_address_is_shown_without_its_token() -> None:
    assert without_secrets("grpc://h:1?token=SECRET&tls=1") == "grpc://h:1?token=…&tls=1"
    assert without_secrets("grpc://h:1?tls=1&token=SECRET") == "grpc://h:1?tls=1&token=…"
    assert without_secrets("grpc://h:1?token_file=x") == "grpc://h:1?token_file=x"
