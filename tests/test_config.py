"""Settings: what is read from files and the command line, who wins, and that nothing wrong passes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vit.config import (
    OBJECTIVES,
    AugmentConfig,
    ClassifyConfig,
    Config,
    DataConfig,
    DecoderConfig,
    MaskConfig,
    ModelConfig,
    OptimConfig,
    ReconstructConfig,
    RunConfig,
    TrainConfig,
    ViTConfig,
)
from vit.errors import ConfigError
from vit.settings import (
    SECTIONS,
    SYNONYMS,
    TrainCommand,
    build_config,
    keys_of,
    parse_train_command,
    read_file,
    read_words,
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
    return build_config(*read_words([str(argument) for argument in argv]))[0]


def config_file(content: str | bytes, name: str = "given.yaml") -> Path:
    path = Path(name)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


RAW = ("NestedArg", "<class", "Union", "Expected", "typing")


def refusal(*argv: object, read: Callable[..., object] = parse) -> str:
    """The message with which `argv` is refused: one line a terminal can show, without the words of a library."""
    with pytest.raises(ConfigError) as caught:
        read(*argv)
    message = str(caught.value)
    assert len(message) < 500
    assert not [word for word in RAW if word in message]
    return message


# --- the files that come with the project ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_config_is_read_and_only_the_quickstart_falls_back(path):
    config = parse("--config", path)
    assert config.data.fallback == ("scenes" if path == QUICKSTART else "stop")
    assert parse("--config", config_file(to_yaml(config))) == config


# --- who wins --------------------------------------------------------------------------------------------------------


def test_command_line_wins_over_the_later_file_over_the_earlier_over_the_defaults():
    one = config_file("train: {epochs: 3, seed: 1}", "one.yaml")
    two = config_file("train: {epochs: 4}", "two.yaml")
    assert parse("--config", two, "--config", one).train.epochs == 3
    later = parse("--config", one, "--config", two).train
    assert (later.epochs, later.seed) == (4, 1)  # what the later does not name stays
    for argv in ("--config {} --train.epochs 5", "--train.epochs=5 --config={}"):
        train = parse(*argv.format(one).split()).train
        assert (train.epochs, train.seed) == (5, 1)
    assert train_command().config == parse("--config", QUICKSTART) != parse()
    assert train_command("--config", two).config == Config(
        train=TrainConfig(epochs=4)
    )  # nothing of the quickstart's


def test_run_folder_is_named_after_the_config_unless_given():
    path = config_file("train: {epochs: 3}", "mine.yaml")
    assert train_command().out == Path("runs/quickstart")
    assert train_command("--config", path).out == Path("runs/mine")
    assert train_command("--config", path, "--out", "there").out == Path("there")


# --- round trips -----------------------------------------------------------------------------------------------------

UNUSUAL = Config(
    DataConfig(source="folder", root="~/my images: #1", name="null", download=False, limit=7),
    AugmentConfig(crop="pad", crop_scale=(1e-5, 1.0), views=2, color_jitter=0.4, shuffle="across"),
    ModelConfig(
        preset="small", image_size=(48, 32), patch_size=(8, 4), embed_dim=96, num_heads=6, class_token=False,
        layer_scale=1e-5, pos_embed="learned", freeze=["W_Q", "encoder.blocks.0"],
    ),
    MaskConfig(kind="block", ratio=1 / 3),
    ReconstructConfig(norm_pix_loss=False, contrast=0.1),
    optim=OptimConfig(blr=3e-7, warmup_epochs=0.1, betas=(0.1, 0.123456789012345678)),
    train=TrainConfig(epochs=3, seed=2**64 - 1, precision="bf16"),
    run=RunConfig(track=["tensorboard", "wandb"]),
)  # fmt: skip


CLASSIFY = Config(
    DataConfig(val_size=500, labels=0.1, subset_seed=3),
    AugmentConfig(erasing=0.25),
    ModelConfig(init="runs/mine: #1", global_pool="token", drop_path=0.1),
    optim=OptimConfig(name="muon", layer_decay=0.65, ema=0.9999),
    train=TrainConfig(objective="classify"),
    classify=ClassifyConfig(0.1, 0.8, 1.0, 0.5, 2.5),
    run=RunConfig(val_every=5),
)


@pytest.mark.parametrize(
    "config", [Config(), UNUSUAL, CLASSIFY], ids=["defaults", "unusual", "classify"]
)
def test_yaml_holds_all_of_a_config(config):
    assert parse("--config", config_file(to_yaml(config))) == config


NAMES = "yes 3 1e3 1.5e-3 -1e3 .5 0x1 1:30 2001-01-01 null {x} !!str"


@pytest.mark.parametrize(
    "name", [*NAMES.split(), "", "a: b # c", "- x", "Äpfel 林檎", "two\nlines"]
)
def test_yaml_holds_any_name(name):
    config = Config(DataConfig(name=name, root=name))
    assert parse("--config", config_file(to_yaml(config))) == config


def test_a_name_that_yaml_cannot_hold_is_refused():
    """The run's config.yaml could not be read again."""
    with pytest.raises(
        ConfigError, match=r"^data\.root: 'ph\\udcf6tos' cannot be used; .* rename it$"
    ):
        to_yaml(Config(DataConfig(root="ph\udcf6tos")))


