"""Words of general English that the stories lack.

They give the tokenizer merges for text outside of the stories, and name what the model politely does not know.
"""

from __future__ import annotations

from qwen3_ref.tiny_training.words import listed

TOPICS = listed(
    """
    GPUs|Python|quantum physics|black holes|the stock market|computers|the internet|CUDA kernels|football|politics|
    history|chemistry|the Roman Empire|machine learning|neural networks|taxes|electric cars|the economy|
    climate change|philosophy|Shakespeare|Einstein|the human brain|space travel|the moon landing|
    dinosaurs and fossils|volcanoes|DNA|vitamins|biology|geometry|algebra|calculus|prime numbers|the speed of light|
    gravity|atoms|electricity|magnets|engines|airplanes|programming|databases|operating systems|web pages|
    video games|movies|pop music|opera|modern art|architecture|the ocean floor|earthquakes|hurricanes|
    the solar system|Jupiter|satellites|lasers|batteries|photography|medicine|the heart|blood pressure|cancer|
    viruses|bacteria|cooking for twenty people|French wine|coffee machines|chess|poker|the Olympic Games|tennis|
    marathon training|insurance|banks|credit cards|real estate|marketing|management|law|contracts|elections|
    democracy|kings of France|Napoleon|World War II|ancient Egypt|the Middle Ages|the printing press|linear algebra|
    statistics|probability|transformers|attention|tokens|JavaScript|HTML|C++|Rust|Linux|compilers|
    artificial intelligence|robots in factories|self-driving cars|quantum computers|nuclear power|solar panels
    """,
    "|",
)

GENERAL_WORDS = listed("""
ability above accept account across action active actual addition address advice after against agree allow
already although amount analysis ancient animal announce another answer appear apply approach argue around arrive
article artist assume attack attempt attention audience author available average avoid award balance because become
before behavior believe benefit between beyond billion biology border bottom brain branch breath bridge brief
brilliant broad budget building business calculate campaign cancer capacity capital career category cause central
century certain challenge chance change chapter character charge chemical choice church circle citizen civil claim
classic clear client climate collection college column combine comfort command comment commercial committee common
communication community company compare competition complete complex computer concept concern condition conference
confirm connect consider constant construction consumer contain content context continue contract control conversation
corner correct cost council count country couple course cover create credit crime crisis critical culture current
customer damage danger data deal death debate decade decide decision defense define degree deliver demand democracy
depend describe design desire detail determine develop device difference different difficult digital dimension direct
direction director disappear discover discuss disease distance district division doctor document dollar domain double
doubt drawing driver during early earth economic economy edge education effect effort either election electric element
eleven emergency emotion employee energy engine engineer enough enter entire environment equal equation error escape
especially establish estimate even evening event every evidence exact examine example excellent except exchange
exercise exist expect expensive experience experiment expert explain express extra factor failure familiar famous
fashion feature federal feeling field fifteen figure final finance finger finish foreign forget formal former formula
forward foundation frame freedom frequent function fundamental funny future garden general generation genetic glass
global government gradient grammar graph great ground group growth guess guide habit handle happen hardware health
hearing heavy height hidden history holiday hospital however human hundred husband idea identify ignore image imagine
impact important improve include increase indeed independent index indicate individual industry inflation influence
information initial inside instance instead institution instruction insurance integer intelligence interest
international internet interview introduce investment island issue item itself joint journal journey judge jump
justice keyboard kernel kitchen knowledge labor language large laptop later latest laugh launch layer leader league
learning leather legal lesson letter level library license light likely limit linear liquid listen literature local
location logic machine magazine maintain major manager manner market marriage mass master material mathematics matrix
matter maximum maybe measure mechanism media medical medicine medium member memory mental mention message metal method
middle might military million mineral minimum minister minor minute mirror missing mission mistake mixture mobile
model modern molecule moment money month moral morning motion mountain movement multiple muscle museum music mystery
narrow nation natural nature nearly necessary negative neither network neural never newspaper nobody normal notice
novel nuclear number object observe obvious occur ocean offer office official often online operation opinion
opportunity opposite option order ordinary organization origin other outside over owner oxygen package page paint
palace panel paper paragraph parallel parameter parent particle particular partner party passage passenger past path
patient pattern payment peace people percent perfect perform perhaps period permission person phone photo phrase
physical physics piano picture piece planet plant plastic platform player pleasure plenty pocket poem point police
policy political pollution popular population position positive possible potential pound power practice precise prefer
prepare present president pressure prevent price primary principle print prison private probably problem process
produce product profession professor profit program progress project promise proper property protect protein protocol
prove provide public publish purchase purpose quality quarter question quick quite radio random range rapid rather
reaction reader reality realize reason receive recent recognize record reduce refer reflect reform region regular
relation release religion remain remember remove repeat replace report represent republic request require research
resource respect response restaurant result return reveal revenue revolution rhythm rocket role rough round route
routine salary sample satellite scale schedule scheme school science scientist screen script search season second
secret section sector security select senate senior sense sentence separate sequence series serious service session
several shadow shape share shoulder signal significant silence silicon similar simple since single situation size
skill social society software soldier solution source space speaker special specific speech speed spirit sport spread
square stage standard station status storage strange strategy stream street strength stress strict string structure
student study style subject success sudden suffer suggest summary supply support suppose surface surprise survey
switch symbol system table talent target task teacher team technical technique technology temperature tensor term
theater theory therefore thermal thing thirty thousand thread threat through throughout ticket tissue title today
together tomorrow tongue total toward tower traffic training transfer transform translate transport travel treatment
trial triangle trouble truth twenty typical uncle under understand union unique unit universe university until upper
urban useful user usual vacation valley value variable variety vector vehicle version video village violence virtual
virus vision visit visual voice volume vote warning waste watch water weapon weather website weight welcome western
whatever wheel whether which while whole widely wife window winter wisdom within without witness woman wonder wooden
word worker world worry worth write writer wrong yellow yesterday young youth zero zone
""")

# Common pieces of longer words; with them, words that nobody foresaw still split into few tokens.
ENDINGS = listed("""
ing ed er est ly ness ment tion sion able ible ful less ous ive al ic ity ism ist ize ise ure ance ence ship hood ward
""")
