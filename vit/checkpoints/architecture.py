"""Which vision transformer a checkpoint is: read off the shapes of its tensors, and changed where that was asked."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.formats import Format, Hints
from vit.checkpoints.formats.format import pair
from vit.checkpoints.names import Shape, Value
from vit.checkpoints.origin import Report
from vit.checkpoints.reading import CheckpointError, Source
from vit.checkpoints.resize import adapt_channels, resize_kernels, resize_positions
from vit.config import DecoderConfig, ViTConfig
from vit.load_options import LoadOptions
from vit.patches import sincos_positions

# Heads by width, where they are not width / 64: ViT-H and ViT-g of the usual families, and MAE's decoder.
ENCODER_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
DECODER_HEADS = {512: 16}
MOST_BLOCKS = 1000


class Reader:
    """Reads the architecture off the shapes, and changes the values as it was asked."""

    def __init__(
        self,
        source: Source,
        format: Format,
        hints: Hints,
        request: LoadOptions,
        values: dict[str, Value],
        report: Report,
    ):
        self.source, self.format, self.hints, self.request = source, format, hints, request
        self.values, self.report = values, report

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.source.path}: {what}")

    def shape(self, name: str, dimensions: int) -> Shape:
        """The shape of a tensor that no model is without."""
        if name not in self.values:
            raise self.fail(
                f"no {name} in it, so this is no vision transformer that can be loaded ({self.format.name})"
            )
        value = self.values[name]
        if len(value.shape) != dimensions or not all(value.shape):
            raise self.fail(f"{name} has the shape {text(value.shape)}, where {dimensions} dimensions are expected")
        return value.shape

    def encoder(self) -> ViTConfig:
        """The encoder's architecture; the values are resized, moved and dropped as was asked."""
        request, values, hints = self.request, self.values, self.hints
        width, channels, *kernel = self.shape("patch_embed.proj.weight", 4)
        patch = (kernel[0], kernel[1])
        encoder: dict[str, Any] = {"patch_size": patch, "channels": channels, "embed_dim": width}
        self._compare(encoder, hints.encoder)  # before the heads, which a wrong width would make look wrong
        encoder |= self._blocks("blocks.", width, hints.encoder, request.num_heads, ENCODER_HEADS)
        scaled = "blocks.0.ls1.gamma" in values
        if "layer_scale" in hints.encoder and (hints.encoder["layer_scale"] is not None) != scaled:
            said, held = ("no layer scale", "one") if scaled else ("a layer scale", "none")
            raise self.fail(f"its settings say {said}, its tensors hold {held}")
        encoder["layer_scale"] = hints.encoder.get("layer_scale", 1e-5) if scaled else None
        encoder["class_token"] = "cls_token" in values
        encoder["registers"] = self.shape("reg_token", 3)[1] if "reg_token" in values else 0
        encoder["norm_eps"] = self._norm_eps()
        grid = self._positions(encoder)
        encoder["image_size"] = (grid[0] * patch[0], grid[1] * patch[1])
        self._compare(encoder, hints.encoder)
        if "drop_path" in hints.encoder:
            encoder["drop_path"] = hints.encoder["drop_path"]
        self._head(encoder)
        self._prefix(encoder)
        self._resize(encoder, grid)
        return ViTConfig(**encoder)

    def decoder(self, encoder: ViTConfig) -> DecoderConfig | None:
        """The decoder's architecture; None where the checkpoint has no decoder."""
        if not any(name.startswith("decoder.") for name in self.values):
            return None
        width, _ = self.shape("decoder.embed.weight", 2)
        decoder: dict[str, Any] = {"dim": width}
        decoder |= self._blocks("decoder.blocks.", width, self.hints.decoder, self.request.decoder_heads, DECODER_HEADS)
        self._compare(decoder, self.hints.decoder)
        return DecoderConfig(**decoder, norm_eps=encoder.norm_eps)

    def norm_pix_loss(self) -> bool:
        """Whether the decoder predicts normalised patches."""
        said = self._given("norm_pix_loss", self.request.norm_pix_loss, self.hints.norm_pix_loss)
        if said is not None:
            return said
        self.report.notes.append(
            "nothing says whether the decoder predicts normalised patches; taken as no; norm_pix_loss sets it"
        )
        return False

    def _norm_eps(self) -> float:
        """The eps of all norms."""
        said = self._given("norm_eps", self.request.norm_eps, self.hints.encoder.get("norm_eps"))
        if said is not None:
            return said
        if self.format.norm_eps != ViTConfig.norm_eps:
            self.report.notes.append(
                f"nothing says the eps of its norms; taken as {self.format.norm_eps:g}, as is usual for "
                f"{self.format.name}; norm_eps sets it"
            )
        return self.format.norm_eps

    def _given(self, key: str, given: Any, said: Any) -> Any:
        """What was asked for, or what the settings say, which must not contradict each other; None for neither."""
        if given is not None and said is not None and given != said:
            raise self.fail(f"you gave {key} {text(given)}, its settings say {text(said)}")
        return said if given is None else given

    def _blocks(
        self, container: str, width: int, hints: dict[str, Any], given_heads: int | None, known: dict[int, int]
    ) -> dict[str, Any]:
        """What the blocks of the encoder or the decoder show, and their heads."""
        values = self.values
        numbers = {int(name.removeprefix(container).split(".")[0]) for name in values if name.startswith(container)}
        first = f"{container}0."
        hidden = self.shape(f"{first}mlp.fc2.weight", 2)[1]
        widened = self.shape(f"{first}mlp.fc1.weight", 2)[0]
        if widened not in (hidden, 2 * hidden):
            raise self.fail(
                f"{first}mlp.fc1.weight has {widened} rows, where {hidden} are expected (SwiGLU: {2 * hidden})"
            )
        identity = hints.get("qkv") == "identity"
        found: dict[str, Any] = {
            "depth": max(numbers) + 1,
            "mlp_ratio": hidden / width,
            "mlp": "gelu" if widened == hidden else "swiglu",
            "qkv": "identity" if identity else "linear",
            "qkv_bias": f"{first}attn.qkv.bias" in values or (identity and hints.get("qkv_bias", True)),
            "qk_norm": f"{first}attn.q_norm.weight" in values,
        }
        if found["depth"] > 2 * len(numbers):
            raise self.fail(f"{container}{max(numbers)} without most of the blocks before it")
        if found["depth"] > MOST_BLOCKS:
            raise self.fail(f"it has {found['depth']:,} blocks; at most {MOST_BLOCKS:,} are built")
        part, name = ("decoder", "decoder_heads") if container.startswith("decoder") else ("encoder", "num_heads")
        heads = self._given(name, given_heads, hints.get("num_heads"))
        if found["qk_norm"]:
            (head_dim,) = self.shape(f"{first}attn.q_norm.weight", 1)
            if heads is not None and heads * head_dim != width:
                raise self.fail(
                    f"{heads} heads of {head_dim} channels, as its q_norm has, do not make its width of {width}"
                )
            heads = heads or width // head_dim
        if heads is None:
            heads = known.get(width) or width // 64
            if not heads or width % heads:
                where = "its settings do not say" if self.source.config else "there is no config.json that says"
                raise self.fail(f"{where} how many heads its width of {width} has; give {name}")
            how = "the usual for this width" if width in known else "64 channels a head"
            self.report.notes.append(f"{heads} heads of the {part} are a guess ({how}); {name} sets them")
        if not isinstance(heads, int) or heads < 1 or width % heads:
            raise self.fail(f"{heads} heads do not divide its width of {width}")
        return found | {"num_heads": heads}

    def _positions(self, encoder: dict[str, Any]) -> tuple[int, int]:
        """The grid of the position table, and whether it has rows for the prefix."""
        if "pos_embed" not in self.values:
            kinds = "rotary ones (EVA, DINOv3) or relative ones (BEiT)"
            raise self.fail(f"it has no position table; positions of another kind, as {kinds}, are not computed here")
        rows = self.shape("pos_embed", 3)[1]
        prefix = encoder["class_token"] + encoder["registers"]
        size, patch = self.hints.encoder.get("image_size"), encoder["patch_size"]
        grid = None if size is None else (size[0] // patch[0], size[1] // patch[1])
        grid = self._given("grid_size", pair(self.request.grid_size), grid)
        # With registers, DINOv2's table has a row for the class token alone.
        counts = {rows - prefix, rows, rows - encoder["class_token"]}
        if grid is None:
            squares = [count for count in sorted(counts) if count > 0 and math.isqrt(count) ** 2 == count]
            if len(squares) != 1:
                raise self.fail(f"a position table of {rows} rows is of no square grid; give grid_size (rows, columns)")
            grid = (math.isqrt(squares[0]),) * 2
        count = grid[0] * grid[1]
        if count not in counts:
            raise self.fail(f"pos_embed has {rows} rows, which is not a grid of {grid[0]} x {grid[1]} patches")
        encoder["no_embed_class"] = count == rows and (prefix > 0 or bool(self.hints.encoder.get("no_embed_class")))
        if count == rows - 1 and prefix > 1 and encoder["class_token"]:
            width, registers = encoder["embed_dim"], encoder["registers"]
            what = "rows of zeros put in for the registers, which have no position"
            self.values["pos_embed"].then(
                partial(_put_zeros, at=1, count=registers), (1, rows + registers, width), what
            )
        encoder["pos_embed"] = self.hints.encoder.get("pos_embed") or self._kind_of_positions(grid)
        return grid

    def _kind_of_positions(self, grid: tuple[int, int]) -> str:
        """Whether the table is the fixed sin-cos one, in one of its two orders; the only values that a plan looks at."""
        table = self.source.tensors[self.values["pos_embed"].move.sources[0]][0, -grid[0] * grid[1] :].float()
        if table.device.type == "meta":  # a shape alone: enough to refuse, not to load
            return "learned"
        for order, parts in (("mae", "[sin x, cos x, sin y, cos y]"), ("timm", "[sin y, sin x, cos y, cos x]")):
            if table.shape[1] % 4 == 0 and torch.allclose(
                table, sincos_positions(grid, table.shape[1], order), atol=1e-3
            ):
                self.report.notes.append(f"positions: the fixed sin-cos table in {order}'s order, {parts}")
                return "sincos"
        return "learned"

    def _compare(self, found: dict[str, Any], hinted: dict[str, Any]) -> None:
        """What the settings say must be what the tensors show."""
        for key in found.keys() & hinted.keys() - {"layer_scale", "pos_embed"}:
            theirs: Any = tuple(hinted[key]) if isinstance(hinted[key], list) else hinted[key]
            same = math.isclose(found[key], theirs) if key == "mlp_ratio" else found[key] == theirs
            if not same and key != "image_size":
                raise self.fail(f"its settings say {key} {text(theirs)}, its tensors {text(found[key])}")
            if not same:
                p, q = found["patch_size"]
                if (theirs[0] // p, theirs[1] // q) != (found[key][0] // p, found[key][1] // q):
                    self.report.notes.append(
                        f"its settings say images of {text(theirs)}, its tensors {text(found[key])}"
                    )

    def _prefix(self, encoder: dict[str, Any]) -> None:
        """With or without a class token, where that was asked."""
        if self.request.class_token is None or self.request.class_token == encoder["class_token"]:
            return
        if any(name.startswith("decoder.") for name in self.values):
            raise self.fail("its decoder counts on the tokens that there are; take part encoder to change them")
        if self.request.class_token:  # the pooling stays as it was: the new token knows nothing yet
            encoder["class_token"] = True
            table = self.values["pos_embed"]
            if not encoder["no_embed_class"]:
                what, shape = "a row of zeros put in for the class token", (1, table.shape[1] + 1, table.shape[2])
                table.then(partial(_put_zeros, at=0, count=1), shape, what)
            return
        if self.request.global_pool == "token":
            raise self.fail("without its class token, global_pool can only be 'avg'")
        if encoder["global_pool"] == "token":
            encoder["global_pool"] = "avg"
            if encoder["num_classes"]:
                self.report.notes.append(
                    "its head was trained on the class token, and now reads the mean of the patches"
                )
        encoder["class_token"] = False
        drop(self.values, "cls_token", "no class token was asked for", self.report)
        if not encoder["no_embed_class"]:
            table = self.values["pos_embed"]
            table.then(lambda t: t[:, 1:], (1, table.shape[1] - 1, table.shape[2]), "the class token's row left out")
        if not encoder["registers"]:
            encoder["no_embed_class"] = False

    def _head(self, encoder: dict[str, Any]) -> None:
        """Pooling, the norm before or after it, and the head."""
        values, request, hints = self.values, self.request, self.hints.encoder
        if "norm.weight" in values and "fc_norm.weight" in values:
            raise self.fail("it holds both norm and fc_norm; a model has one final norm, before the pooling or after")
        fc_norm = "fc_norm.weight" in values
        classes = self.shape("head.weight", 2)[0] if "head.weight" in values else 0
        found: dict[str, Any] = {"fc_norm": fc_norm} if request.fc_norm is None else {}
        if request.num_classes is None and classes:
            found["num_classes"] = classes
        self._compare(found, hints)
        pool = request.global_pool or hints.get("global_pool")
        if not pool:
            pool = "avg" if fc_norm or not encoder["class_token"] else "token"
            if classes and pool == "token" and not self.format.global_pool and request.num_classes in (None, classes):
                self.report.notes.append(
                    "nothing says what its head reads; taken as the class token; global_pool sets it"
                )
        encoder["global_pool"] = pool
        encoder["fc_norm"] = fc_norm if request.fc_norm is None else request.fc_norm
        if encoder["fc_norm"] != fc_norm:
            old, new = ("norm", "fc_norm") if encoder["fc_norm"] else ("fc_norm", "norm")
            for kind in ("weight", "bias"):
                if f"{old}.{kind}" in values:
                    value = values[f"{new}.{kind}"] = values.pop(f"{old}.{kind}")
                    value.notes.append(f"{old} as {new}, as asked")
        # A head that the settings speak of and the file does not hold is missing, and that is said.
        held = classes or hints.get("num_classes", 0)
        encoder["num_classes"] = held if request.num_classes is None else request.num_classes
        if request.num_classes is not None and (request.num_classes != classes or request.num_classes == 0):
            for kind in ("weight", "bias"):
                why = f"{request.num_classes or 'no'} classes were asked for, this head has {classes}"
                drop(values, f"head.{kind}", why, self.report)

    def _resize(self, encoder: dict[str, Any], grid: tuple[int, int]) -> None:
        """Patches, channels and positions, where another size was asked."""
        request, values = self.request, self.values
        image_size, patch_size = pair(request.image_size), pair(request.patch_size)
        weight = values["patch_embed.proj.weight"]
        decodes = any(name.startswith("decoder.") for name in values)
        if decodes and (
            patch_size not in (None, encoder["patch_size"]) or request.channels not in (None, encoder["channels"])
        ):
            raise self.fail(
                "its decoder predicts patches of its own size and channels; take part encoder to change them"
            )
        if patch_size is not None and patch_size != encoder["patch_size"]:
            what = f"resized from {text(encoder['patch_size'])} pixels"
            weight.then(partial(resize_kernels, patch_size=patch_size), (*weight.shape[:2], *patch_size), what)
            encoder["patch_size"] = patch_size
        channels = request.channels
        if channels is not None and channels != encoder["channels"]:
            if encoder["channels"] != 3:
                raise self.fail(f"{encoder['channels']} input channels cannot be made {channels}; three can")
            shape = (weight.shape[0], channels, *weight.shape[2:])
            weight.then(partial(adapt_channels, channels=channels), shape, f"3 input channels made {channels}")
            encoder["channels"] = channels
        if image_size is not None:
            encoder["image_size"] = image_size
        elif patch_size is None:
            return
        (height, width), (p, q) = encoder["image_size"], encoder["patch_size"]
        if height % p or width % q:
            raise self.fail(
                f"patches of {text((p, q))} do not divide images of {text((height, width))}; give both sizes"
            )
        new = (height // p, width // q)
        if new == grid:
            return
        prefix = 0 if encoder["no_embed_class"] else encoder["class_token"] + encoder["registers"]
        for name, ahead in (
            ("pos_embed", prefix),
            ("decoder.pos_embed", encoder["class_token"] + encoder["registers"]),
        ):
            if name in values:
                table = values[name]
                shape = (1, ahead + new[0] * new[1], table.shape[2])
                what = f"resized from a grid of {text(grid)} to {text(new)}, bicubic"
                table.then(partial(resize_positions, new=new, old=grid, num_prefix_tokens=ahead), shape, what)


def text(value: Any) -> str:
    """A size as 16 x 16, anything else as it is."""
    if isinstance(value, tuple | list):
        return " x ".join(map(str, value)) or "of a single number"
    return str(value)


def _put_zeros(table: Tensor, at: int, count: int) -> Tensor:
    """A position table with `count` rows of zeros put in before row `at`."""
    return torch.cat([table[:, :at], table.new_zeros(1, count, table.shape[2]), table[:, at:]], dim=1)


def drop(values: dict[str, Value], target: str, why: str, report: Report) -> None:
    """Leave one of our tensors out, and say why."""
    if target in values:
        for name in values.pop(target).move.sources:
            report.dropped[name] = why
