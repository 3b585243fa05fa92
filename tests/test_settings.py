"""Settings are the same in a file, in words and in a mapping; what is wrong is one line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from vit.cli import main
from vit.cli.parsers import parse_train_command, settings_parser
from vit.config import (
    OBJECTIVES,
    AugmentConfig,
    ClassifyConfig,
    Config,
    DataConfig,
    MaskConfig,
    ModelConfig,
    OptimConfig,
    ReconstructConfig,
    RunConfig,
    TrainConfig,
    flat_settings,
    spelled,
)
from vit.errors import ConfigError
from vit.settings import (
    KEYS,
    SECTIONS,
    SYNONYMS,
    TrainCommand,
    build_config,
    given_settings,
    read_config,
    read_yaml,
    to_yaml,
)

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
QUICKSTART = CONFIGS / "quickstart.yaml"
SHIPPED = sorted(CONFIGS.glob("*.yaml"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train_command(*argv: object) -> TrainCommand:
    return parse_train_command([str(argument) for argument in argv])


def parse(*argv: object) -> Config:
    options = settings_parser("train").read([str(argument) for argument in argv])
    return build_config(options.config, given_settings(options))[0]


def config_file(content: str | bytes, name: str = "given.yaml") -> Path:
    path = Path(name)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(*argv: object) -> str:
    """The line with which `vit train` refuses a command line."""
    with pytest.raises(ConfigError) as caught:
        train_command(*argv)
    message = str(caught.value)
    assert len(message) < 500
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


# --- Round trips -------------------------------------------------------------------------------

UNUSUAL = Config(
    DataConfig(source="folder", root="~/my images: #1", name="null", download=False, limit=7),
    AugmentConfig(crop="pad", crop_scale=(1e-5, 1.0), views=2, color_jitter=0.4, shuffle="across"),
    ModelConfig(
        preset="small", image_size=(48, 32), patch_size=(8, 4), embed_dim=96, num_heads=6,
        class_token=False, layer_scale=1e-5, pos_embed="learned", freeze=["W_Q", "encoder.blocks.0"],
    ),
    MaskConfig(kind="block", ratio=1 / 3),
    ReconstructConfig(norm_pix_loss=False, contrast=0.1),
    optim=OptimConfig(blr=3e-7, warmup_epochs=0.1, betas=(0.1, 0.123456789012345678)),
    train=TrainConfig(epochs=3, seed=2**64 - 1, precision="bf16"),
    run=RunConfig(compile="off", track=["tensorboard", "wandb"]),
)  # fmt: skip
CLASSIFY = Config(
    DataConfig(val_size=500, labels=0.1),
    AugmentConfig(rand_augment=2),
    ModelConfig(init="runs/mine: #1", global_pool="token", drop_path=0.1),
    optim=OptimConfig(name="muon", layer_decay=0.65, ema=0.9999),
    train=TrainConfig(objective="classify"),
    classify=ClassifyConfig(0.1, 0.8, 1.0, 0.5, 2.5),
    run=RunConfig(val_every=5),
)
ALL = {"defaults": Config(), "unusual": UNUSUAL, "classify": CLASSIFY}
SHIPPED_CONFIGS = {path.stem: read_config(path) for path in SHIPPED}


@pytest.mark.parametrize("name", ALL | SHIPPED_CONFIGS)
def test_every_setting_goes_through_a_file_words_and_a_mapping(name):
    config = (ALL | SHIPPED_CONFIGS)[name]
    assert parse("--config", config_file(to_yaml(config))) == config
    used = OBJECTIVES[config.train.objective].sections
    unused = {section for info in OBJECTIVES.values() for section in info.sections} - {*used}
    settings = {
        key: value
        for key, value in flat_settings(config.to_dict()).items()
        if key.partition(".")[0] not in unused
    }
    expected = {name: section for name, section in vars(config).items() if name not in unused}
    assert build_config([], settings)[0] == Config(**expected)
    words = [
        f"--{key}={value if isinstance(value, str) else spelled(value)}"
        for key, value in settings.items()
    ]
    assert parse(*words) == Config(**expected)


NAMES = "yes off 3 1e3 1.5e-3 -1e3 .5 0x1 0o17 0100 1:30 12:30:45 2001-01-01 null = {x} !!str"


@pytest.mark.parametrize(
    "name", [*NAMES.split(), "", "a: b # c", "- x", "a,b", "Äpfel 林檎", "two\nlines"]
)
def test_a_file_and_a_word_hold_any_name(name):
    root = name or "."
    config = Config(DataConfig(name=name, root=root))
    for read in (yaml.safe_load, read_yaml):  # others read the file of a run, too
        assert read(to_yaml(config))["data"]["name"] == name
    assert parse("--config", config_file(to_yaml(config))) == config
    assert parse(f"--data.name={name}", f"--data.root={root}") == config


@pytest.mark.parametrize(
    "argv",
    [
        "--print_config --model.freeze W_Q",
        f"--train.epochs 3 --config {QUICKSTART} --print_config",
    ],
    ids=["before", "after"],
)
def test_printed_config_is_the_config(argv, capsys):
    assert main(["train", *argv.split()]) == 0
    printed = capsys.readouterr().out
    given = argv.replace("--print_config", "").split()
    assert train_command("--config", config_file(printed)).config == train_command(*given).config
    assert list(flat_settings(yaml.safe_load(printed))) == KEYS  # it is complete


# --- Who wins ----------------------------------------------------------------------------------


def test_command_line_wins_over_the_later_file_over_the_earlier_over_the_defaults():
    one = config_file("train: {epochs: 3, seed: 1}", "one.yaml")
    two = config_file("train: {epochs: 4}", "two.yaml")
    assert parse("--config", two, "--config", one).train.epochs == 3
    later = parse("--config", one, "--config", two).train
    assert (later.epochs, later.seed) == (4, 1)  # what the later does not name stays
    for argv in ("--config {} --train.epochs 5", "--train.epochs=5 --config={}"):
        train = parse(*argv.format(one).split()).train
        assert (train.epochs, train.seed) == (5, 1)


def test_without_a_file_a_run_has_the_settings_of_the_quickstart():
    assert train_command().config == parse("--config", QUICKSTART) != parse()
    two = config_file("train: {epochs: 4}")
    assert train_command("--config", two).config == Config(train=TrainConfig(epochs=4))
    assert [config.data.fallback for config in SHIPPED_CONFIGS.values()].count("scenes") == 1
    assert SHIPPED_CONFIGS["quickstart"].data.fallback == "scenes"


def test_a_run_folder_is_named_after_its_config_unless_given(monkeypatch, tmp_path):
    path = config_file("train: {epochs: 3}", "mine.yaml")
    assert train_command().out == Path("runs/quickstart")
    assert train_command("--config", path).out == Path("runs/mine")
    assert train_command("--config", path, "--out", "there").out == Path("there")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "small.yaml").write_text("train: {epochs: 3}")
    assert train_command("--config=~/small.yaml").config.train.epochs == 3
    monkeypatch.setenv("HOME", "/home/me")  # a shell leaves the ~ of --out=~/runs
    assert train_command("--out=~/runs").out == Path("/home/me/runs")


def test_configurations_of_the_package_are_found_by_name_wherever_one_is():
    for name in ("quickstart", "quickstart.yaml", "configs/quickstart.yaml"):
        command = train_command("--config", name)
        assert command.config == parse("--config", QUICKSTART)
        assert command.out == Path("runs/quickstart")
    Path("quickstart.yaml").write_text("train: {epochs: 77}")  # a file that is there comes first
    assert train_command("--config", "quickstart.yaml").config.train.epochs == 77


def test_settings_that_somebody_named_are_known():
    path = config_file("model: {depth: 3}")
    given = train_command("--config", path, "--model.patch_size=8").given
    assert given == {"model.depth", "model.patch_size"}


def test_a_mapping_may_hold_what_numpy_and_pathlib_make():
    betas = np.array([0.5, 0.9])
    settings = {"optim.blr": np.float64(1e-3), "train.epochs": np.int64(3), "optim.betas": betas}
    config, given = build_config([], {**settings, "data.root": Path("mine")})
    assert (config.optim.blr, config.optim.betas) == (1e-3, (0.5, 0.9))
    assert (config.train.epochs, config.data.root) == (3, "mine")
    assert given == {*settings, "data.root"}


def test_fewer_epochs_shorten_what_a_file_asks_for_and_say_so():
    finetune = CONFIGS / "finetune_cifar10_tiny_p4.yaml"
    command = train_command("--config", finetune, "--train.epochs=1")
    assert command.config.classify.whole_epochs == 0.25
    assert command.config.optim.warmup_epochs == 1  # which fits
    assert [note.partition(":")[0] for note in command.notes] == ["classify.whole_epochs"]
    path = config_file("optim: {warmup_epochs: 2}")
    command = train_command("--config", path, "--train.epochs", 1)
    assert command.config.optim.warmup_epochs == 0.25
    assert command.notes == ("optim.warmup_epochs: 2 does not fit into train.epochs 1; using 0.25",)
    for argv in ([], ["--train.epochs", 2]):
        assert train_command("--config", path, *argv).notes == ()

    # Another objective has no whole epochs
    command = train_command(
        "--config", finetune, "--train.epochs=1", "--train.objective=reconstruct"
    )
    assert command.notes == ()

    # Both named by the user contradict each other
    named = ["--train.epochs=1", "--classify.whole_epochs=2"]
    assert refusal("--config", finetune, *named).startswith("classify.whole_epochs: ")


# --- Objectives --------------------------------------------------------------------------------


def test_every_objective_can_be_chosen_and_reads_sections_that_exist():
    for name, info in OBJECTIVES.items():
        assert set(info.sections) <= set(SECTIONS)
        assert parse("--train.objective", name).train.objective == name


def test_an_objective_added_after_settings_were_read_can_be_chosen(monkeypatch):
    words = ["--out", "runs/mine", "--train.objective", "teach"]
    assert refusal(*words).startswith("train.objective: 'teach' cannot be used")
    monkeypatch.setitem(OBJECTIVES, "teach", OBJECTIVES["reconstruct"])
    assert train_command(*words).config.train.objective == "teach"


def test_an_override_that_the_objective_does_not_read_is_refused():
    """Even one that repeats the default: it was given. A file may serve several objectives."""
    path = config_file("train: {objective: classify}\nmask: {ratio: 0.5}")
    assert parse("--config", path).mask.ratio == MaskConfig.ratio
    message = refusal("--config", path, "--mask.ratio=0.75")
    assert message == "mask.ratio: cannot be used; it only applies to train.objective reconstruct"
    assert refusal("--config", path, "--reconstruct.contrast", 0).startswith("reconstruct.contrast")
    assert refusal("--classify.mixup=0.8").endswith("it only applies to train.objective classify")


# --- What is refused: one line that names the key, exit code 2 ---------------------------------


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train.epochs", "x", "train.epochs: 'x' cannot be used; it needs a whole number"),
        ("train.epochs", "0", "train.epochs: 0 cannot be used; 1 or more"),
        ("model.preset", "huge", "'huge' cannot be used; it needs one of micro, tiny, small, base"),
        ("augment.crop_scale", "[1]", "it needs [a finite number, a finite number]"),
        ("train.epoch", "3", "train.epoch: no such setting; .*; did you mean train.epochs?"),
        (
            "training.epochs",
            "3",
            "training.epochs: no such setting; .*; did you mean train.epochs?",
        ),
        ("train.epochs.part", "3", "train.epochs.part: no such setting; "),
    ],
)
def test_a_wrong_key_or_value_is_answered_alike_in_a_file_a_word_and_a_mapping(key, value, message):
    section, _, name = key.partition(".")
    pattern = ".*".join(map(re.escape, message.split(".*")))
    in_file = refusal("--config", config_file(f"{section}: {{{name}: {value}}}"))
    on_line = refusal(f"--{key}={value}")
    with pytest.raises(ConfigError) as caught:
        Config.read("quickstart", {key: yaml.safe_load(value)})
    in_mapping = str(caught.value)
    for refused in (on_line, in_mapping):
        assert re.search(pattern, refused)
    if not key.startswith("training"):
        assert re.search(pattern, in_file)
    assert not Path("runs").exists()


@pytest.mark.parametrize(("name", "key"), SYNONYMS.items())
def test_what_other_programs_call_a_setting_is_known(name, key):
    answer = f"; did you mean {key}?"
    assert key in KEYS
    assert refusal(f"--{name}=1").endswith(answer)
    with pytest.raises(ConfigError, match=re.escape(answer)):
        build_config([], {name: 1})
    if f"train.{name}" != key:
        message = f"train.{name}: no such setting; in given.yaml"
        assert refusal("--config", config_file(f"train: {{{name}: 1}}")) == message + answer
    assert refusal("--config", config_file(f"{name}: 1")).endswith(answer)


def test_words_of_yaml_are_words_where_a_choice_of_words_is_meant():
    path = config_file("run: {compile: off}\ndata: {download: no}\noptim: {blr: 1e-3}")
    config = parse("--config", path)
    assert (config.run.compile, config.data.download, config.optim.blr) == ("off", False, 1e-3)
    assert parse("--run.compile", "on").run.compile == "on"
    assert build_config([], {"run.compile": "off"})[0].run.compile == "off"


def test_plain_values_are_what_they_look_like():
    """YAML 1.1 reads other values: 45045, False, 64 and a date."""
    for name in ("12:30:45", "off", "2020-01-01", "6_4", "1e", "y"):
        path = config_file(f"data: {{name: {name}, limit: 0100}}")
        config = parse("--config", path)
        assert (config.data.name, config.data.limit) == (name, 100)
        assert parse("--data.name", name, "--data.limit", "0100") == config


LONG = {
    "400 digits": "9" * 400,
    "4,400 digits": "9" * 4400,
    "a text": "x" * 5000,
    "words": f"'{'x ' * 3000}'",
    "a list": f"[{'1, ' * 3000}1]",
    "a mapping": f"{{a: {'x' * 5000}}}",
    "deep": "[" * 600,  # more than Python calls within calls
}


@pytest.mark.parametrize("key", ["augment.flip", "train.epochs", "data.download", "mask.kind"])
@pytest.mark.parametrize("value", LONG.values(), ids=LONG)
def test_a_value_of_any_length_is_one_short_line(key, value):
    section, name = key.split(".")
    for argv in (
        ["--config", config_file(f"{section}: {{{name}: {value}}}")],
        [f"--{key}", value],
    ):
        message = refusal(*argv)
        assert max(map(len, message.split())) <= 200


@pytest.mark.parametrize("word", ["--resu", "--conf", "more", "--config", "--out", "-x"])
def test_shortened_unknown_and_valueless_options_are_refused(word):
    """An abbreviation would pass the checks of --resume by."""
    assert word in refusal(word)


def test_an_empty_run_folder_is_refused():
    assert "--out: '' cannot be used" in refusal("--out=")


BAD_FILES = {
    "train: {epoch: 1}": "train.epoch: no such setting; in given.yaml; did you mean train.epochs",
    "training: {epochs: 1}": "training: no such setting; in given.yaml; did you mean train",
    "model: {train: {epochs: 1}}": "model.train: no such setting",
    "train.epochs: 2": "train.epochs: settings stand in sections, as `train: {epochs: 3}`; in given",
    "train: 3": "train: 3 in given.yaml is no section",
    "train:": "train: None in given.yaml is no section",
    "train: {epochs: 3}\noptim: {}\ntrain: {seed: 5}": "train stands twice, in lines 1 and 3",
    "train: {epochs: 3, epochs: 3}": "epochs stands twice, in lines 1 and 1",
    "data: {root: !mine here}": "could not determine a constructor for the tag",
    "data: {root: !!python/object/new:os.system [touch executed]}": "could not determine a",
    "".join(f"{' ' * i}a:\n" for i in range(1000)): "given.yaml",
    **dict.fromkeys(["- 1", "text", "", b"\xff\xfe\x00", "{", "a: {}\n---\nb: {}"], "given.yaml"),
}


@pytest.mark.parametrize("content", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_file_that_holds_no_settings_in_sections_is_refused(content):
    first = config_file("data: {limit: 3}", "first.yaml")
    assert BAD_FILES[content] in refusal("--config", first, "--config", config_file(content))
    assert not Path("executed").exists()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="a system without it")
def test_a_file_may_be_a_pipe():
    """As of the shell's `--config <(...)`, which can be read once."""
    reader, writer = os.pipe()
    os.write(writer, b"train: {seed: 3}\noptim: {warmup_epochs: 5}")
    os.close(writer)
    pipe = f"/dev/fd/{reader}"
    assert "gives the run no name; add --out FOLDER" in refusal("--config", pipe)
    command = train_command("--config", pipe, "--train.epochs", 2, "--out", "mine")
    os.close(reader)
    assert (command.config.train.seed, command.config.train.epochs) == (3, 2)
    assert command.config.optim.warmup_epochs == 0.5


def test_missing_files_and_folders_are_refused():
    Path("folder").mkdir()
    assert "missing.yaml: No such file" in refusal("--config", "missing.yaml")
    assert "did you mean quickstart?" in refusal("--config", "quikstart")
    assert "folder: Is a directory" in refusal("--config", "folder")


def test_a_name_that_yaml_cannot_hold_is_refused():
    """The run's config.yaml could not be read again."""
    message = r"^data\.root: 'ph\\udcf6tos' cannot be used; .* rename it$"
    with pytest.raises(ConfigError, match=message):
        to_yaml(Config(DataConfig(root="ph\udcf6tos")))
