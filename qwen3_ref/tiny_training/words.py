"""The words of the stories: who, what, where. Earlier entries are drawn more often."""

from __future__ import annotations


def listed(text: str, separator: str | None = None) -> list[str]:
    """The entries of `text`, which are separated by blanks, or by `separator` if there is one."""
    return [" ".join(entry.split()) for entry in text.split(separator)]


GIRLS = listed("""
Lily Mia Anna Lucy Sara Ella Zoe Rosie Emma Ruby Ivy Nina Amy Maya Kate Luna Grace Poppy Clara Hana Priya Aisha Yuki
Nora Daisy Molly Sofia Mina Suzy Wendy Alice Bella Eva Holly Iris Jane Kim Lena Mary Nell Olive Pam Rita Sally Tess Vera
Willa Yara Zara Leila Ana Fay Meg Penny Rose Stella Tara June Ada Beth Cora Dora Elsa Freya Gina Heidi Ida
""")

BOYS = listed("""
Tom Ben Sam Max Tim Jack Leo Finn Noah Oscar Hugo Omar Theo Eli Joe Milo Dan Alex Raj Kofi Diego Felix Toby Pete Luis
Ravi Bill Carl Otto Gus Adam Bob Cody Dean Evan Fred Greg Henry Ian Jim Ken Lars Mark Nick Owen Paul Rob Sean Ted Victor
Walt Zac Ali Bruno Chen Dev Emil Frank George Hans Ivan Jonas Kai Lou Marco Nils Pablo Rex Simon Tony
""")

PET_NAMES = listed(
    "Spot Fluffy Biscuit Pepper Coco Rusty Button Pip Muffin Bubbles Patch Snowy Ginger Dot Socks Nutmeg"
)
PETS = listed("cat dog rabbit hamster parrot kitten puppy turtle")

# What each animal is good at: plots that need a helper choose by it.
ANIMALS = dict(
    entry.split(":")
    for entry in listed("""
    rabbit:hop fox:run bear:lift cat:climb dog:smell mouse:crawl owl:fly frog:swim duck:swim squirrel:climb turtle:swim
    lion:run elephant:lift bird:fly hen:dig pig:dig goat:climb puppy:smell kitten:climb monkey:climb otter:swim mole:dig
    robin:fly badger:dig deer:run pony:run beaver:swim hedgehog:crawl penguin:swim parrot:fly seal:swim tiger:run
    horse:run sheep:hop cow:lift goose:fly crow:fly ant:crawl snail:crawl crab:crawl lizard:crawl panda:climb
    koala:climb bat:fly swan:swim camel:lift zebra:run donkey:lift wolf:smell hamster:crawl gorilla:lift dragon:fly
    bee:fly dinosaur:lift unicorn:run robot:lift giraffe:run kangaroo:hop
    """)
)

NATURES = listed("""
little small kind happy brave shy curious clever young friendly silly quiet gentle cheerful busy smart careful strong
tiny polite funny calm merry playful patient helpful honest bold thoughtful
""")

# Things that fit in two hands: (adjectives, what one does with it). Each can lie under a bush or stick in a tree.
TOYS: dict[str, tuple[str, str]] = {
    "ball": ("red big bouncy blue shiny", "play with"),
    "kite": ("blue yellow long new red", "fly"),
    "boat": ("little green wooden white", "play with"),
    "doll": ("pretty soft little new", "hug"),
    "drum": ("loud red big new shiny", "play"),
    "hat": ("green funny big warm red", "wear"),
    "book": ("big thick blue new green", "read"),
    "truck": ("yellow big shiny new", "play with"),
    "train": ("blue long fast new", "play with"),
    "balloon": ("red big round yellow pink", "hold"),
    "bell": ("golden little shiny loud", "ring"),
    "crayon": ("blue green new long purple", "draw with"),
    "blanket": ("soft warm yellow blue", "sleep with"),
    "shell": ("pretty white shiny pink little", "look at"),
    "stone": ("smooth shiny round grey pretty", "look at"),
    "feather": ("long white soft blue pretty", "play with"),
    "key": ("golden old shiny small strange", "look at"),
    "coin": ("golden shiny old round small", "look at"),
    "whistle": ("silver loud new small shiny", "blow"),
    "teddy": ("soft brown fluffy big", "hug"),
    "ring": ("golden shiny pretty small", "wear"),
    "spoon": ("silver big wooden long", "eat with"),
    "lamp": ("little bright golden small", "look at"),
    "basket": ("big brown round strong new", "carry"),
    "umbrella": ("yellow big red new wide", "use"),
    "flute": ("wooden small pretty silver", "play"),
    "pencil": ("yellow long new short sharp", "write with"),
    "brush": ("big soft new blue", "paint with"),
    "cup": ("white blue pretty little", "drink from"),
    "rope": ("long strong thick new", "jump with"),
    "puppet": ("funny soft little green", "play with"),
    "mask": ("funny green golden big paper", "wear"),
    "clock": ("old big golden loud round", "look at"),
    "mirror": ("round shiny small golden", "look at"),
    "pillow": ("soft big blue fluffy warm", "sleep on"),
    "backpack": ("green new big blue", "carry"),
    "plane": ("paper white fast small", "fly"),
    "jar": ("glass big round small", "look at"),
    "camera": ("new small black shiny", "use"),
    "top": ("red wooden fast little", "spin"),
}

FOODS = listed(
    """
cake|pie|soup|bread|jam|honey|salad|porridge|stew|rice|pizza|pasta|pudding|toast|cheese|jelly|chocolate|ice cream
""",
    "|",
)
FRUITS = listed(
    "apples berries carrots nuts pears flowers mushrooms plums beans grapes cherries oranges lemons potatoes"
)
PLACES = listed(
    """
in the park|in the forest|in the garden|on the farm|at the beach|by the pond|near the river|on the hill|in the meadow|
at the market|in the village|at the playground|by the lake|near the sea|in the valley|near the castle|by the old mill|
at the edge of the wood|by the stone bridge
""",
    "|",
)
HOMES = listed(
    """
near the forest|by the sea|on a green hill|in a small village|at the end of a long road|next to a river|in a big city|
on a farm|under a big oak tree|in a blue house|behind the school|near a lake|in a little red house|by an old mill|
in a small village by the sea|in a house near the river|in a cottage in the woods|in a tall tower
""",
    "|",
)
HIDING_PLACES = listed(
    """
under a bush|behind a big rock|in the tall grass|next to the gate|under the bench|behind a tree|near the well|
under some leaves|behind the barn|on top of the wall|behind a fence|between two rocks|under a wooden cart|
under the bridge|inside a hollow tree|behind the shed|at the foot of a tall tree|in the hay|in a patch of flowers
""",
    "|",
)
FAMILY = [("mom", "she"), ("dad", "he"), ("grandma", "she"), ("grandpa", "he"), ("sister", "she"), ("brother", "he")]
WEATHER = listed("sunny warm windy cold rainy bright cloudy")
COLORS = listed("red blue green yellow pink purple orange white brown black")
CLOTHES = listed("hat scarf coat cap sweater jacket")
NUMBERS = listed("""
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty
""")
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed("January February March April May June July August September October November December")
