"""What Scenes are made of, and what may stand beside what: the known truth that studies measure against."""

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_BACKDROP = ("sky", "cloud", "sun", "hill")
PARTS_OF_SCENE: dict[str, tuple[str, ...]] = {
    "air": _BACKDROP,
    "street": (*_BACKDROP, "grass", "crown", "trunk", "road", "marking"),
    "meadow": (*_BACKDROP, "grass", "crown", "trunk", "flower", "ball"),
    "sea": (*_BACKDROP, "water", "buoy"),
    "pond": (*_BACKDROP, "grass", "crown", "trunk", "water", "leaf", "buoy"),
}
PARTS_OF_OBJECT: dict[str, tuple[str, ...]] = {
    "airplane": ("fuselage", "wing", "fin", "engine", "window"),
    "automobile": ("body", "window", "wheel", "lamp"),
    "bird": ("plumage", "feather", "beak", "claw", "eye"),
    "cat": ("torso", "head", "ear", "eye", "leg", "tail"),
    "deer": ("torso", "head", "ear", "eye", "leg", "tail", "antler"),
    "dog": ("torso", "head", "ear", "eye", "leg", "tail"),
    "frog": ("skin", "eye"),
    "horse": ("torso", "head", "ear", "eye", "leg", "tail", "mane"),
    "ship": ("hull", "sail", "mast", "cabin", "funnel", "window"),
    "truck": ("body", "window", "wheel", "lamp", "cargo"),
}
SCENES_OF_CLASS: dict[str, tuple[str, ...]] = {
    "airplane": ("air",),
    "automobile": ("street",),
    "bird": ("air", "meadow"),
    "cat": ("meadow",),
    "deer": ("meadow",),
    "dog": ("meadow",),
    "frog": ("pond", "meadow"),
    "horse": ("meadow",),
    "ship": ("sea",),
    "truck": ("street",),
}
PARTS_OF_CLASS: dict[str, frozenset[str]] = {
    name: frozenset(PARTS_OF_OBJECT[name]).union(*(PARTS_OF_SCENE[scene] for scene in SCENES_OF_CLASS[name]))
    for name in CLASS_NAMES
}
PART_NAMES = tuple(dict.fromkeys(p for table in (PARTS_OF_SCENE, PARTS_OF_OBJECT) for ps in table.values() for p in ps))

# The four neighbours of a pixel of such a part are of the same part or of one of these.
MAY_TOUCH: dict[str, frozenset[str]] = {
    "wheel": frozenset({"road", "body", "cargo", "lamp"}),
    "marking": frozenset({"road"}),
    "wing": frozenset({*_BACKDROP, "fuselage", "fin", "engine", "window"}),
    "hull": frozenset({*_BACKDROP, "water", "sail", "mast", "cabin", "window", "buoy"}),
    "sail": frozenset({*_BACKDROP, "water", "hull", "mast"}),
    "leg": frozenset({*_BACKDROP, "grass", "crown", "trunk", "flower", "ball", "torso", "head", "tail"}),
    "ball": frozenset({"grass", "flower", "torso", "leg", "tail", "plumage", "claw", "skin"}),
    "buoy": frozenset({"water", "hull", "leaf", "skin"}),
}
LOOK_ALIKES: dict[str, tuple[str, ...]] = {"wheel": ("ball", "buoy")}
