"""`inorder pipeline`: what the command line says beside the file, without Spark."""

from pathlib import Path

import pytest

from inorder.cli import main
from inorder.cli.commands import parser
from inorder.cli.pipeline import trigger_of
from inorder.errors import InvalidArgument
from inorder.spark.pipelines import Pipeline, read_pipeline
from inorder.spark.pipelines.definition import Trigger

FILE = """
name = "orders"
checkpoint = "./checkpoint"
source = { format = "inorder", url = "./data", topic = "orders" }
sink = { format = "console" }
trigger = { processing_time = "1 minute" }
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "pipeline.toml").write_text(FILE)
    return read_pipeline(tmp_path)


def test_tables_on_the_console_do_not_stand_among_lines_of_json(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "run", str(pipeline.folder), "--json"]) == 2
    assert "inorder: --json: [sink] format = 'console' prints its tables among the lines" in capsys.readouterr().err


def asked(pipeline: Pipeline, *flags: str) -> Trigger:
    return trigger_of(parser("pipeline").parse_args(["pipeline", "run", str(pipeline.folder), *flags]), pipeline)


def test_the_command_line_goes_before_the_file(pipeline: Pipeline) -> None:
    assert asked(pipeline) == Trigger(processing_time="1 minute")
    assert asked(pipeline, "--available-now") == Trigger(available_now=True)
    assert asked(pipeline, "--processing-time", "10 seconds") == Trigger(processing_time="10 seconds")


def test_a_number_is_one_of_seconds_as_in_the_file(pipeline: Pipeline) -> None:
    assert asked(pipeline, "--processing-time", "1.5").for_spark == {"processingTime": "1500 milliseconds"}


@pytest.mark.parametrize("text", ["0", "nan", "soon", ""])
def test_a_time_that_is_none_is_refused(pipeline: Pipeline, text: str) -> None:
    with pytest.raises(InvalidArgument, match="--processing-time: seconds above 0, or text such as '30 seconds'"):
        asked(pipeline, "--processing-time", text)