@pytest.mark.parametrize(
    "argv",
    [
        "--print_config --model.freeze [W_Q]",
        f"--train.epochs 3 --config {QUICKSTART} --print_config",
    ],
    ids=["before", "after"],
)
def test_printed_config_is_the_config(argv, capsys):
    with pytest.raises(SystemExit) as end:
        train_command(*argv.split())
    assert end.value.code in (0, None)
    printed = capsys.readouterr().out
    given = argv.replace("--print_config", "").split()
    assert train_command("--config", config_file(printed)).config == train_command(*given).config
    assert list(read_file(Path("given.yaml"))) == keys_of(SECTIONS)  # it is complete


# --- sections and objectives -----------------------------------------------------------------------------------------


def test_every_objective_can_be_chosen_and_reads_sections_that_exist():
    for name, info in OBJECTIVES.items():
        assert set(info.sections) <= set(SECTIONS)
        assert parse("--train.objective", name).train.objective == name


def test_an_objective_added_after_settings_were_read_can_be_chosen(monkeypatch):
    asked = ["--out", "runs/mine", "--train.objective", "teach"]
    with pytest.raises(ConfigError, match=r"train\.objective.*teach"):
        parse_train_command(asked)
    monkeypatch.setitem(OBJECTIVES, "teach", OBJECTIVES["reconstruct"])
    assert parse_train_command(asked).config.train.objective == "teach"
    assert TrainConfig(objective="teach").objective == "teach"
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="objective"):
        TrainConfig(objective="teach")


def test_a_resumed_run_may_compute_elsewhere_and_find_its_data_elsewhere_and_nothing_else():
    deciding = {key.partition(".")[0] for key in Config().deciding()}
    assert deciding == set(SECTIONS) - {"data", "run"}
    moved = dataclasses.replace(
        UNUSUAL,
        data=DataConfig(),
        run=RunConfig(device="cpu", threads=1, grad_accum_steps=1, save_every=7),
    )
    assert list(moved.conflicts(UNUSUAL.to_dict())) == []
    assert [
        key for key, _, _ in Config(mask=MaskConfig(ratio=0.5)).conflicts(Config().to_dict())
    ] == ["mask.ratio"]


# --- what is refused -------------------------------------------------------------------------------------------------

