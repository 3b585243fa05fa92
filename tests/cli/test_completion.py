"""`vit --print-completion` in a shell: what bash offers for words that are begun."""

from __future__ import annotations

import contextlib
import io
import subprocess

import pytest

from vit.cli import COMMANDS, main

OFFER = 'complete -p vit; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_vit; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def offered(tmp_path_factory):
    """`offered(*words)`: what bash completes the last word to."""
    place = tmp_path_factory.mktemp("completion")
    (place / "results").mkdir()
    with contextlib.redirect_stdout(io.StringIO()) as script:
        assert main(["--print-completion", "bash"]) == 0
    (place / "vit.bash").write_text(script.getvalue() + OFFER)

    def offered(*words):
        done = subprocess.run(["bash", "vit.bash", *words], cwd=place, capture_output=True, text=True, check=True)
        registered, *found = done.stdout.split("\n")
        assert registered == "complete -o bashdefault -o default -F _shtab_vit vit"  # default: files too
        assert done.stderr == ""
        return [word for word in found if word]

    return offered


@pytest.mark.slow  # to describe every command to a shell takes seconds
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("eva", "evaluate"),
        ("evaluate --met", "--method"),
        ("evaluate --method ", "all knn linear reconstruction head"),
        ("evaluate RUN cifar10 --method k", "knn"),
        ("evaluate RUN ci", "cifar10 cifar100"),
        ("evaluate vit-tiny-p4-cifar10-", "vit-tiny-p4-cifar10-finetuned"),
        ("train --data.so", "--data.source"),
        ("train --data.source c", "cifar10 cifar100"),
        ("train --data s", "scenes"),
        ("train --res", "--resume"),
        ("data scenes --js", "--json"),
        ("checkpoint ins", "inspect"),
        ("checkpoint convert RUN --to t", "timm"),
        ("attention RUN photo.jpg --out r", "results"),
    ],
)
def test_bash_offers_commands_options_and_values(line, found, offered):
    assert offered("vit", *line.split(" ")) == found.split()


@pytest.mark.slow
def test_bash_offers_every_command(offered):
    assert set(COMMANDS) <= set(offered("vit", ""))


@pytest.mark.parametrize("shell", ["", "fish", "bash zsh"])
def test_another_shell_is_refused(shell, refused):
    error = refused("--print-completion", *shell.split())
    assert error == f"vit: error: --print-completion: {shell!r} cannot be used; bash or zsh\n"


def test_zsh_has_a_script_too(capsys, monkeypatch):
    monkeypatch.setattr("vit.cli.COMMANDS", {"models": COMMANDS["models"]})  # of all it takes seconds
    assert main(["--print-completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef vit\n")
