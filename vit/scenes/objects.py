"""The objects of the ten classes.

Each function paints one object from back to front, in the frame in which it stands: u points
forwards and v down, both in units of the object, and v = 0 is the ground, the water or, in the
air, the object's middle. Later paint covers earlier paint.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vit.scenes.drawing import Canvas, Frame, Number, Point, blend, rgb
from vit.scenes.scenery import BARK, Ground, disc

# --- palettes ------------------------------------------------------------------------------------

_PAINT = "ba302c 2c5496 e2e2de 3c3e44 d6aa34 427a54 969ca2 da7632"
_GLASS = "3a4c60 5c768a 28303c"
_LAMP = "faf0be"
_REAR_LAMP = "c82824"
_METAL = "e8eaee bec4cc 969ca6 f0ece2"
_CLOTH = "eeeade eeeade ce4a3c 4668a0 e2be6e"
_WHITE = "ecece8 d6d0c4"
_FUR = "966238 60402c 342e2c c49660 ded4c6 86807c b0703c"
_PALE = "e8e0d4 ceb28c 78706a"
_COAT = {
    "cat": "ce8442 86807c 342e2c ded4c6 c49660 6a6258",
    "deer": "966238 a67446 80583a",
    "dog": _FUR,
    "horse": _FUR,
}
_ANTLER = "ceb892 785c42"
_PINK = rgb("dc968c")
_PLUMAGE = "e8e8e6 484242 8c684a 607898 be583c c8aa5a"
_SKIN = "569232 74a03e 3c7442 7c703c 68543a 3c8278"
_CREAM = rgb("ece4b4")
_BEAK = "e8a02c d67830 46423e"
_IRIS = {
    "cat": "96be46 deb43c 6eaabe",
    "dog": "7a4e28 96683a",
    "frog": "ecce50 e2963c",
}
_PUPIL = "181618 221c16"


# --- parts of every object -----------------------------------------------------------------------


def _stand(canvas: Canvas, ground: Ground, small: float, large: float, tilt: float = 0.0) -> Frame:
    """Return the object's frame: facing left or right, perhaps so far to one side that it is cut.

    Args:
        canvas: to be painted on.
        ground: what it stands on.
        small, large: range of its size.
        tilt: largest slope, either way.
    """
    facing = np.where(canvas.chance("left", 0.5), np.float32(-1), np.float32(1))
    size = canvas.uniform("size", small, large)
    slope = canvas.uniform("tilt", -tilt, tilt)
    return Frame(canvas, canvas.uniform("x", 11, 21), ground.level, size, facing, slope)


def _shadow(frame: Frame, ground: Ground, width: Number) -> None:
    """Darken the ground under the object; the shadow is a part of the ground."""
    frame.ellipse(0, 0, width, 1.1).paint(ground.part, ground.colour * 0.55)


# --- vehicles ------------------------------------------------------------------------------------


def automobile(canvas: Canvas, ground: Ground) -> None:
    """Paint a car, seen from the side."""
    car = _stand(canvas, ground, 0.85, 1.25)
    _shadow(car, ground, 11.5)
    paint = canvas.colour("paint", _PAINT)
    waist = canvas.uniform("waist", -7, -6.4)

    # the cabin; its proportions make it a hatchback, a saloon or a van
    roof = canvas.uniform("roof", -11.2, -9.2)
    back = canvas.uniform("back", -9.6, -5.5)
    front = canvas.uniform("front", 0.5, 4.0)
    cabin = car.polygon((back - 1.6, waist), (back, roof), (front, roof), (front + 4, waist))
    cabin.paint("body", paint * 0.92)

    # two windows, with a post between them
    post = (back + front) / 2 + 0.4
    top = roof + 0.8
    rear_pane = car.polygon(
        (back - 0.4, waist), (back + 0.8, top), (post - 0.5, top), (post - 0.5, waist)
    )
    front_pane = car.polygon(
        (post + 0.4, waist), (post + 0.4, top), (front - 0.3, top), (front + 2.6, waist)
    )
    (rear_pane | front_pane).paint("window", canvas.colour("glass", _GLASS))

    # the body below the waist, with a dark sill
    body = car.polygon((-11, waist), (8, waist), (10.8, waist + 0.8), (11.2, -1.6), (-11.2, -1.6))
    body.paint("body", paint)
    car.box(-11.2, -3.2, 11.2, -1.6).paint("body", paint * 0.72)

    # lamps and wheels
    car.ellipse(10.2, -4.3, 0.9, 0.7).paint("lamp", canvas.colour("lamp", _LAMP, 0.05))
    car.ellipse(-10.6, -4.3, 0.7, 0.7).paint("lamp", canvas.colour("rear lamp", _REAR_LAMP))
    for u in (-6.6, 6.4):
        disc(car, u, "wheel")


def truck(canvas: Canvas, ground: Ground) -> None:
    """Paint a lorry with a box or a tank, seen from the side."""
    truck = _stand(canvas, ground, 0.85, 1.15)
    _shadow(truck, ground, 12.5)
    paint = canvas.colour("paint", _PAINT)
    truck.box(-12.5, -4.4, 11, -1.8).paint("body", paint * 0.45)

    # the load, from the rear to `end`, on its platform
    load = canvas.colour("load", _PAINT)
    tanker = canvas.chance("tanker", 0.2)
    top = canvas.uniform("top", -15, -7)
    end = canvas.uniform("end", 2.2, 4.4)
    truck.box(-12.8, top, end, -3.2).where(~tanker).paint("cargo", load)
    tank = truck.ellipse((end - 12.8) / 2, (top - 3.2) / 2, (end + 12.8) / 2, (-3.2 - top) / 2)
    tank.where(tanker).paint("cargo", load)
    truck.box(-12.8, -4.4, end, -3.2).paint("cargo", load * 0.7)

    # the cab, with a dark bumper
    roof = canvas.uniform("roof", -12.4, -9.8)
    cab = truck.polygon(
        (end + 0.6, roof), (8.6, roof), (11.2, -6.2), (11.6, -1.8), (end + 0.6, -1.8)
    )
    cab.paint("body", paint)
    truck.box(end + 0.6, -3.6, 11.5, -1.8).paint("body", paint * 0.72)

    # window, lamp and wheels
    pane = truck.polygon((end + 1.8, roof + 1), (8.1, roof + 1), (10, -6.4), (end + 1.8, -6.4))
    pane.paint("window", canvas.colour("glass", _GLASS))
    truck.ellipse(10.9, -3.4, 0.7, 0.7).paint("lamp", canvas.colour("lamp", _LAMP, 0.05))
    for u in (-9.2, -4, 7.6):
        disc(truck, u, "wheel")


def airplane(canvas: Canvas, ground: Ground) -> None:
    """Paint an airliner in flight, seen from the side."""
    plane = _stand(canvas, ground, 0.8, 1.25, tilt=0.4)
    metal = canvas.colour("metal", _METAL, 0.08)
    livery = canvas.colour("livery", _PAINT)

    # the far wing and the tail fin, behind the fuselage
    sweep = canvas.uniform("sweep", 3, 7)
    far = canvas.uniform("far", 3, 7.5)
    far_wing = plane.polygon((-sweep, -far), (1.8 - sweep, -far), (3.4, -0.6), (-1.6, -0.6))
    far_wing.paint("wing", metal * 0.76)
    fin = plane.polygon((-13, -5.6), (-10.8, -5.6), (-6.4, -1), (-11, -0.4))
    fin.paint("fin", livery)

    # the fuselage, darker below, with a cockpit and a row of windows
    fuselage = plane.ellipse(0, 0, 12, 2.1)
    fuselage.paint("fuselage", metal)
    (fuselage & plane.box(-13, 0.7, 13, 3)).paint("fuselage", metal * 0.8)
    panes = plane.polygon((8, -1.1), (9.8, -1), (10.8, -0.3), (8, -0.3))
    for k in range(8):
        panes |= plane.box(1.8 * k - 7.5, -1.1, 1.8 * k - 6.6, -0.1)
    panes.paint("window", canvas.colour("glass", _GLASS))

    # the tailplane, then the near wing over its engine
    tailplane = plane.polygon((-10.6, 0), (-8, 0), (-10.6, 3), (-12.4, 3))
    tailplane.paint("wing", metal * 0.86)
    near = canvas.uniform("near", 4.5, 9.5)
    engine = plane.ellipse(0.8 - sweep * 0.4, near * 0.5, 1.7, 0.85)
    engine.paint("engine", livery * 0.8)
    near_wing = plane.polygon((-1.8, 0.8), (3.2, 0.8), (1.6 - sweep, near), (-0.4 - sweep, near))
    near_wing.paint("wing", metal * 0.92)


def ship(canvas: Canvas, ground: Ground) -> None:
    """Paint a sailing boat or a steamer, seen from the side."""
    ship = _stand(canvas, ground, 0.8, 1.2)
    paint = canvas.colour("paint", _PAINT)
    deck = canvas.uniform("deck", -4.4, -2.8)
    bow = canvas.uniform("bow", 9, 13)
    sails = canvas.chance("sails", 0.55)
    ship.ellipse(0, 1.6, 12, 2.2).paint("water", ground.colour * 0.72)

    # either a mast with a mainsail and a jib
    top = canvas.uniform("top", -18, -13)
    boom = canvas.uniform("boom", 6, 9.5)
    cloth = canvas.colour("cloth", _CLOTH)
    ship.box(-0.5, top, 0.5, deck).where(sails).paint("mast", canvas.colour("mast", BARK))
    main = ship.polygon((-boom, deck - 0.8), (-0.9, top + 0.6), (-0.9, deck - 0.8))
    jib = ship.polygon((0.9, deck - 0.8), (0.9, top + 2), (bow - 1.4, deck - 0.8))
    main.where(sails).paint("sail", cloth)
    jib.where(sails).paint("sail", cloth * 0.88)

    # or a funnel with a dark band, a cabin of two decks, and windows
    white = canvas.colour("cabin", _WHITE, 0.08)
    aft = canvas.uniform("aft", -8.5, -3)
    bridge = canvas.uniform("bridge", -11.5, -9.5)
    funnel = ship.box(aft + 1.2, bridge - 2.4, aft + 3.8, -7).where(~sails)
    funnel.paint("funnel", canvas.colour("funnel", _PAINT))
    (funnel & ship.box(-20, bridge - 3, 20, bridge - 1.5)).paint("funnel", white * 0.2)
    ship.box(aft, -7.6, aft + 11, deck).where(~sails).paint("cabin", white)
    ship.box(aft + 4.8, bridge, aft + 9.6, -7.6).where(~sails).paint("cabin", white * 0.9)
    panes = ship.box(aft + 6.6, bridge + 0.6, aft + 9.2, bridge + 1.7)
    for k in range(4):
        panes |= ship.box(aft + 1.1 + 2.3 * k, -6.6, aft + 2.4 + 2.3 * k, -5.4)
    panes.where(~sails).paint("window", canvas.colour("glass", _GLASS))

    # the hull, with a pale edge along the deck
    hull = ship.polygon((-10.5, deck), (bow, deck - 0.8), (bow - 3.4, 1.6), (-9, 1.6))
    hull.paint("hull", paint)
    edge = hull & ship.box(-12, deck - 1, 14, deck + 0.7)
    edge.paint("hull", blend(paint, 240, 0.7))


# --- birds ---------------------------------------------------------------------------------------


def flying_bird(canvas: Canvas, ground: Ground) -> None:
    """Paint a bird that beats its wings, seen from the side."""
    bird = _stand(canvas, ground, 0.9, 1.4, tilt=0.35)
    back = canvas.colour("back", _PLUMAGE)
    belly = canvas.colour("belly", _PLUMAGE)

    # the wings are up, or down
    spread = canvas.uniform("spread", 1, 5)
    beat = np.where(
        canvas.chance("up", 0.7), canvas.uniform("beat", -7, -3), canvas.uniform("beat", 2.5, 5.5)
    )

    def wing(shift: float, shade: float) -> None:
        wrist = (0.8 + shift * 1.5, beat * 0.8 - 1.4)
        tip = (wrist[0] - 3.5 - spread, wrist[1] + beat * 0.5 - 0.4)
        middle = ((wrist[0] + tip[0]) / 2, (wrist[1] + tip[1]) / 2)
        arm = bird.limb((shift - 0.6, -0.6), wrist, 2.3, 1.5) | bird.ellipse(*wrist, 1.4, 1.4)
        (arm | bird.limb(wrist, tip, 1.5, 0.3)).paint("feather", back * shade)
        bird.limb(middle, tip, 0.9, 0.3).paint("feather", back * shade * 0.6)

    # the far wing, then tail, body and belly
    wing(shift=2.0, shade=0.68)
    bird.limb((-3, 0.1), (-8, 0.6), 0.9, 1.3).paint("plumage", back * 0.85)
    (bird.ellipse(0, 0, 5, 2) | bird.ellipse(4.6, -1, 1.9, 1.7)).paint("plumage", back)
    bird.ellipse(0.6, 0.8, 4, 1.1).paint("plumage", belly)

    # the face, then the near wing
    beak = bird.polygon((5.9, -1.7), (8.6, -0.6), (5.9, -0.3))
    beak.paint("beak", canvas.colour("beak", _BEAK))
    bird.ellipse(5, -1.3, 0.5, 0.5).paint("eye", canvas.colour("pupil", _PUPIL))
    wing(shift=0.0, shade=0.88)


def standing_bird(canvas: Canvas, ground: Ground) -> None:
    """Paint a bird on its legs, seen from the side."""
    bird = _stand(canvas, ground, 0.9, 1.5)
    _shadow(bird, ground, 5)
    back = canvas.colour("back", _PLUMAGE)
    belly = canvas.colour("belly", _PLUMAGE)
    horn = canvas.colour("beak", _BEAK)

    # the legs, each with a foot
    legs = canvas.uniform("legs", 2, 4.5)
    for u in (-0.8, 1.0):
        leg = bird.limb((u, -legs - 1.2), (u + 0.3, -0.2), 0.4, 0.35)
        (leg | bird.box(u, -0.6, u + 1.6, 0)).paint("claw", horn * 0.8)

    # the body has a frame of its own, because it leans forwards while the legs are upright
    height = (legs + 2.6) * bird.scale
    lean = canvas.uniform("lean", -0.7, -0.2)
    body = Frame(canvas, bird.x, bird.y - height, bird.scale, bird.facing, lean)
    body.limb((-3, 0), (-8.5, 0.4), 1.1, 0.8).paint("plumage", back * 0.8)
    body.ellipse(0, 0, 4.8, 3).paint("plumage", belly)
    body.ellipse(-1.4, -0.6, 4.2, 2.1).paint("feather", back * 0.82)

    # the head
    body.ellipse(4, -1.6, 2.3, 2.1).paint("plumage", back)
    body.polygon((5.8, -2.6), (8.6, -0.6), (5.8, -0.8)).paint("beak", horn)
    body.ellipse(4.6, -2, 0.55, 0.55).paint("eye", canvas.colour("pupil", _PUPIL))


# --- four-legged animals -------------------------------------------------------------------------


class _Build(NamedTuple):
    """The proportions of one four-legged animal; widths are half of the visible ones."""

    torso: Point  # length, depth
    leg: Point  # length, width
    neck: Point  # from the shoulder to the head
    neck_width: float
    skull: Point  # radii
    muzzle: Point  # from the head to the nose
    muzzle_width: float
    tail: Point  # from the rump to the bend
    tip: Point  # from the bend to the tip
    tail_width: float


_BUILDS = {
    "cat": _Build(
        torso=(11.5, 4.6),
        leg=(4, 0.75),
        neck=(2, -2.6),
        neck_width=1.8,
        skull=(2.9, 2.6),
        muzzle=(2, 0.9),
        muzzle_width=1.1,
        tail=(-3.4, -3),
        tip=(0.4, -5.5),
        tail_width=0.7,
    ),
    "deer": _Build(
        torso=(10.5, 4.6),
        leg=(8.4, 0.5),
        neck=(2.8, -5.4),
        neck_width=1.1,
        skull=(1.9, 1.6),
        muzzle=(3, 1),
        muzzle_width=0.8,
        tail=(-1.2, -0.6),
        tip=(-0.6, 1.2),
        tail_width=0.9,
    ),
    "dog": _Build(
        torso=(11, 5.2),
        leg=(5.4, 0.9),
        neck=(2, -3.2),
        neck_width=1.9,
        skull=(2.5, 2.3),
        muzzle=(3.6, 0.7),
        muzzle_width=1.2,
        tail=(-2.6, -2.2),
        tip=(-0.8, -2.6),
        tail_width=0.8,
    ),
    "horse": _Build(
        torso=(12.5, 6.2),
        leg=(8, 0.8),
        neck=(3.4, -5),
        neck_width=2.1,
        skull=(2, 1.8),
        muzzle=(3.2, 2.4),
        muzzle_width=1.1,
        tail=(-2.4, 1.4),
        tip=(-0.6, 5.5),
        tail_width=1.2,
    ),
}


def standing(kind: str, canvas: Canvas, ground: Ground) -> None:
    """Paint a cat, deer, dog or horse, seen from the side."""
    build = _BUILDS[kind]
    animal = _stand(canvas, ground, 0.8, 1.15)
    coat = canvas.colour("coat", _COAT[kind])
    hair = coat * 0.85
    if kind == "horse":
        hair = coat * 0.5

    # its joints: the torso rests on the legs, the head follows from the shoulder
    half = build.torso[0] / 2
    thick = build.torso[1] * 0.42
    middle = -build.leg[0] * canvas.uniform("legs", 0.85, 1.15) - thick
    rump = (-half + 1.6, middle - 0.6)
    shoulder = (half - 1.8, middle - 0.8)
    nod = canvas.uniform("nod", 0.55, 1.15)
    head = (shoulder[0] + build.neck[0], shoulder[1] + build.neck[1] * nod)
    nose = (head[0] + build.muzzle[0], head[1] + build.muzzle[1])
    _shadow(animal, ground, half + 2)

    # the tail: from the rump to a bend, and on to its tip
    bend = (rump[0] - 1.4 + build.tail[0], rump[1] + build.tail[1])
    wag = canvas.uniform("wag", 0.5, 1.2)
    tip = (bend[0] + build.tip[0], bend[1] + build.tip[1] * wag)
    tail = animal.limb((rump[0] - 1, rump[1]), bend, build.tail_width, build.tail_width)
    tail |= animal.limb(bend, tip, build.tail_width, build.tail_width * 0.6)
    (tail | animal.ellipse(*bend, build.tail_width, build.tail_width)).paint("tail", hair)

    # four legs, of which the far pair comes first and is darker
    hips = (rump[0] + 1, shoulder[0] - 0.9, rump[0] - 0.6, shoulder[0] + 0.6)
    shades = (0.62, 0.62, 0.86, 0.86)
    for k, (hip, shade) in enumerate(zip(hips, shades, strict=True)):
        foot = (hip + canvas.uniform(f"step {k}", -1.5, 1.5), 0)
        leg = animal.limb((hip, middle), foot, build.leg[1] * 1.5, build.leg[1])
        leg.paint("leg", coat * shade)

    # the torso, darker below, sometimes with a spot
    barrel = animal.ellipse(0, middle, half, thick)
    hindquarters = animal.ellipse(*rump, 2.4, thick * 1.2)
    chest = animal.ellipse(*shoulder, 2.3, thick * 1.2)
    torso = barrel | hindquarters | chest
    torso.paint("torso", coat)
    (torso & animal.box(-20, middle + thick * 0.43, 20, 0)).paint("torso", coat * 0.78)
    spot = animal.ellipse(canvas.uniform("spot", -3.5, 3), middle - 1, 2.6, 1.9) & barrel
    spot.where(canvas.chance("spotted", 0.3)).paint("torso", canvas.colour("patch", _FUR))

    # the neck, and what grows behind the head
    neck = animal.limb(shoulder, head, build.neck_width * 1.25, build.neck_width)
    neck.paint("torso", coat)
    if kind == "horse":
        crest = (shoulder[0] - 2, shoulder[1] - 1.4)
        mane = animal.limb(crest, (head[0] - 1.4, head[1] - 0.8), 1.0, 0.9)
        mane.paint("mane", hair)
    if kind == "deer":
        _antlers(animal, head)

    # the head, with muzzle, nose, ears and eye
    animal.ellipse(*head, *build.skull).paint("head", coat * 1.06)
    muzzle = animal.limb(head, nose, build.skull[1] * 0.85, build.muzzle_width)
    muzzle.paint("head", coat * 1.06)
    animal.ellipse(nose[0], nose[1] - 0.2, 0.7, 0.7).paint("head", coat * 0.3)
    if kind == "dog":
        ear = animal.ellipse(head[0] - 1.2, head[1] + 0.4, 1.2, 2.5)
        ear.paint("ear", coat * 0.6)
    else:
        height = 1.6
        if kind == "cat":
            height = 2.2
        for u in (head[0] + 0.9, head[0] - 1.3):
            point = (u - 0.3, head[1] - build.skull[1] - height)
            ear = animal.polygon((u - 1.1, head[1] - 1.4), point, (u + 1.1, head[1] - 1.4))
            ear.paint("ear", coat * 0.75)
    eye = animal.ellipse(head[0] + 0.8, head[1] - 0.5, 0.55, 0.55)
    eye.paint("eye", canvas.colour("pupil", _PUPIL))


def _antlers(animal: Frame, head: Point) -> None:
    """Paint two antlers, each a beam that forks once."""
    for lean in (1.6, -1.6):
        root = (head[0] - 0.4, head[1] - 1)
        fork = (head[0] - 0.4 + lean, head[1] - 3.6)
        antler = animal.limb(root, fork, 0.45, 0.4)
        antler |= animal.limb(fork, (fork[0] - 0.2, fork[1] - 3.2), 0.4, 0.3)
        antler |= animal.limb(fork, (fork[0] + 2.2, fork[1] - 1.8), 0.35, 0.3)
        antler.paint("antler", animal.canvas.colour("antler", _ANTLER))


def sitting(kind: str, canvas: Canvas, ground: Ground) -> None:
    """Paint a cat or a dog that faces the viewer."""
    animal = _stand(canvas, ground, 0.9, 1.35)
    _shadow(animal, ground, 6)
    coat = canvas.colour("coat", _COAT[kind])
    pale = blend(coat, canvas.colour("pale", _PALE), 0.6)

    # the tail, the torso with a pale chest, and the front legs
    turn = canvas.uniform("turn", -1.2, 1.2)
    tail = animal.limb((3, -1), (6.6, -2.4), 0.9, 0.8)
    tail |= animal.limb((6.4, -2), (7.2, -5.5), 0.8, 0.6)
    tail.paint("tail", coat * 0.8)
    torso = animal.ellipse(0, -4.6, 4.0, 4.8) | animal.ellipse(0, -2, 5, 2.2)
    torso.paint("torso", coat * 0.86)
    animal.ellipse(turn * 0.5, -5, 1.9, 3.2).paint("torso", pale)
    for u in (-1.5, 1.5):
        animal.limb((u, -5), (u * 1.15, 0), 1.0, 0.9).paint("leg", coat)

    # a cat's pointed ears stand behind its head, a dog's hang beside it
    chin = canvas.uniform("chin", -12.4, -10.8)
    if kind == "cat":
        for side in (-1, 1):
            root = turn + side * 2.3
            tip = turn + side * 3.7
            outer = animal.polygon((root - 2, chin - 1), (tip, chin - 6.8), (root + 2, chin - 1))
            outer.paint("ear", coat * 0.8)
            inner_tip = (tip - side * 0.3, chin - 5.3)
            inner = animal.polygon((root - 0.9, chin - 2), inner_tip, (root + 0.9, chin - 2))
            inner.paint("ear", blend(coat, _PINK, 0.6))
    animal.ellipse(turn, chin, 4.2, 3.4).paint("head", coat)
    if kind == "dog":
        for side in (-1, 1):
            ear = animal.ellipse(turn + side * 3.8, chin + 0.6, 1.3, 3.2)
            ear.paint("ear", coat * 0.6)

    # the face: muzzle and nose, then the eyes; a cat's pupils are slits
    if kind == "dog":
        animal.ellipse(turn * 1.4, chin + 1.7, 2.1, 2.2).paint("head", pale)
        animal.ellipse(turn * 1.5, chin + 0.9, 1.0, 0.8).paint("head", pale * 0.12)
        pupil_width = 0.65
    else:
        animal.ellipse(turn * 1.4, chin + 1.6, 1.8, 1.2).paint("head", pale)
        animal.ellipse(turn * 1.5, chin + 0.9, 0.6, 0.5).paint("head", _PINK * 0.75)
        pupil_width = 0.4
    for side in (-1, 1):
        middle = turn * 1.3 + side * 1.8
        eye = animal.ellipse(middle, chin - 0.5, 1.05, 0.9)
        eye.paint("eye", canvas.colour("iris", _IRIS[kind]))
        pupil = animal.ellipse(middle, chin - 0.5, pupil_width, 0.85)
        pupil.paint("eye", canvas.colour("pupil", _PUPIL))


def frog(canvas: Canvas, ground: Ground) -> None:
    """Paint a frog that faces the viewer."""
    frog = _stand(canvas, ground, 0.95, 1.5)
    _shadow(frog, ground, 8)
    skin = canvas.colour("skin", _SKIN)

    # the hind legs, each a thigh and a foot, then the body with a pale belly
    for side in (-1, 1):
        frog.ellipse(side * 5, -2.2, 2.7, 2.4).paint("skin", skin * 0.74)
        frog.ellipse(side * 6.4, -0.4, 2, 0.7).paint("skin", skin * 0.62)
    frog.ellipse(0, -3, 4.7, 3.1).paint("skin", skin)
    frog.ellipse(0, -2.4, 3.3, 2.3).paint("skin", blend(skin, _CREAM, 0.6))

    # the front legs, and the bumps on which the eyes will be
    for side in (-1, 1):
        leg = frog.limb((side * 2.9, -3.4), (side * 2.6, -0.2), 0.8, 0.6)
        leg.paint("skin", skin * 0.86)
        frog.ellipse(side * 2.8, -8.1, 1.8, 1.7).paint("skin", skin * 1.04)

    # the head, with a wide mouth and the eyes
    frog.ellipse(0, -5.9, 4.9, 2.7).paint("skin", skin)
    frog.ellipse(0, -4.9, 4.2, 0.55).paint("skin", skin * 0.42)
    gaze = canvas.uniform("gaze", -0.5, 0.5)
    for side in (-1, 1):
        eye = frog.ellipse(side * 2.8, -8.2, 1.2, 1.1)
        eye.paint("eye", canvas.colour("iris", _IRIS["frog"]))
        pupil = frog.ellipse(side * 2.8 + gaze, -8.2, 0.65, 0.75)
        pupil.paint("eye", canvas.colour("pupil", _PUPIL))