# settings; the key that is named, if not that of the only one; what the message says is allowed: a value of every kind
# and limit, and of every setting that follows from another
BAD_VALUES = """
train.epochs=x | 'x' cannot be used; it needs int
train.epochs=1.5 | int
train.epochs=null | None
train.seed=1e3 | int
optim.blr=fast | float
data.source=x | 'x' cannot be used; it needs one of cifar10, cifar100, folder, scenes, dataset
data.download=x | 'x' cannot be used; it needs bool
model.image_size=x | 'x' cannot be used; it needs int | tuple[int, int]
augment.crop_scale=x | 'x' cannot be used; it needs tuple[float, float]
run.track=x | 'x' cannot be used; it needs list[Literal['tensorboard', 'wandb', 'mlflow']]
model.preset=huge | tiny
train.objective=mae | one of reconstruct, classify
model.patch_size=[4,4,4] | int
augment.crop_scale=[0.1,0.5,0.9] | tuple[float, float]
optim.blr=.nan | finite
optim.blr=nan | float
optim.blr=1e400 | finite
augment.crop_scale=[.nan,1.0] | finite
train.epochs=0 | 1 or more
train.seed=18446744073709551616 | 2**64
augment.flip=1.1 | 0 to 1
augment.crop_scale=[0.0,1.0] | 0 < low <= high <= 1
model.image_size=[32,-32] | positive
model.image_size=99999999999999999999 | below 2**64
model.image_size=[32,100000] | at most 16,384
model.embed_dim=3000000 | at most 65,536
model.patch_size=5 | 1, 2, 4, 8, 16, 32
model.patch_size=[4,5] | width
model.embed_dim=100 | num_heads
model.decoder_dim=30 | decoder_heads
model.drop_path=1 | below 1
mask.ratio=0 | above 0
mask.ratio=1 | below 1
optim.betas=[0.9,1.0] | below 1
optim.layer_decay=1.1 | at most 1
run.val_every=1 | data.val_size
data.labels=0.1 | data.limit
reconstruct.contrast=0.1 | augment.views | two views
model.embed_dim=6 model.num_heads=3 | model.embed_dim | multiple of 4
model.decoder_dim=30 model.decoder_heads=2 | model.decoder_dim | multiple of 4
model.image_size=[32,48] model.patch_size=[32,48] | model.patch_size | 2 patches
train.epochs=2 optim.warmup_epochs=2.5 | optim.warmup_epochs | which is 2
train.batch_size=2 run.grad_accum_steps=3 | run.grad_accum_steps | which is 2
model.class_token=false model.global_pool=token | model.global_pool | model.class_token
run.grad_accum_steps=2 reconstruct.contrast=0.1 augment.views=2 | reconstruct.contrast | run.grad_accum_steps
train.objective=classify augment.views=2 | augment.views | pretraining
train.objective=classify classify.whole_epochs=1 | classify.whole_epochs | drop_patches
train.objective=classify train.epochs=3 classify.drop_patches=0.5 classify.whole_epochs=3 | whole_epochs | below train.epochs
train.epochs=3 run.val_every=4 data.val_size=5 | run.val_every | which is 3
""".strip().splitlines()
# at the limits themselves
GOOD_VALUES = """
model.embed_dim=6 model.num_heads=3 model.pos_embed=learned
model.image_size=8 model.patch_size=[8,4]
train.epochs=2 optim.warmup_epochs=2
train.batch_size=2 run.grad_accum_steps=2
mask.ratio=0.999
run.grad_accum_steps=1 reconstruct.contrast=0.01 augment.views=2
run.grad_accum_steps=2 augment.views=2
train.objective=classify data.labels=0.001 classify.drop_patches=0.99
train.epochs=3 run.val_every=3 data.val_size=1
optim.blr=1
""".strip().splitlines()


def file_of(settings: str) -> Path:
    """A configuration with `settings`, each as on the command line."""
    sections: dict[str, list[str]] = {}
    for key, _, value in (setting.partition("=") for setting in settings.split()):
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name}: {value}")
    return config_file(
        "\n".join(f"{section}: {{{', '.join(values)}}}" for section, values in sections.items())
    )


@pytest.mark.parametrize("case", BAD_VALUES)
def test_bad_value_is_refused_by_its_key_and_what_is_allowed(case):
    settings, *key, allowed = re.split(r" \| (?!tuple\[int)", case)
    in_file = refusal("--config", file_of(settings))
    words = [f"--{setting}" for setting in settings.split()]
    on_line = refusal("--config", config_file("train: {seed: 3}", "other.yaml"), *words)
    for message in (in_file, on_line):
        assert (key or settings.split("="))[0] in message
        assert allowed in message


@pytest.mark.parametrize("settings", GOOD_VALUES)
def test_limits_themselves_are_allowed(settings):
    assert parse("--config", file_of(settings)) != Config()


def test_an_override_that_the_objective_does_not_read_is_refused():
    """Even one that repeats the default: it was given. A file may serve several objectives."""
    path = config_file("train: {objective: classify}\nmask: {ratio: 0.5}")
    assert parse("--config", path).mask.ratio == 0.5
    for settings, named in (
        ("--mask.ratio=0.75", "mask.ratio"),
        ("--reconstruct.contrast 0", "reconstruct.contrast"),
    ):
        message = refusal("--config", path, *settings.split())
        assert message == f"{named}: cannot be used; it only applies to train.objective reconstruct"
    assert refusal("--classify.mixup=0.8").endswith("it only applies to train.objective classify")


def test_what_other_programs_call_a_setting_is_known():
    for name, key in SYNONYMS.items():
        assert key in keys_of(SECTIONS)
        assert refusal(f"--{name}=1").endswith(f"; did you mean {key}?")
        if f"train.{name}" != key:
            in_file = refusal("--config", config_file(f"train: {{{name}: 1}}"))
            assert (
                in_file
                == f"train.{name}: no such setting; found in given.yaml; did you mean {key}?"
            )


