"""Facts that everybody knows, as data."""

from __future__ import annotations


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in " ".join(row.split()).split("|")] for row in text.split(";")]


CAPITALS = dict(
    _rows("""
France|Paris;Germany|Berlin;Spain|Madrid;Italy|Rome;England|London;Japan|Tokyo;China|Beijing;India|New Delhi;
Egypt|Cairo;Greece|Athens;Norway|Oslo;Sweden|Stockholm;Finland|Helsinki;Denmark|Copenhagen;Poland|Warsaw;
Austria|Vienna;Hungary|Budapest;Ireland|Dublin;Portugal|Lisbon;Russia|Moscow;Canada|Ottawa;Mexico|Mexico City;
Brazil|Brasilia;Peru|Lima;Chile|Santiago;Cuba|Havana;Kenya|Nairobi;Ghana|Accra;Turkey|Ankara;Iran|Tehran;Iraq|Baghdad;
Thailand|Bangkok;Vietnam|Hanoi;Nepal|Kathmandu;Australia|Canberra;Scotland|Edinburgh;Belgium|Brussels;
the United States|Washington;Ukraine|Kyiv;Argentina|Buenos Aires;South Korea|Seoul;Iceland|Reykjavik;Cyprus|Nicosia
""")
)

OPPOSITES = _rows("""
big|small;hot|cold;up|down;fast|slow;happy|sad;day|night;open|closed;wet|dry;light|dark;hard|soft;full|empty;
long|short;loud|quiet;good|bad;early|late;near|far;rich|poor;clean|dirty;strong|weak;first|last;left|right;
black|white;high|low;old|new;thick|thin;yes|no;in|out;inside|outside;always|never;true|false;sweet|sour;brave|scared;
start|end;win|lose;push|pull;summer|winter;north|south;east|west;asleep|awake;love|hate;more|less;above|below;
before|after
""")

ANIMAL_FACTS = _rows("""
cow|on a farm|grass|moo;dog|in a house|meat|woof;cat|in a house|fish|meow;duck|on a pond|bread|quack;
sheep|in a field|grass|baa;pig|on a farm|corn|oink;horse|in a stable|hay|neigh;lion|in the grassland|meat|roar;
bee|in a hive|honey|buzz;mouse|in a hole|cheese|squeak;owl|in a tree|mice|hoot;frog|in a pond|flies|croak;
rooster|on a farm|seeds|cock-a-doodle-doo;wolf|in the forest|meat|howl;monkey|in the jungle|bananas|ooh ooh;
snake|in the desert|mice|hiss;bear|in the forest|honey|growl;bird|in a nest|worms|tweet;goat|on a mountain|leaves|maa;
elephant|in the grassland|leaves|toot
""")

THING_COLORS = _rows("""
the sky|blue;grass|green;snow|white;the sun|yellow;the night|dark;blood|red;a banana|yellow;a leaf|green;
an orange|orange;a cloud|white;coal|black;a carrot|orange;chocolate|brown;milk|white;a strawberry|red;the sea|blue;
a frog|green;an elephant|grey;a fire truck|red;a pumpkin|orange;a lemon|yellow;a crow|black;a bear|brown;a pig|pink
""")

USES = _rows("""
knife|cut bread;pen|write;spoon|eat soup;key|open a door;bed|sleep;car|drive;boat|cross the sea;umbrella|stay dry;
lamp|see in the dark;broom|sweep the floor;towel|get dry;oven|bake a cake;phone|talk to a friend;clock|tell the time;
book|read;shovel|dig a hole;cup|drink;chair|sit;coat|stay warm;ladder|climb up;needle|sew;brush|paint;
map|find the way;bell|make a sound;ball|play;bike|ride to school;window|look outside;boot|walk in the snow;
basket|carry things;hammer|hit a nail
""")

EASY = _rows("""
What do bees make?|Bees make honey.;Where do fish live?|Fish live in the water.;
What do cows give us?|Cows give us milk.;How many legs does a dog have?|A dog has four legs.;
How many legs does a bird have?|A bird has two legs.;How many legs does a spider have?|A spider has eight legs.;
When do we see the moon?|We see the moon at night.;What do we use to see?|We see with our eyes.;
What do we use to hear?|We hear with our ears.;Is ice hot or cold?|Ice is cold.;Is fire hot or cold?|Fire is hot.;
What falls from the clouds?|Rain falls from the clouds.;What do birds build?|Birds build nests.;
What do we do when we are tired?|We sleep when we are tired.;
What do we do when we are hungry?|We eat when we are hungry.;
What should you say when someone helps you?|You should say thank you.;
What should you say when you hurt someone?|You should say sorry.;
How many days are in a week?|There are seven days in a week.;
How many months are in a year?|There are twelve months in a year.;
What are the four seasons?|The four seasons are spring, summer, autumn and winter.;
Which is bigger, a mouse or an elephant?|An elephant is bigger than a mouse.;
Which is faster, a snail or a horse?|A horse is faster than a snail.;
Which is colder, ice or soup?|Ice is colder than soup.;Where does bread come from?|Bread is baked from flour.;
What do plants need to grow?|Plants need water and light to grow.;
Does a fish have feathers?|No, a fish does not have feathers.;Can birds fly?|Yes, most birds can fly.;
Can a stone swim?|No, a stone can not swim.;Is the sun hot?|Yes, the sun is very hot.
""")
