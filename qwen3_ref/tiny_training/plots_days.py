"""Plots of a special day or night: music, snow, a boat trip, bedtime."""

from __future__ import annotations

from qwen3_ref.tiny_training.scene import Plot

SPECIAL_DAYS = (
    Plot(
        name="band",
        about=("about a band", "about {n}, who makes music", "about a noisy {who}"),
        plan="{n} plays the {inst}. It is too loud for everyone. {f} plays the {inst2}. They play together for all.",
        questions=(
            ("What did {n} play?", "{n} played the {inst}."),
            ("What did {f} play?", "{f} played the {inst2}."),
            ("Where did they play for everyone?", "They played {place}."),
        ),
        choices={
            "inst,sound": (
                "drum;Boom, boom, boom",
                "trumpet;Toot, toot, toot",
                "bell;Ding, dong, ding",
                "whistle;Tweet, tweet, tweet",
                "violin;Squeak, squeak, squeak",
            ),
            "inst2": ("piano", "guitar", "flute", "harp"),
        },
        text="""
        @open {trait_told} For {his} birthday, {n} got a {inst}. {n} played it all day long. "{sound}!" went the {inst}.

        "[Not so loud, please|Please be quiet]," said {his} {fam}. "I want to sleep." {n} went out and played behind the
        house. "{sound}!" A {beast} put its hands over its ears. "[What a noise|Please stop that]!" said the {beast}.
        {n} went away and played under a tree, but the birds did not like it. @sad Nobody wanted to hear {his} music.

        @day {n} sat all alone {place2} with the {inst} next to {him}. Then {he} heard a soft song from a window. It was
        so nice that {n} picked up the {inst} and played with it, very gently this time. The song stopped, and someone
        looked out. It was {f}, a {fadj} {fwho}.

        "[Do not stop|That sounds good]!" said {f}. "I play the {inst2}. [It is boring to play alone|I always wanted to
        play with someone]." "Nobody likes my {inst}," said {n}. "It is too loud." "[You have to listen when you
        play|First we play softly, and then we play loudly]," said {f}. "Come in, and we will try it."

        They practiced for {num} weeks. {n} learned to listen, and {f} learned to be brave. Then they put up a {col2}
        sign. It said, "Music {place}, tonight!" Everyone came. The {beast} sat in the first row.

        {n} and {f} played all their songs. When it was over, it was quiet for a moment. Then everyone clapped and
        shouted, "More! More!" Even {his} {fam} danced. @proud {trait_recalled} @end
        """,
    ),
    Plot(
        name="bedtime",
        about=("for bedtime", "about a {who} who can not sleep", "about {n} at bedtime"),
        plan="{n} can not sleep. {He} counts stars and drinks {drink}. {He} takes a {tadj} {toy} to bed and sleeps.",
        questions=(
            ("Why did {n} call {his} {fam}?", "{n} could not sleep."),
            ("What did {n} drink?", "{n} drank {drink}."),
            ("What did {n} take to bed?", "{n} took a {tadj} {toy} to bed."),
            ("What did {n} dream of?", "{n} dreamed of a {col2} boat."),
        ),
        choices={"drink": ("warm milk", "a glass of water", "some tea", "a cup of cocoa")},
        text="""
        @open {trait_told} It was late, and all the lights in the street were out. But {n} could not sleep.

        {n} turned to the left, and {he} turned to the right. {He} put the pillow over {his} head. [The bed was too
        warm, and then it was too cold.|The clock went tick, tock, tick, tock.] "{fam_call}!" called {n}. "I can not
        sleep." {His} {fam} came in and sat down on the bed. "[Close your eyes and count the stars|Think of something
        nice]," said {his} {fam}.

        So {n} looked out of the window and counted the stars. "One, two, three, four, five." But there were so many
        stars, and {n} was still awake. "{fam_call}!" {he} called again. {His} {fam} brought {drink}. {n} drank it all
        and lay down again.

        Then {n} heard a small sound. [Was it the wind?|What could it be?] {n} looked under the bed. There was {his}
        {tadj} {toy}, all alone on the cold floor. "[Can you not sleep, too|Are you lonely down there]?" asked {n}. {He}
        took the {toy} into {his} bed and put the blanket over it. "Now I will tell you a story," said {n}.

        "Once upon a time," said {n}, "there was a {beast} who lived {place}. [It had a house made of leaves|It was very
        brave]. Every night, the {beast} looked at the moon and said good night to it." {n} spoke more and more slowly.
        {His} eyes were heavy.

        When {his} {fam} looked in again, {n} was fast asleep, with the {toy} in {his} arms. {n} dreamed of a {col2}
        boat that sailed over the moon. [Good night, {n}.|In the morning, {n} could not remember how the story
        ended.|Sleep well, {n}.]
        """,
    ),
    Plot(
        name="snow",
        about=("about snow", "about a snowman", "about {n}, who builds a snowman"),
        plan="{n} and {f} build a snowman with a {col2} hat. The sun comes. The snowman melts. It will come back.",
        questions=(
            ("What did {n} and {f} build?", "They built a snowman."),
            ("What color was the hat of the snowman?", "The hat was {col2}."),
            ("What did they use for the nose?", "They used {nose} for the nose."),
            ("What did they call the snowman?", "They called the snowman {snowname}."),
        ),
        choices={
            "nose": ("a carrot", "a stick", "a red pepper", "an old spoon", "a round stone"),
            "snowname": ("Mister Cold", "Frosty Bob", "Uncle White", "King Winter", "Mister Snow"),
        },
        text="""
        @open {trait_told} One winter morning, {n} looked out of the window. Everything was white. "Snow! It is
        snowing!" cried {n}.

        {n} put on a warm coat and ran to the house of {ff}. "Come out, {f}!" called {n}. "Let us build a snowman." They
        rolled a big ball of snow, and then a smaller one, and then a very small one for the head. [It was hard
        work.|Their hands were cold, but they did not stop.]

        For the nose, they used {nose}. For the eyes, they used two black stones. "[Something is missing|He looks
        cold]," said {f}. {n} ran home and came back with a {col2} hat. Now the snowman was perfect. "We will call him
        {snowname}," said {n}. "Hello, {snowname}!" said {f}.

        Every day, they came to see {snowname}. They told him stories, and they brought him a {toy}. A {beast} sat on
        his arm and looked around. But after {num} days, the sun came out. It was warm, and {snowname} got smaller and
        smaller. "[Do not go!|What is happening to you?]" cried {n}.

        The next morning, there was only the {col2} hat on the grass. @sad {His} {fam} came out and sat down next to
        {him}. "[Do not be sad|He is not really gone]," said {his} {fam}. "The snow turns into water, and the water goes
        up into the clouds. Next winter, it will come down again as snow."

        {n} looked up at the white clouds. "See you next winter, {snowname}," said {n} and waved. {f} waved, too. Then
        {n} put the {col2} hat in a box and wrote on it, "For {snowname}." {trait_recalled} @end
        """,
    ),
    Plot(
        name="fishing",
        about=("about a big fish", "about a boat trip", "about {n} and {f} in a boat"),
        plan="{n} and {f} go out in a boat. They catch a fish with a {tadj} {toy} and let it go. It helps them.",
        questions=(
            ("What color was the boat?", "The boat was {col2}."),
            ("What did the fish have in its mouth?", "The fish had a {tadj} {toy} in its mouth."),
            ("Who went with {n}?", "{ff} went with {n}."),
        ),
        text="""
        @open {trait_told} {His} {fam} had a small {col2} boat, and at last, {n} was allowed to take it out. {f}, a
        {fadj} {fwho}, went with {him}.

        They rowed out until the houses on the shore looked like toys. The water was quiet. They put their lines into
        the water and waited. [They ate some {food}.|They talked about what they wanted to be one day.] For a long time,
        nothing happened.

        Then the line went tight. "[I have something|It is a big one]!" cried {n}. They pulled together, one, two,
        three! It was a fish, as big as a {pet}, and in its mouth it had a {tadj} {toy}. {f} took the {toy} out with
        great care. "Thank you," said the fish. "That {toy} hurt me for {num} days. Please let me go, and I will not
        forget it."

        {n} and {f} looked at each other. They had never met a fish that could speak. "[We could eat it for
        dinner|Everyone would want to see it]," said {f}. But {n} shook {his} head. "It said please," said {n}, and {he}
        put the fish back into the water. With a splash, it was gone.

        Soon a cold fog came over the water. They could not see the shore any more. "We are lost," said {f}, and {fhis}
        voice shook. Then there was a splash next to the boat. It was the fish! "Follow me," it said. They rowed after
        the fish, and it took them safely to the shore.

        "[Thank you, dear fish|You did not forget us]!" called {n}. They kept the {tadj} {toy} to remember that day.
        {trait_recalled} @end
        """,
    ),
)