def test_words_of_yaml_are_words_where_words_are_meant():
    path = config_file("run: {compile: off}\ndata: {root: yes, download: no}\noptim: {blr: 1e-3}")
    config = parse("--config", path)
    assert (config.run.compile, config.data.root, config.data.download, config.optim.blr) == (
        "off",
        "yes",
        False,
        1e-3,
    )
    assert parse("--run.compile", "off").run.compile == "off"


def test_text_setting_takes_only_text_from_a_file():
    for value in ("3", "1.5", "true", "[a]"):
        message = refusal("--config", config_file(f"data: {{root: {value}}}"))
        assert "data.root" in message
        assert "str" in message
        assert (
            parse(f"--data.root={value}").data.root == value
        )  # on the command line everything is text


def test_unknown_shortened_and_valueless_options_are_refused():
    """An abbreviation would pass the checks of files and of --resume by."""
    for argv in (
        "--train.epoch 1",
        "--train.epo=1",
        "--resu",
        "--conf x.yaml",
        "more",
        "--config",
        "--out",
    ):
        assert re.split("[ =]", argv.removeprefix("--"))[0] in refusal(
            *argv.split(), read=train_command
        )
    assert refusal("--train.epochs.part=1", read=train_command).startswith(
        "train.epochs.part: no such setting"
    )


def test_every_setting_of_the_architecture_arrives_in_it_and_the_data_gives_the_rest():
    settings = dict(
        image_size=(8, 12), patch_size=(4, 2), embed_dim=16, depth=3, num_heads=2, mlp_ratio=3.0, class_token=False,
        registers=2, pos_embed="learned", qkv="identity", qkv_bias=False, layer_scale=0.1,
        drop_path=0.2,
    )  # fmt: skip
    model = ModelConfig(**settings)
    assert model.vit_config(channels=1, num_classes=5) == ViTConfig(
        **settings, channels=1, num_classes=5
    )
    assert model.vit_config() == ViTConfig(**settings)
    names = {field.name for field in dataclasses.fields(ViTConfig)} & {
        field.name for field in dataclasses.fields(ModelConfig)
    }
    assert {
        name for name in names if getattr(ViTConfig(**settings), name) == getattr(ModelConfig, name)
    } == {"global_pool"}
    assert ModelConfig(image_size=8, patch_size=2).vit_config() == ViTConfig(
        (8, 8), (2, 2), pos_embed="sincos"
    )
    small = ModelConfig(preset="small", decoder_depth=3).decoder_config()
    assert small.complete(model.vit_config()) == DecoderConfig(
        256, 3, 8, 3.0, "identity", False, False, "gelu", 1e-6
    )


# content of a file; what the message says of it
BAD_FILES = {
    "train: {epoch: 1}": "^train.epoch: no such setting; found in given.yaml; did you mean train.epochs",
    "training: {epochs: 1}": "^training: no such setting; found in given.yaml; did you mean train",
    "model: {train: {epochs: 1}}": "^model.train: no such setting",
    "train.epochs: 2": "^train.epochs: must stand in its section",
    "1: {a: 1}": "1",
    "".join(f"{' ' * i}a:\n" for i in range(1000)): "given.yaml",
    "train: {epochs: 1}\nmask: {ratio: 0.5}\ntrain: {seed: 2}": "train is set twice.* line 3",
    "train:\n  epochs: 1\n  seed: 2\n  epochs: 1\n": "epochs is set twice.* line 4",
    "data: {root: &a {root: *a}}": "^data.root: ",
    **dict.fromkeys(
        ["- 1", "text", "", "null", b"\xff\xfe\x00", "{", "a: b: c", "a: {}\n---\nb: {}"],
        "given.yaml",
    ),
    **dict.fromkeys(["train: 3", "train: [1]", "train: null", "train: other.yaml"], "^train: "),
}


@pytest.mark.parametrize("content", BAD_FILES, ids=range(len(BAD_FILES)))
def test_file_that_holds_no_settings_in_sections_or_a_key_twice_is_refused(content):
    config_file("epochs: 3", "other.yaml")
    first = config_file("data: {limit: 3}", "first.yaml")
    assert re.search(
        BAD_FILES[content], refusal("--config", first, "--config", config_file(content))
    )


