"""The styles of faces, and names for the variants of each part of a face.

The drawings are by others; their variants, colours and names were chosen by eye at 64x64: a variant that is hard to distinguish
from another shares its name, or is left out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Variants = tuple[str, ...]
Palette = Mapping[str, str]  # name -> #rrggbb

SKIN = {"light": "#fbdcc4", "tan": "#dfa878", "brown": "#b0703f", "dark brown": "#7d4c31"}
HAIR = {
    **{"black": "#1c1410", "brown": "#54311a", "blond": "#ecc94b", "red": "#b8401f", "grey": "#b4b4b8"},
    **{"blue": "#4f9fe0", "pink": "#f48fb1", "purple": "#9370db", "green": "#4caf7a"},
}
CLOTHES = {
    **{"red": "#e05252", "orange": "#ef8d3c", "yellow": "#f2c744", "green": "#4fae62"},
    **{"blue": "#4a7fd6", "purple": "#8e63c9", "black": "#2f2f35", "white": "#f7f7f7"},
}
# Pastels: none resembles a skin, and hair and clothes stand out against all.
BACKGROUND = {"blue": "#a9cfee", "green": "#b5e0c0", "purple": "#cdbff0", "grey": "#d4d7dc", "yellow": "#f7eab0", "pink": "#f6c9d6"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the face: its variants and their names.

    name: the attribute's name; its colour is the attribute `<name>_color`
    words: phrase -> variants it describes; {} is the colour. A part without variants is only a colour
    component: DiceBear's name of the part. Two parts may share one: a hat hides the hair
    place: the phrase's slot in "a <is> person with <with>, in <in>, on <on>"
    chance: probability that the part is present; phrases are then equally likely
    bare: variants that do not show the part, for components that are always drawn
    absent: the phrase for its absence, if any
    palette: the colours for {}
    paints: DiceBear's name of that colour
    painted: the variants that take the colour, if not all; the others are black
    """

    name: str
    words: Mapping[str, Variants]
    component: str = ""
    place: Literal["is", "with", "in", "on"] = "with"
    chance: float = 1.0
    bare: Variants = ()
    absent: str = ""
    palette: Palette = dataclasses.field(default_factory=dict)
    paints: str = ""
    painted: Variants | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Style:
    """A style of faces, with the licence of the drawings.

    parts: the parts, in the order of choosing and describing them
    options: DiceBear's options common to all faces, such as hidden parts and scale
    limits: (part, phrase) -> {later part: phrases allowed with it}; the phrase "" is absence
    """

    title: str
    author: str
    licence: str
    url: str
    parts: tuple[Part, ...]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    limits: Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]] = dataclasses.field(default_factory=dict)


def _skin(paints: str = "skin", palette: Palette = SKIN) -> Part:
    return Part(name="skin", words={"{} skin": ()}, palette=palette, paints=paints)


def _numbered(*numbers: int, kind: str = "variant") -> Variants:
    return tuple(f"{kind}{number:02d}" for number in numbers)


_BACKGROUND = Part(name="background", words={"a {} background": ()}, place="on", palette=BACKGROUND, paints="background")
_CC_BY, _CC0 = "CC BY 4.0", "CC0 1.0"

