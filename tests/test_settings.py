"""Settings are the same in a file, in words and in a mapping; what is wrong is one line."""

from pathlib import Path

import pytest
import yaml
from forks import ROOT

from vit.cli import parse as parse_command
from vit.cli.parsers import command_of
from vit.commandline import Parser, given_settings
from vit.config import (
    AugmentConfig,
    Config,
    DataConfig,
    MaskConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    flat_settings,
    read_settings,
    spelled,
    unread_sections,
)
from vit.errors import ConfigError
from vit.runs import TrainCommand

CONFIGS = ROOT / "configs"
QUICKSTART = CONFIGS / "quickstart.yaml"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train_command(*argv: object) -> TrainCommand:
    return command_of(parse_command(["train", *map(str, argv)])[1])


def parse(*argv: object) -> Config:
    options = Parser("train").read([str(argument) for argument in argv])
    return Config.from_settings(read_settings(*options.config), given_settings(options))


def config_file(content: str | bytes, name: str = "given.yaml") -> Path:
    path = Path(name)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(*argv: object) -> str:
    """The line with which `vit train` refuses a command line."""
    with pytest.raises(ConfigError) as caught:
        train_command(*argv)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- Round trips -------------------------------------------------------------------------------

UNUSUAL = Config(
    data=DataConfig(root="~/my images: #1", name="yes", download=False),
    augment=AugmentConfig(crop_scale=(1e-5, 1.0)),
    model=ModelConfig(
        image_size=(48, 32), embed_dim=96, layer_scale=1e-5, freeze=["W_Q", "encoder.blocks.0"]
    ),
    mask=MaskConfig(ratio=1 / 3),
    optim=OptimConfig(blr=3e-7, betas=(0.1, 0.123456789012345678)),
    train=TrainConfig(seed=2**64 - 1),
    run=RunConfig(compile="off", track=["tensorboard", "wandb"]),
)
ALL = {"defaults": Config(), "unusual": UNUSUAL} | {
    path.stem: Config.read(path) for path in sorted(CONFIGS.glob("*.yaml"))
}


@pytest.mark.parametrize("name", ALL)
def test_every_setting_goes_through_a_file_words_and_a_mapping(name):
    config = ALL[name]
    assert parse("--config", config_file(config.to_yaml())) == config

    # Words are those of its objective alone
    unread = unread_sections(config.train.objective)
    settings = flat_settings(config.to_dict())
    settings = {key: settings[key] for key in settings if key.partition(".")[0] not in unread}
    assert Config.from_settings({}, settings) == config
    words = [f"--{key}={spelled(value) if value != '' else ''}" for key, value in settings.items()]
    assert parse(*words) == config


NAMES = "yes off 3 1e3 -1e3 .5 0x1 0100 12:30:45 2001-01-01 = {x} !!str"


@pytest.mark.parametrize(
    "name", [*NAMES.split(), "", "a: b # c", "- x", "Äpfel 林檎", "two\nlines"]
)
def test_a_file_and_a_word_hold_any_name(name):
    root = name or "."
    config = Config(data=DataConfig(name=name, root=root))
    assert yaml.safe_load(config.to_yaml())["data"]["name"] == name  # others read it, too
    assert parse("--config", config_file(config.to_yaml())) == config
    assert parse(f"--data.name={name}", f"--data.root={root}") == config


# --- Who wins ----------------------------------------------------------------------------------


def test_command_line_wins_over_the_later_file_over_the_earlier_over_the_defaults():
    one = config_file("train: {epochs: 3, seed: 1}", "one.yaml")
    two = config_file("train: {epochs: 4}", "two.yaml")
    assert parse("--config", two, "--config", one).train.epochs == 3
    later = parse("--config", one, "--config", two).train
    assert (later.epochs, later.seed) == (4, 1)  # what the later does not name stays
    train = parse("--train.epochs=5", f"--config={one}").train
    assert (train.epochs, train.seed) == (5, 1)


def test_settings_win_over_the_data_that_is_named():
    mine = config_file("data: {source: folder, root: mine}")
    for words, root in ((), "data"), (("--data.root", "there"), "there"):
        data = parse("--config", mine, "--data", "cifar10", *words).data
        assert (data.source, data.root) == ("cifar10", root)


def test_configurations_of_the_package_are_found_by_name_wherever_one_is():
    for words in ((), ("--config", "quickstart"), ("--config", "configs/quickstart.yaml")):
        command = train_command(*words)
        assert command.config == parse("--config", QUICKSTART) != parse()
        assert command.out == Path("runs/quickstart")
    Path("quickstart.yaml").write_text("train: {epochs: 77}")  # a file that is there comes first
    assert train_command("--config", "quickstart.yaml").config.train.epochs == 77


# --- Objectives --------------------------------------------------------------------------------


def test_an_override_that_the_objective_does_not_read_is_refused():
    """Even one that repeats the default: it was given. A file may serve several objectives."""
    path = config_file("train: {objective: classify}\nmask: {ratio: 0.5}")
    assert parse("--config", path).mask == MaskConfig()
    assert refusal("--config", path, "--mask.ratio=0.75").startswith("mask.ratio: cannot be used")
    assert refusal("--classify.mixup=0.8").startswith("classify.mixup: ")


# --- What is refused: one line that names the key, exit code 2 ---------------------------------


def test_a_wrong_value_is_answered_alike_in_a_file_a_word_and_a_mapping():
    with pytest.raises(ConfigError) as caught:
        Config.read("quickstart", {"train.epochs": "x"})
    assert str(caught.value).startswith("train.epochs: 'x' cannot be used; input should be a valid")
    assert refusal("--config", config_file("train: {epochs: x}")) == str(caught.value)
    assert refusal("--train.epochs=x") == str(caught.value)
    assert not Path("runs").exists()


def test_null_on_the_command_line_leaves_a_setting_to_its_preset():
    path = config_file("model: {depth: 3, layer_scale: 0.1}\ntrain:  # nothing")
    nulls = ["--model.depth=null", "--model.layer_scale=null"]
    config = parse("--config", path, *nulls, "--train.epochs=3")
    assert (config.model.depth, config.model.layer_scale) == (None, None)


BAD_FILES = {
    "train: {epoch: 1}": "train.epoch: no such setting; did you mean epochs?",
    "train: 3": "train: 3 cannot be used",
    "data: {root: !!python/object/new:os.system [touch executed]}": "could not determine a",
    **dict.fromkeys(["- 1", "", b"\xff\xfe\x00", "{"], "given.yaml"),
}


@pytest.mark.parametrize("content", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_file_that_holds_no_settings_in_sections_is_refused(content):
    first = config_file("data: {limit: 3}", "first.yaml")
    assert BAD_FILES[content] in refusal("--config", first, "--config", config_file(content))
    assert not Path("executed").exists()
