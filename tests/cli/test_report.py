"""`vit report` writes its page into the run, or where it is told to."""

import yaml

from vit.config import Config


def test_page_stands_in_the_run_or_where_it_is_asked_for(tmp_path, called):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(Config().to_dict()))  # and nothing else
    for line, out in (("", tmp_path / "report.html"), ("--out", tmp_path / "new" / "page.html")):
        _, said, _ = called("report", tmp_path, line, out if line else "")
        assert said == f"report: {out}, {out.stat().st_size:,} bytes\n"
        assert "<h1" in out.read_text(encoding="utf-8")
