"""Settings of `inorder serve`: flag over environment over file over default."""

import json
import logging
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from inorder.cli.logs import JsonLines
from inorder.cli.program import main
from inorder.cli.serve import SETTINGS


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.delenv("INORDER_CONFIG", raising=False)


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, tuple[str, str]]:
    """Each setting's value and where it came from, as `--print-config` shows them."""
    assert main(["serve", "--print-config", *flags]) == 0
    found = {}
    for line in capsys.readouterr().out.splitlines():
        text, _, source = line.rpartition("  # ")
        name, _, value = text.strip().partition(" = ")
        found[name] = value, source
    return found


def test_a_flag_counts_more_than_the_environment_and_that_more_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.toml"
    file.write_text('port = 1\nproject = "file"\nburst = 3\npush_anywhere = true\ninsecure = true\n')
    monkeypatch.setenv("INORDER_PORT", "2")
    monkeypatch.setenv("INORDER_PROJECT", "environment")
    monkeypatch.setenv("INORDER_PUSH_ANYWHERE", "no")
    found = printed(capsys, "--config", str(file), "--port", "3", "--no-insecure")
    assert found["port"] == ("3", "--port")
    assert found["project"] == ('"environment"', "INORDER_PROJECT")
    assert found["push_anywhere"] == ("false", "INORDER_PUSH_ANYWHERE")
    assert found["insecure"] == ("false", "--insecure")
    assert found["burst"] == ("3", str(file))
    assert found["idle_seconds"] == ("600.0", "default")


def test_the_environment_names_the_file_and_what_is_printed_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.toml"
    file.write_text('data = "kept"\nidle_seconds = 7\n')
    monkeypatch.setenv("INORDER_CONFIG", str(file))
    assert main(["serve", "--print-config"]) == 0
    read = tomllib.loads(capsys.readouterr().out)
    assert read["data"] == str(tmp_path / "kept")  # beside the file that says so
    assert read["idle_seconds"] == 7.0
    assert "tokens" not in read
    again = tmp_path / "again.toml"
    again.write_text(json.dumps(read["project"]).join(["project = ", "\n"]))
    assert printed(capsys, "--config", str(again))["project"] == ('"inorder"', str(again))