@pytest.mark.parametrize(
    "content",
    [
        "!!python/object/apply:pathlib.Path.touch [executed]",
        "train: {epochs: !!python/object/apply:pathlib.Path.touch [executed]}",
        "data: {root: !!python/object/new:os.system [touch executed]}",
        "augment: {crop_scale: !!python/tuple [0.5, 1.0]}",
        "data: {root: !mine here}",
    ],
)
def test_tags_are_refused_and_not_executed(content):
    assert "could not determine a constructor for the tag" in refusal(
        "--config", config_file(content)
    )
    on_line = "!!python/object/apply:pathlib.Path.touch [executed]"
    assert parse(f"--data.root={on_line}").data.root == on_line
    assert not Path("executed").exists()


def test_missing_file_and_folder_are_refused():
    Path("folder").mkdir()
    assert "missing.yaml: No such file" in refusal("--config", "missing.yaml")
    assert "folder: Is a directory" in refusal("--config", "folder")


def test_a_run_folder_may_be_in_the_users_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")  # a shell leaves the ~ of --out=~/runs
    assert parse_train_command(["--out=~/runs"]).out == Path("/home/me/runs")


def test_sections_check_themselves_without_a_parser():
    """A configuration made in Python is held to the same rules, and None stands only where it means something."""
    bad = {float: [float("nan"), float("inf"), float("-inf")], int: [-1]}
    for section, kind in SECTIONS.items():
        for field in dataclasses.fields(kind):
            for value in [
                *bad.get(type(field.default), []),
                *([] if field.default is None else [None]),
            ]:
                with pytest.raises(ConfigError, match=f"{section}.{field.name}"):
                    kind(**{field.name: value})


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("augment.crop", "random", "one of resized, pad, none"),
        ("run.compile", True, "one of auto, on, off"),
        ("run.track", ["tensorboard", "excel"], "list"),
        ("optim.betas", (0.9,), "tuple"),
        ("train.epochs", 1.5, "int"),
        ("train.epochs", True, "int"),
        ("data.root", 3, "str"),
    ],
)
def test_a_wrong_type_in_a_mapping_is_refused_by_its_key(key, value, allowed):
    with pytest.raises(ConfigError, match=rf"^{key}: .* cannot be used; it needs {allowed}"):
        build_config([], {key: value})


def test_a_mapping_may_hold_what_numpy_and_pathlib_make():
    settings = {
        "optim.blr": np.float64(1e-3),
        "train.epochs": np.int64(3),
        "optim.betas": np.array([0.5, 0.9]),
    }
    config, given = build_config([], {**settings, "data.root": Path("mine")})
    assert (config.optim.blr, config.train.epochs, config.optim.betas, config.data.root) == (
        1e-3,
        3,
        (0.5, 0.9),
        "mine",
    )
    assert type(config.train.epochs) is int
    assert given == {*settings, "data.root"}


def test_configurations_of_the_package_are_found_by_name_wherever_one_is():
    for name in ("quickstart", "quickstart.yaml", "configs/quickstart.yaml"):
        found = train_command("--config", name)
        assert found.config == parse("--config", QUICKSTART)
        assert found.out == Path("runs/quickstart")
    Path("quickstart.yaml").write_text("train: {epochs: 77}")  # a file that is there comes first
    assert train_command("--config", "quickstart.yaml").config.train.epochs == 77
    assert "did you mean quickstart?" in refusal("--config", "quikstart")


def test_fewer_epochs_shorten_what_a_file_asks_for_and_say_so():
    finetune = CONFIGS / "finetune_cifar10_tiny_p4.yaml"
    command = train_command("--config", finetune, "--train.epochs=1")
    assert command.config.classify.whole_epochs == 0.25
    assert command.config.optim.warmup_epochs == 1  # which fits
    assert [note.partition(":")[0] for note in command.notes] == ["classify.whole_epochs"]
    command = train_command("--config", CONFIGS / "folder.yaml", "--train.epochs", 1)
    assert command.config.optim.warmup_epochs == 1
    assert command.notes == ()
    Path("long.yaml").write_text("optim: {warmup_epochs: 2}")
    command = train_command("--config", "long.yaml", "--train.epochs", 1)
    assert command.config.optim.warmup_epochs == 0.25
    assert command.notes == ("optim.warmup_epochs: 2 does not fit into train.epochs 1; using 0.25",)
    said = ("--train.epochs=1", "--classify.whole_epochs=2")  # by the user: a contradiction
    assert "below train.epochs" in refusal("--config", finetune, *said, read=train_command)
    assert train_command("--config", finetune).notes == ()


def test_settings_that_somebody_named_are_known():
    given = train_command(
        "--config", config_file("model: {depth: 3}"), "--model.patch_size=8"
    ).given
    assert {"model.depth", "model.patch_size"} <= given
    assert not {"model.preset", "model.image_size", "train.epochs"} & given
