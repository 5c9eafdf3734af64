"""Plots in which somebody learns something: a skill, courage, patience, the truth."""

from __future__ import annotations

from qwen3_ref.tiny_training.scene import Plot

LEARNING = (
    Plot(
        name="skill",
        about=("about learning to {skill}", "about a {who} who wants to {skill}", "about {n}, who does not give up"),
        plan="{n} is a {who}. {He} wants to {skill}. It is hard. {f} helps. {n} does not give up and can do it.",
        questions=(
            ("What did {n} want to do?", "{n} wanted to {skill}."),
            ("What did {f} say?", '{f} said, "You have to {tip}."'),
            ("How long did {n} practice?", "{n} practiced for {num} days."),
        ),
        choices={
            "skill,doing,bad,tip": (
                "swim;swimming;the water went up {his} nose;kick your legs",
                "ride a bike;riding a bike;the bike fell over;look ahead and push the pedals",
                "climb the big tree;climbing the big tree;{he} slipped down;hold on and go slowly",
                "draw a horse;drawing a horse;it looked like a sausage with legs;start with a big circle",
                "sing a song;singing a song;the high notes hurt everyone's ears;take a deep breath",
                "jump rope;jumping rope;the rope hit {his} feet;count one, two, jump",
                "bake bread;baking bread;the bread was as hard as a stone;wait until the dough gets big",
                "whistle;whistling;only air came out;make your lips round",
                "tie a knot;tying a knot;the knot came open;make a loop and pull",
                "skate;skating;{he} sat down hard on the ice;bend your knees",
                "read;reading;the words were too long;say each letter first",
                "dance;dancing;{he} fell over {his} own feet;listen to the music",
                "juggle;juggling;all the balls fell down;begin with two balls",
            )
        },
        text="""
        @open {trait_told} {n} wanted to {skill}. [All {his} friends could do it.|{n} dreamed of {doing} every night.]
        But {n} did not know how.

        @day {n} tried it {place}. {He} tried once, but {bad}. {He} tried again, but {bad} again. A {beast} saw it and
        laughed. "I can not do it," said {n}. @sad

        @meet @why "I want to {skill}," said {n}, "but it is too hard for me." "[Nobody can do everything at once|It was
        hard for me, too]," said {f}. "You have to {tip}. [Look, I will show you|Watch me]." {f} showed {him} how,
        slowly, two times.

        {n} tried again. This time, it was a little better. "[You see|That was better]!" said {f}. "[Try again
        tomorrow|You only need time]." So {n} came back the next day, and the day after that. For {num} days, {n}
        practiced {doing}. Some days were good, and some days were bad, but {n} did not give up.

        Then, one evening, it worked! "Look at me!" called {n}. "I can {skill}!" {His} {fam} came out of the house to
        see it, and even the {beast} clapped. "[I knew that you could do it|Well done, {n}]," said {f}. @proud

        "[How did you do it|Is it hard]?" asked the {beast}. "You have to {tip}," said {n}, "and you must not give up.
        [Come, I will show you|I can help you]." {trait_recalled} @end
        """,
    ),
    Plot(
        name="fear",
        about=("about being brave", "about a {who} who is scared of {fear}", "about {n} and {fear}"),
        plan="{n} is a {who} who is scared of {fear}. {f} gives {him} a {aid}. {truth}. {n} is brave at the end.",
        questions=(
            ("What was {n} scared of?", "{n} was scared of {fear}."),
            ("What did {f} give {n}?", "{f} gave {n} a {aid}."),
            ("What did they find out?", "{truth}."),
        ),
        choices={
            "fear,truth,aid": (
                "the dark;It was only the shadow of a coat;little lamp",
                "the storm;It was only the wind and the rain;warm blanket",
                "the deep water;The water was soft and blue;round float",
                "the big dog;The dog only wanted to play;small bone",
                "the old house;Only an old cat lived there, and it was very nice;bright lantern",
                "the loud noise;It was only a door that went bang in the wind;silver whistle",
                "the tall slide;The slide was fast and fun;lucky stone",
                "the doctor;The doctor was kind and gave out stickers;soft teddy",
                "the high bridge;The bridge was as strong as a rock;long rope",
                "the dark cave;The cave was full of pretty stones;bright lantern",
            )
        },
        text="""
        @open {trait_told} {n} was not scared of spiders or of thunder or of big animals, but {he} was scared of {fear}.

        When {his} friends said, "Come with us," {n} always said, "[I have no time today|I am too tired]." {He} did not
        want them to know. At night, {n} told {his} {fam}. "I am scared of {fear}," {he} said. {His} {fam} [held {his}
        hand|gave {him} a hug|sat next to {him}]. "[Everyone is scared of something|One day, you will be brave]," said
        {his} {fam}.

        @day {ff} came to visit. "[Why do you never come with us|What is wrong, {n}]?" asked {f}. {n} looked at the
        floor. Then {he} told {f} everything. {f} did not laugh. "I was scared, too," said {f}. "Take this." And {f}
        gave {n} a {aid}. "We will go together."

        {n} took a deep breath and held the {aid} tight. {His} heart went boom, boom, boom. They took one step, and then
        one more step. "[Do not go away|Do not let go]," said {n}. "I am here," said {f}. Slowly, {n} opened {his} eyes.
        {truth}.

        "Oh!" said {n}. "[It is not so bad|That was not scary at all]!" {n} began to laugh, and {f} laughed with {him}.
        They stayed for a long time, and {n} did not want to go home.

        After that, {n} was not scared of {fear} any more. When a small {beast} said that it was afraid, {n} gave it the
        {aid} and said, "[Take this. We will go together|Do not worry. I was scared, too]." {trait_recalled} @end
        """,
    ),
    Plot(
        name="broken",
        about=("about telling the truth", "about a broken {thing}", "about {n}, who breaks a {thing}"),
        plan="{n} breaks a {col2} {thing}. {He} hides it {hid}. Then {n} tells the truth. {His} {fam} is not angry.",
        questions=(
            ("What did {n} break?", "{n} broke a {col2} {thing}."),
            ("Where did {n} hide the pieces?", "{n} hid the pieces {hid}."),
            ("What did {n} learn?", "{n} learned to tell the truth."),
        ),
        choices={"thing": ("cup", "vase", "plate", "pot", "bowl", "lamp", "clock", "chair", "jug", "teapot")},
        text="""
        @open {trait_told} {n} liked to run in the house. "[Do not run in the house|Please play outside]," {his} {fam}
        said every day. But {n} did not always listen.

        @day {n} was home alone. {He} ran around the table with {his} {toy}. {He} ran faster and faster, and then,
        crash! The {col2} {thing} fell down and broke. {n} stood very still. It was the {thing} that {his} {fam} liked
        best of all.

        "Oh no," said {n}. "[What will happen now|What shall I do]?" Quickly, {he} picked up the pieces and hid them
        {hid}. Then {he} sat down and waited. {His} friend {ff} looked in at the window. "[You look strange|You look
        ill]," said {f}. "Is something wrong?" "No," said {n}. But {his} tummy hurt.

        Soon {his} {fam} came home. "Where is my {col2} {thing}?" {famhe} asked. {n} looked at the floor. {He} could say
        that the {pet} did it. {He} could say that {he} did not know. But then {he} thought of {f}, who always told the
        truth. "I broke it," said {n}. "I was running. I hid the pieces {hid}. I am sorry."

        {His} {fam} was quiet for a while. Then {famhe} sat down next to {n}. "I am sad about the {thing}," {famhe}
        said, "but I am glad that you told me the truth. [A {thing} can be mended|That was brave]." Together, they got
        the pieces, and they put them together again with glue.

        It took the whole evening. Now the {thing} had {num} little lines, but it was whole. {n} felt much better. {n}
        learned to tell the truth, and {he} never ran in the house again. {trait_recalled} @end
        """,
    ),
    Plot(
        name="false_alarm",
        about=("about a {who} who makes jokes", "about {n}, who calls for help for fun", "about telling lies"),
        plan="{n} calls for help for fun. Then {n} needs help, and nobody comes. {f} helps at last.",
        questions=(
            ("What did {n} call?", '{n} called, "{call}!"'),
            ("Who came at last?", "{ff} came at last."),
            ("What did {n} learn?", "{n} learned not to tell lies."),
        ),
        choices={
            "pasture": ("on the hill", "in the meadow", "in the valley", "near the castle"),
            "call,real": (
                "Help, a wolf;a big grey wolf came out of the wood",
                "Help, a fire;some dry grass began to burn",
                "Help, a bear;a big brown bear came down the hill",
                "Help, the water is coming;the river came over the grass",
            ),
        },
        text="""
        @open {trait_told} Every day, {n} looked after the sheep {pasture}. It was [quiet there|not very exciting], and
        {n} wanted to have some fun.

        @day {n} had an idea. "{call}!" {he} called, as loud as {he} could. "{call}!" At once, all the people came
        running. They had sticks and buckets in their hands. "Where is it?" they asked. {n} laughed. "[It was only a
        joke|There is nothing here]," {he} said. The people shook their heads and went back to work.

        The next day, {n} did it again. "{call}!" {he} called. Again, they all came running, and again, {n} laughed.
        "[You should not do that|That is not funny]," said {ff}. "One day, nobody will come." But {n} did not listen.

        On the third day, {real}. This time, it was real! "{call}!" cried {n}. "{call}! Please come!" But nobody came.
        "[It is only {n} and {his} jokes|We will not be tricked again]," said the people. {n} was very scared.

        Only {f} looked up. "{n} sounds different today," said {f}. "I will go and see." {f} ran to the top of the hill,
        saw what was wrong, and rang the big bell. Then everyone came, and in the end, all was well. [The sheep were
        safe.|Nobody was hurt.]

        "I am sorry," said {n}. "You did not come because I told lies." "[We are glad that you are safe|It is good that
        you see it]," said {f}. {n} learned not to tell lies. {trait_recalled} @end
        """,
    ),
    Plot(
        name="seed",
        about=("about a seed", "about a {who} who plants a seed", "about growing a {crop}"),
        plan="{n} plants a seed {place}. {He} has to wait for {num} weeks. It grows into a big {crop}.",
        questions=(
            ("What did the seed become?", "It became a big {crop}."),
            ("Who gave {n} the seed?", "{ff} gave {n} the seed."),
            ("Where did {n} plant the seed?", "{n} planted the seed {place}."),
        ),
        choices={
            "crop": ("pumpkin", "sunflower", "apple tree", "bean plant", "tomato plant", "rose", "melon", "cherry tree")
        },
        text="""
        @open {trait_told} @day {ff} gave {n} a small brown seed. "What is it?" asked {n}. "[Put it into the ground, and
        you will see|It is a surprise]," said {f}.

        {n} went out and planted the seed {place}. {He} dug a little hole with a spoon, put the seed in, and gave it
        some water. Then {he} sat down next to it and waited. [Nothing happened.|{n} waited until it was dark.] "Grow,
        little seed," said {n}. But it did not grow.

        The next day, {n} looked again. There was nothing. "[Is it asleep|Is it broken]?" {n} asked {f}. "[Good things
        take time|You have to be patient]," said {f}. "Give it water every day, and sing a song for it." So {n} gave it
        water every morning and sang a song about the sun.

        One week went by, and then two. A {beast} came and said, "There is nothing in the ground. You are silly." @sad
        But {n} did not stop. After {num} weeks, {he} saw something green. It was a tiny leaf! "Look, look!" {n}
        shouted. "It is growing!"

        The plant grew and grew. It was as tall as a {pet}, and then as tall as {n}. In the summer, it was a big {crop}.
        [People came from far away to see it.|It was the finest {crop} of all.] Even the {beast} said, "I am sorry. It
        is wonderful."

        "How did you do it?" everyone asked. "[I gave it water, and I waited|I sang to it every day]," said {n}. That
        autumn, the {crop} gave a new seed. {n} gave it to the {beast} and said, "Put it into the ground, and you will
        see." {trait_recalled} @end
        """,
    ),
    Plot(
        name="magic",
        about=("about a wish", "about a magic {toy}", "about {n} and a magic {toy}"),
        plan="{n} finds a magic {toy} {hid}. {n} wishes for {wish}. It goes wrong. {n} takes the wish back.",
        questions=(
            ("What did {n} find?", "{n} found a magic {toy}."),
            ("What did {n} wish for?", "{n} wished for {wish}."),
            ("What did {n} learn?", "{n} learned to be happy with what {he} had."),
        ),
        choices={
            "wish,trouble": (
                "a mountain of candy;{n} ate so much that {his} tummy hurt",
                "a hundred toys;there was no room left to sleep in {his} bed",
                "a coat of gold;the coat was so heavy that {n} could not walk",
                "a house as big as a castle;{n} could not find {his} {fam} in all the rooms",
                "a talking {pet};the {pet} talked all day and all night, and {n} could not sleep",
                "snow in the summer;all the flowers were cold and the bees were sad",
                "a birthday every day;nobody had any gifts left, and the cake tasted of nothing",
            )
        },
        text="""
        @open {trait_told} @day {n} was playing {place} when {he} saw something {hid}. It was a {tadj} {toy}. {n} picked
        it up and rubbed it. "Hello," said the {toy}. {n} almost let it fall. "You can speak!" said {n}.

        "I am a magic {toy}," said the {toy}. "[I can give you one wish|You have one wish]. [What do you want?|Think
        well before you speak.]" {n} did not think for long. "I want {wish}!" {he} said. [Poof!|Bang!] There was a
        bright {col2} light, and the wish came true.

        At first, it was wonderful. {n} laughed and danced and told everyone about it. {ff} came to see it. "[I am not
        sure that this is good|I do not know about this]," said {f}. But {n} did not listen.

        Soon {trouble}. {n} sat down and held {his} head. "This is not good at all," {he} said. "[I wish that it was
        over.|Why did I ask for this?]" "[What did you have before|Were you happy before]?" asked {f}. @thought "I had
        my {fam} and my friends and my own little bed," said {n}. "I was happy."

        "Then ask the {toy} again," said {f}. {n} took the {toy} into both hands. "Please, dear {toy}," said {n}, "take
        back my wish." "[Are you sure|Is that what you really want]?" asked the {toy}. "Yes," said {n}. [Poof!|Bang!]
        There was a bright {col2} light, and all was as before.

        {n} put the magic {toy} back {hid}, so that someone else could find it. {n} learned to be happy with what {he}
        had. {trait_recalled} @end
        """,
    ),
)