# A table, read across.
# fmt: off
STYLES: Mapping[str, Style] = {
    "micah": Style(
        title="Avatar Illustration System", author="Micah Lanier", licence=_CC_BY,
        url="https://www.figma.com/community/file/829741575478342595",
        parts=(
            _skin("base"),
            Part(name="hat", component="hair", words={"a {} turban": ("turban",)}, place="in", chance=0.1, palette=CLOTHES, paints="hair"),
            Part(name="hair", component="hair", chance=0.85, bare=("mrClean",), absent="no hair", palette=HAIR, paints="hair", words={
                "short {} hair": ("fonze",), "a {} mohawk": ("mrT",), "a {} bob": ("pixie",),
                "shoulder-length {} hair": ("dannyPhantom",), "long {} hair": ("full",),
            }),
            Part(name="glasses", component="glasses", chance=0.35, palette={"red": "#d62828", "blue": "#2b6fe3", "yellow": "#f5b50a"},
                paints="glasses", words={"round {} glasses": ("round",), "square {} glasses": ("square",)}),
            Part(name="facial_hair", component="facialHair", chance=0.25,
                words={"a black beard": ("beard",), "stubble": ("scruff",)}),
            Part(name="earrings", component="earrings", chance=0.25, palette={"yellow": "#f4d150", "white": "#ffffff"}, paints="earring",
                words={"a {} hoop earring": ("hoop",)}),
            Part(name="expression", component="mouth", place="is", words={
                "smiling": ("smile", "smirk"), "laughing": ("laughing",), "frowning": ("frown", "sad"), "pouting": ("pucker",),
                "grimacing": ("nervous",), "surprised": ("surprised",),
            }),
            Part(name="clothes", words={"a {} shirt": ()}, place="in", palette=CLOTHES, paints="shirt"),
            _BACKGROUND,
        ),
        limits={
            # A mouth drawn as a black line is invisible on a black beard.
            ("facial_hair", "a black beard"): {"expression": ("laughing", "grimacing", "surprised")},
            ("hair", "long {} hair"): {"earrings": ("",)},
        },
    ),
    "open-peeps": Style(
        title="Open Peeps", author="Pablo Stanley", licence=_CC0, url="https://www.openpeeps.com/", options={"maskProbability": 0},
        parts=(
            _skin(),
            Part(name="hat", component="head", place="in", chance=0.15,
                words={"a black hat": ("hatHip",), "a beanie": ("hatBeanie",), "a turban": ("turban",), "a headscarf": ("hijab",)}),
            Part(name="hair", component="head", chance=0.9, bare=("noHair1",), absent="no hair", palette=HAIR, paints="headContrast",
                painted=("bangs", "grayBun", "grayMedium", "grayShort", "mohawk", "mohawk2", "short4", "mediumBangs2"), words={
                "short {} hair": ("grayShort", "short1", "short2", "short3", "short4", "short5", "pomp", "shaved2"),
                "spiky {} hair": ("bantuKnots", "twists"), "a {} flat top": ("flatTop", "flatTopLong"),
                "a {} mohawk": ("mohawk", "mohawk2"), "a {} afro": ("afro", "longAfro"),
                "curly {} hair": ("dreads1", "dreads2", "longCurly"), "a {} bun": ("bun", "bun2", "grayBun"),
                "shoulder-length {} hair": ("bangs", "bangs2", "mediumBangs", "medium2", "mediumBangs3"),
                "long {} hair": ("long", "longBangs", "medium3", "mediumStraight"),
            }),
            Part(name="glasses", component="accessories", chance=0.3, words={
                "glasses": ("glasses", "glasses2", "glasses3", "glasses4", "glasses5"),
                "sunglasses": ("sunglasses", "sunglasses2"), "an eyepatch": ("eyepatch",),
            }),
            Part(name="facial_hair", component="facialHair", chance=0.2, words={
                "a black beard": ("full", "full2", "full3"), "a black goatee": ("goatee1", "goatee2"),
                "a black moustache": ("moustache2", "moustache3", "moustache5", "moustache6", "moustache7"),
            }),
            Part(name="expression", component="expression", place="is", words={
                "smiling": ("smile", "smileBig", "smileTeethGap"), "laughing": ("smileLOL",),
                "angry": ("veryAngry", "angryWithFang", "rage"), "sad": ("solemn",),
                "frightened": ("concernedFear",), "serious": ("serious", "blank", "eyesClosed"),
            }),
            Part(name="clothes", words={"a {} shirt": ()}, place="in", palette=CLOTHES, paints="clothing"),
            _BACKGROUND,
        ),
    ),
    "lorelei": Style(
        title="Lorelei", author="Lisa Wischofsky", licence=_CC0, url="https://www.figma.com/community/file/1198749693280469639",
        options={"beardProbability": 0, "earringsProbability": 0, "frecklesProbability": 0, "scale": 1.05, "translateY": 4},
        parts=(
            _skin(),
            Part(name="hair", component="hair", palette=HAIR, paints="hair", words={
                "short {} hair": _numbered(1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 28, 43, 47), "short curly {} hair": _numbered(5, 22, 39),
                "spiky {} hair": _numbered(27), "chin-length {} hair": _numbered(10, 17, 19, 20), "a {} bun": _numbered(14, 38, 45, 46),
                "two {} buns": _numbered(26), "a {} ponytail": _numbered(31, 33), "curly {} hair": _numbered(18, 24, 32),
                "long {} hair": _numbered(13, 15, 16, 21, 23, 40, 35),
            }),
            Part(name="flowers", component="hairAccessories", chance=0.15, words={"flowers in the hair": ("flowers",)}),
            Part(name="glasses", component="glasses", chance=0.3,
                words={"round glasses": _numbered(1), "square glasses": _numbered(3, 4), "sunglasses": _numbered(2)}),
            Part(name="expression", component="mouth", place="is", words={
                "smiling": _numbered(1, 2, 3, 4, 6, 10, 15, kind="happy"), "grinning": _numbered(7, 16, kind="happy"),
                "frowning": _numbered(4, 5, kind="sad"), "serious": _numbered(3, 9, kind="sad"), "surprised": _numbered(1, kind="sad"),
            }),
            _BACKGROUND,
        ),
    ),
    "notionists": Style(
        title="Notionists", author="Zoish", licence=_CC0, url="https://heyzoish.gumroad.com/l/notionists",
        options={"gestureProbability": 0, "scale": 1.5, "translateY": 19, "translateX": 2},
        parts=(
            Part(name="hat", component="hair", place="in", chance=0.15,
                words={"a white cap": ("hat",), "a white turban": _numbered(61), "a black headscarf": _numbered(62, 63)}),
            Part(name="hair", component="hair", words={
                "short black hair": _numbered(1, 5, 6, 7, 13, 16, 18, 19, 21, 24, 25, 34, 35, 38, 44, 49, 54, 55),
                "curly black hair": _numbered(9, 20, 22, 31, 33, 40), "spiky black hair": _numbered(50, 51, 52, 53),
                "a black bun": _numbered(29, 48, 57), "two black buns": _numbered(30, 59), "a black ponytail": _numbered(39, 45, 47),
                "long black hair": _numbered(2, 10, 23, 28, 36, 41),
            }),
            Part(name="glasses", component="glasses", chance=0.35,
                words={"glasses": _numbered(3, 8, 11), "sunglasses": _numbered(1, 2, 4, 5, 6, 7, 9, 10)}),
            Part(name="facial_hair", component="beard", chance=0.25,
                words={"a black beard": _numbered(2, 11, 12), "a black moustache": _numbered(3, 7, 10)}),
            Part(name="expression", component="mouth", place="is", chance=0.8, bare=_numbered(4, 13, 21),
                words={"smiling": _numbered(3, 8, 14, 17, 22, 23, 30), "frowning": _numbered(18, 19), "surprised": _numbered(15, 29)}),
            _BACKGROUND,
        ),
        limits={("facial_hair", hair): {"expression": ("",)} for hair in ("a black beard", "a black moustache")},
    ),
    "avataaars": Style(
        title="Avataaars", author="Pablo Stanley", licence="Free for personal and commercial use", url="https://avataaars.com/",
        options={
            "accessoriesColor": ["#262e33"], "eyesVariant": ["default", "happy", "squint", "side", "wink"],
            "eyebrowsVariant": ["default", "defaultNatural", "raisedExcited", "raisedExcitedNatural", "upDown", "flatNatural"],
        },
        parts=(
            _skin(),
            Part(name="hat", component="top", place="in", chance=0.2, palette=CLOTHES, paints="hat", words={
                "a {} hat": ("hat",), "a {} turban": ("turban",), "a {} headscarf": ("hijab",),
                "a {} winter hat": ("winterHat1", "winterHat03"),
            }),
            Part(name="hair", component="top", palette=HAIR, paints="hair", words={
                "short {} hair": ("shortFlat", "shortRound", "shortWaved", "theCaesar", "theCaesarAndSidePart"),
                "short curly {} hair": ("shortCurly", "dreads01"), "receding {} hair": ("sides",), "a {} afro": ("fro",),
                "curly {} hair": ("curly",), "a {} bun": ("bun",), "a {} bob": ("bob", "miaWallace"), "{} dreadlocks": ("dreads",),
                "long {} hair": ("straight01", "straight02", "straightAndStrand", "curvy"),
            }),
            Part(name="glasses", component="accessories", chance=0.3, words={
                "square glasses": ("prescription01", "prescription02"), "round glasses": ("round",),
                "sunglasses": ("kurt", "sunglasses", "wayfarers"), "an eyepatch": ("eyepatch",),
            }),
            Part(name="facial_hair", component="facialHair", chance=0.25, palette=HAIR, paints="facialHair",
                words={"a {} beard": ("beardMajestic", "beardMedium"), "a {} moustache": ("moustacheFancy", "moustacheMagnum")}),
            Part(name="expression", component="mouth", place="is", words={
                "smiling": ("smile", "twinkle"), "serious": ("serious",), "frowning": ("sad",), "shouting": ("screamOpen",),
                "grimacing": ("grimace",),
            }),
            Part(name="clothes", component="clothes", place="in", palette=CLOTHES, paints="clothes",
                words={"a {} shirt": ("shirtCrewNeck", "shirtScoopNeck"), "a {} hoodie": ("hoodie",), "{} overalls": ("overall",)}),
            _BACKGROUND,
        ),
        limits={("hair", "receding {} hair"): {"glasses": ("square glasses", "round glasses")}},
    ),
    "personas": Style(
        title="Personas by Draftbit", author="Draftbit", licence=_CC_BY, url="https://personas.draftbit.com/",
        parts=(
            _skin(palette={"light": "#f5c9a8", "tan": "#c98748", "brown": "#8a4a20", "dark brown": "#4a2210"}),  # under a white sheen
            Part(name="hat", component="hair", words={"a red beanie": ("beanie",)}, place="in", chance=0.1),
            Part(name="hair", component="hair", chance=0.9, bare=("bald",), absent="no hair", palette=HAIR, paints="hair", words={
                "short {} hair": ("shortCombover", "shortComboverChops", "fade"), "curly {} hair": ("curlyHighTop",),
                "a {} afro": ("curly",), "a {} mohawk": ("mohawk",), "a {} bun": ("straightBun",), "{} pigtails": ("pigtails",),
                "a {} bob": ("bobCut", "bobBangs"), "long {} hair": ("long", "extraLong"),
            }),
            Part(name="glasses", component="eyes", chance=0.4, bare=("happy", "open", "sleep", "wink"),
                words={"glasses": ("glasses",), "sunglasses": ("sunglasses",)}),
            Part(name="facial_hair", component="facialHair", chance=0.25, palette=HAIR, paints="facialHair",
                words={"a {} goatee": ("goatee",), "a {} moustache": ("walrus", "pyramid")}),
            Part(name="expression", component="mouth", place="is",
                words={"smiling": ("smile", "bigSmile", "smirk"), "frowning": ("frown",), "surprised": ("surprise",)}),
            Part(name="clothes", component="clothes", place="in", palette=CLOTHES, paints="clothing",
                words={"a {} shirt": ("rounded", "squared"), "a checkered {} shirt": ("checkered",)}),
            _BACKGROUND,
        ),
    ),
    "toon-head": Style(
        title="ToonHead", author="Johan Melin", licence=_CC_BY, url="https://www.figma.com/community/file/1589627891082866389",
        options={"eyebrowsVariant": ["happy", "neutral", "raised"]},
        # The smile is a thin line, hidden by any hair.
        limits={("facial_hair", hair): {"expression": ("laughing", "surprised")} for hair in ("a beard", "a goatee", "a moustache")},
        parts=(
            _skin(),
            Part(name="hair", component="hair", palette=HAIR, paints="hair",
                words={"a {} bun": ("bun",), "short {} hair": ("sideComed", "undercut"), "spiky {} hair": ("spiky",)}),
            Part(name="back_hair", component="rearHair", chance=0.35,
                words={"long hair at the back": ("longStraight", "longWavy"), "shoulder-length hair at the back": ("shoulderHigh",)}),
            Part(name="facial_hair", component="beard", chance=0.25,
                words={"a beard": ("fullBeard", "longBeard"), "a goatee": ("chin", "chinMoustache"), "a moustache": ("moustacheTwirl",)}),
            Part(name="expression", component="mouth", place="is",
                words={"smiling": ("smile",), "laughing": ("laugh",), "surprised": ("agape",)}),
            Part(name="clothes", component="clothes", place="in", palette=CLOTHES, paints="clothes",
                words={"a {} T-shirt": ("tShirt",), "a {} turtleneck": ("turtleNeck",), "a {} dress": ("dress",)}),
            _BACKGROUND,
        ),
    ),
    "adventurer": Style(
        title="Adventurer", author="Lisa Wischofsky", licence=_CC_BY, url="https://www.figma.com/community/file/1184595184137881796",
        options={"earringsProbability": 0},
        # Only an open mouth is visible under a moustache.
        limits={("details", "a black moustache"): {"expression": ("laughing", "shouting")}},
        parts=(
            _skin(),
            Part(name="hair", component="hair", chance=0.9, bare=_numbered(19, kind="short"), absent="no hair",
                palette=HAIR, paints="hair", words={
                "short {} hair": _numbered(1, 2, 4, 7, 10, 11, 14, kind="short"), "curly {} hair": _numbered(3, 8, 17, 18, kind="short"),
                "spiky {} hair": _numbered(16, kind="short"), "a {} mohawk": _numbered(15, kind="short"),
                "a {} bun": _numbered(10, 11, kind="long"), "two {} buns": _numbered(13, 23, kind="long"),
                "{} pigtails": _numbered(15, kind="long"), "a {} ponytail": _numbered(19, kind="long"),
                "wavy {} hair": _numbered(17, 22, 24, kind="long"), "long {} hair": _numbered(4, 5, 6, 7, 9, kind="long"),
            }),
            Part(name="glasses", component="glasses", chance=0.3,
                words={"glasses": _numbered(2, 5), "round glasses": _numbered(4), "sunglasses": _numbered(1)}),
            Part(name="details", component="details", chance=0.25, words={"rosy cheeks": ("blush",), "a black moustache": ("mustache",)}),
            Part(name="expression", component="mouth", place="is", words={
                "smiling": _numbered(1, 2, 5, 22, 23), "laughing": _numbered(25, 26, 27, 28), "serious": _numbered(9, 10),
                "shouting": _numbered(15), "pouting": _numbered(17),
            }),
            _BACKGROUND,
        ),
    ),
}
# fmt: on
