"""`vit report` writes its page into the run, or where it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vit.cli import main
from vit.config import Config


@pytest.fixture
def begun(tmp_path) -> Path:
    """A run that has settings and nothing else yet."""
    folder = tmp_path / "a run"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(Config().to_dict()))
    return folder


def test_page_stands_in_the_run_or_where_it_is_asked_for(begun, capsys):
    page = begun / "new" / "page.html"
    for argv, out in (([], begun / "report.html"), (["--out", str(page)], page)):
        assert main(["report", str(begun), *argv]) == 0
        assert capsys.readouterr().out == f"report: {out}, {out.stat().st_size:,} bytes\n"
        assert "<h1" in out.read_text(encoding="utf-8")