def test_of_a_folder_and_memory_the_one_that_counts_more_is_all_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed is a file again, in which both would be refused."""
    file = tmp_path / "server.toml"
    file.write_text("memory = true\n")
    monkeypatch.setenv("INORDER_DATA", str(tmp_path))
    found = printed(capsys, "--config", str(file))
    assert found["data"] == (json.dumps(str(tmp_path)), "INORDER_DATA")
    assert found["memory"] == ("false", "INORDER_DATA")
    found = printed(capsys, "--memory")
    assert found["memory"] == ("true", "--memory")
    assert found["# data is not set"] == ("", "--memory")


def test_a_folder_may_be_given_as_in_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, file = json.dumps(str(tmp_path / "kept")), tmp_path / "server.toml"
    assert printed(capsys, "--data", f"file:{tmp_path}/kept")["data"] == (kept, "--data")
    file.write_text('data = "file:./kept"\n')
    assert printed(capsys, "--config", str(file))["data"] == (kept, str(file))
    monkeypatch.setenv("HOME", str(tmp_path))
    for home in ("~/kept", "file:~/kept"):
        file.write_text(f'data = "{home}"\n')
        assert printed(capsys, "--config", str(file))["data"] == (kept, str(file))
        assert printed(capsys, f"--data={home}")["data"] == (kept, "--data")
    monkeypatch.setenv("INORDER_DATA", f"file:{tmp_path}/kept?sync=none")
    assert main(["serve", "--print-config"]) == 2
    assert "INORDER_DATA: a path; what stands behind the ? of 'file:" in capsys.readouterr().err
    assert main(["serve", "--print-config", "--data", "file:"]) == 2
    assert "a folder after 'file:'" in capsys.readouterr().err
    assert main(["serve", "--print-config", "--data", ""]) == 2  # as of a variable that is not set
    assert "a path, not ''" in capsys.readouterr().err
    assert main(["serve", "--print-config", "--data", "grpc://host:1?token=SECRET"]) == 2
    assert "a path, not the address of a server, 'grpc://host:1'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--burst", "0"], "burst: a whole number of at least 1"),
        (["--drain-seconds", "-1"], "--drain-seconds: at least 0"),
        (["--requests-per-second", "nan"], "requests_per_second: at least 0"),
        (["--idle-seconds", "inf"], "idle_seconds: at least 1"),
        (["--port", "70000"], "--port: 0 to 65535, not 70000"),
        (["--project", "a b"], "project"),
        (["--host", "0.0.0.0"], "can be reached from other machines"),
        (["--data", "x"], "data and memory are both set (--data, --memory)"),
    ],
)
def test_nothing_is_printed_that_the_server_would_not_take(
    flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--memory", "--print-config", *flags]) != 0
    told = capsys.readouterr()
    assert not told.out
    assert problem in told.err


@pytest.mark.parametrize(
    ("file", "variable", "problem"),
    [
        ("port = 'x'", "", "server.toml, port: a whole number, not 'x'"),
        ("port = true", "", "server.toml, port: a whole number, not True"),
        ("memory = 1", "", "server.toml, memory: true or false, not 1"),
        ("sync = 'never'", "", "server.toml, sync: one of commit, interval, none, not 'never'"),
        ("prot = 1", "", "'prot' is no setting; there are"),
        ("port =", "", "server.toml: Invalid value"),
        ("data = ''", "", "server.toml, data: a path, not ''"),
        ("", "INORDER_PORT=x", "INORDER_PORT: a whole number, not 'x'"),
        ("", "INORDER_MEMORY=maybe", "INORDER_MEMORY: true or false, not 'maybe'"),
        ("", "INORDER_LOG_LEVEL=loud", "INORDER_LOG_LEVEL: one of debug, info, warning, error, not 'loud'"),
        ("", "INORDER_DRAIN_SECONDS=soon", "INORDER_DRAIN_SECONDS: a number, not 'soon'"),
        ("", "INORDER_DRAIN_SECOND=5", "INORDER_DRAIN_SECOND is no setting; INORDER_DRAIN_SECONDS is"),
        ("", "INORDER_SYCN=none", "INORDER_SYCN is no setting; INORDER_SYNC is"),
        ("", "INORDER_CONFG=x", "INORDER_CONFG is no setting; INORDER_CONFIG is"),
    ],
)
def test_a_setting_that_is_wrong_is_named_with_where_it_stands(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    variable: str,
    problem: str,
) -> None:
    path = tmp_path / "server.toml"
    path.write_text(file)
    if variable:
        name, _, value = variable.partition("=")
        monkeypatch.setenv(name, value)
    assert main(["serve", "--config", str(path)]) == 2
    assert problem in capsys.readouterr().err


def test_variables_that_others_set_are_none_of_its_business(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A platform that runs a service of this name tells everybody where it is."""
    for name in ("SERVICE_HOST", "SERVICE_PORT", "PORT_8085_TCP", "PORT_8085_TCP_ADDR", "TARGET", "TEST_POSTGRES"):
        monkeypatch.setenv(f"INORDER_{name}", "x")
    assert printed(capsys)["port"][1] == "default"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--memory", "--data", "x"], "data and memory are both set (--data, --memory)"),
        ([], "one of the arguments --data --memory is required"),
        (["--memory", "--drain-seconds", "-1"], "--drain-seconds"),
        (["--memory", "--metrics-port", "70000"], "--metrics-port: 0 to 65535, not 70000"),
        (["--memory", "--host", "0.0.0.0"], "can be reached from other machines, which needs TLS"),
        (["--memory", "--tls-key", "x"], "tls_certificate and tls_key: give both, or none"),
        (["--memory", "--tokens", "missing.toml"], "missing.toml"),
        (
            ["--memory", "--metrics-port", "0", "--metrics-host", "203.0.113.1"],
            "cannot listen for metrics",
        ),
        (["--memory", "--max-request-bytes", "5"], "max_request_bytes: at least 10000000"),
        (
            ["--memory", "--tls-certificate", "x", "--tls-key", "x", "--port", "8085", "--rest-port", "8085"],
            "port, rest_port: with TLS, gRPC and REST need a port each",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    capsys: pytest.CaptureFixture[str], flags: list[str], problem: str
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        assert main(["serve", "--port", "0", *flags]) == 2
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
        logging.getLogger("inorder").setLevel(logging.NOTSET)
    assert problem in capsys.readouterr().err


def test_a_line_of_the_log_is_one_object() -> None:
    try:
        raise ValueError("what\nhappened")
    except ValueError:
        record = logging.LogRecord("inorder.x", logging.ERROR, "", 0, "%s is\nwrong", ("it",), sys.exc_info())
    record.facts = {"call": "Publish"}
    line = JsonLines().format(record)
    assert "\n" not in line
    read = json.loads(line)
    assert read["message"] == "it is\nwrong"
    assert (read["level"], read["logger"], read["call"]) == ("error", "inorder.x", "Publish")
    assert "ValueError" in read["error"]
    assert read["time"].endswith("+00:00")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_a_line_of_the_log_is_json_whatever_letters_standard_error_knows(encoding: str) -> None:
    program = """if True:
        import logging
        from inorder.cli import logs
        logs.configure("json", "warning")
        logging.getLogger("inorder").warning("\\xe9 and \\u2603")
    """
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert json.loads(ran.stderr)["message"] == "é and ☃"


def test_a_new_token_is_shown_once_and_its_entry_does_not_tell_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new", "checkout", "--publish", "orders", "--publish", "x-*", "--admin", "topics/t"]) == 0
    shown = capsys.readouterr()
    (entry,) = tomllib.loads(shown.out)["tokens"]
    assert entry["publish"] == ["orders", "x-*"]
    assert entry["admin"] == ["topics/t"]
    secret = next(word for word in shown.err.split() if word.startswith("checkout."))
    assert secret not in shown.out
    assert main(["token", "new", "checkout", "--publish", "orders", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["token"].startswith("checkout.")
    assert tomllib.loads(line["entry"])["tokens"][0]["name"] == line["name"] == "checkout"
    assert main(["token", "new", "checkout", "--publish", "orders", "--expires", "2030-12-31T00:00:00Z"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["tokens"][0]["expires"].year == 2030


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["checkout"], "give it a right"),
        (["check out", "--publish", "x"], "name: 1 to 64 letters"),
        (["checkout", "--admin", "x"], "admin: say topics/x or subscriptions/x"),
        (["checkout", "--publish", 'x"]'], "publish: names, in which * is any letters"),
        (["checkout", "--publish", "x", "--expires", "soon"], "--expires: as 2030-12-31T00:00:00Z, not 'soon'"),
        (["checkout", "--publish", "x", "--expires", "2030-12-31"], "a date, a time and a zone"),
        (["checkout", "--publish", "x", "--expires", "2001-12-31T00:00:00Z"], "a time that is still to come"),
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert main(["token", "new", *arguments]) == 2
    shown = capsys.readouterr()
    assert problem in shown.err
    assert not shown.out
