"""`python -m studies`: what it lists, what it refuses, and the command that each study records."""

import pytest

from studies import STUDIES, running
from studies.__main__ import main

REFUSED = [
    ("tyres", "'tyres' is not a study; name one first: all, "),
    ("one-hot --checkpoint mae --model.patch_size=2", "model.patch_size: the checkpoint has its"),
    ("one-hot --train.seed 7", "train.seed: a model is trained for each of --seeds"),
]


@pytest.mark.parametrize(("line", "said"), REFUSED)
def test_what_cannot_be_done_is_refused_in_one_line(line, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("python -m studies: error: ")
    assert said in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_of_all_studies_each_records_the_command_that_repeats_it(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(running, "run_study", lambda *given: commands.append(given[-1]) or "")
    monkeypatch.chdir(tmp_path)
    assert main(["all", "--quick", "--train.epochs", "2", "--out", "all"]) == 0
    assert commands == [
        f"python -m studies {name} --quick --train.epochs 2 --out all" for name in STUDIES
    ]
