"""A run folder is read by one reader, which names a file that is damaged."""

import pytest

from vit.errors import RunError, UserError
from vit.report.record import read_run


@pytest.mark.parametrize(("file", "content"), [("config.yaml", "- 1"), ("summary.json", "[1]")])
def test_a_damaged_file_is_named(tmp_path, file, content):
    with pytest.raises(RunError, match="is not a run"):
        read_run(tmp_path)
    (tmp_path / "config.yaml").write_text("{}")
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=str(tmp_path / file)):
        read_run(tmp_path)
