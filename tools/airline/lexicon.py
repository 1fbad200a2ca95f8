"""The names that the airline grammar draws from: places, carriers, aircraft, codes, numbers, dates and times.

Earlier entries are drawn more often. Entries in a ``RARE_`` list occur in dev and test only, so that a few percent of
the words there have never been seen in training.
"""

_NAMES = dict(
    line.split(None, 1)
    for line in """
    AK alaska
    AL alabama
    AR arkansas
    AZ arizona
    BC british columbia
    CA california
    CO colorado
    DC dc
    FL florida
    GA georgia
    HI hawaii
    IA iowa
    ID idaho
    IL illinois
    IN indiana
    KS kansas
    KY kentucky
    LA louisiana
    MA massachusetts
    MD maryland
    ME maine
    MI michigan
    MN minnesota
    MO missouri
    MT montana
    NC north carolina
    NE nebraska
    NJ new jersey
    NM new mexico
    NV nevada
    NY new york
    OH ohio
    OK oklahoma
    ON ontario
    OR oregon
    PA pennsylvania
    PQ quebec
    RI rhode island
    SC south carolina
    TN tennessee
    TX texas
    UT utah
    VA virginia
    VT vermont
    WA washington
    WI wisconsin
    WY wyoming
    AB alberta
    ND north dakota
    SD south dakota
    """.strip().splitlines()
)

# City, state. A third field marks places whose state code reads as a word of its own; they are named in full only.
_PLACES = """
chicago IL|portland OR word|san antonio TX|new york NY|austin TX|washington DC|new orleans LA word|seattle WA|
denver CO|kansas city MO|boise ID|los angeles CA|albuquerque NM|boston MA|raleigh NC|salt lake city UT|atlanta GA|
tucson AZ|omaha NE|fort lauderdale FL|detroit MI word|richmond VA|honolulu HI word|san francisco CA|el paso TX|
columbus OH word|dallas TX|savannah GA|spokane WA|philadelphia PA word|las vegas NV|minneapolis MN|memphis TN|
oklahoma city OK word|phoenix AZ|st. louis MO|anchorage AK|toronto ON word|santa fe NM|hartford CT|miami FL|
little rock AR|buffalo NY|reno NV|san diego CA|madison WI|charleston SC|vancouver BC|louisville KY|baton rouge LA word|
houston TX|providence RI|des moines IA|orlando FL|sacramento CA|jacksonville FL|tulsa OK word|montreal PQ|
grand rapids MI word|burlington VT|pittsburgh PA word|birmingham AL|palm springs CA|cleveland OH word|norfolk VA|
wichita KS|nashville TN|billings MT|corpus christi TX|fresno CA|greensboro NC|portland ME word|tampa FL|calgary AB|
knoxville TN|sioux falls SD
"""
_RARE_PLACES = """
missoula MT|duluth MN|eugene OR word|lubbock TX|pensacola FL|syracuse NY|fargo ND|green bay WI|monterey CA|
bangor ME word|amarillo TX|fairbanks AK|akron OH word|edmonton AB|chattanooga TN|lincoln NE|cheyenne WY|quebec city PQ
"""
_NAMES["CT"] = "connecticut"


def _places(text: str) -> list[tuple[str, str, str | None]]:
    """Turn ``name STATE [word]`` entries into (city, state name, state code or None)."""
    places = []
    for entry in text.replace("\n", "").split("|"):
        words = entry.split()
        code = next(word for word in words if word.isupper())
        city = " ".join(words[: words.index(code)])
        places.append((city, _NAMES[code], None if words[-1] == "word" else code.lower()))
    return places


CITIES = _places(_PLACES)
RARE_CITIES = _places(_RARE_PLACES)

# Airport, code, city.
AIRPORTS = [
    ("o'hare", "ord", "chicago"),
    ("kennedy", "jfk", "new york"),
    ("logan", "bos", "boston"),
    ("dulles", "iad", "washington"),
    ("la guardia", "lga", "new york"),
    ("midway", "mdw", "chicago"),
    ("sea tac", "sea", "seattle"),
    ("love field", "dal", "dallas"),
    ("sky harbor", "phx", "phoenix"),
    ("hobby", "hou", "houston"),
    ("hartsfield", "atl", "atlanta"),
    ("stapleton", "den", "denver"),
    ("lindbergh field", "san", "san diego"),
    ("lambert", "stl", "st. louis"),
    ("bradley international", "bwi", "hartford"),
    ("eppley", "oma", "omaha"),
    ("port columbus", "cmh", "columbus"),
    ("national", "dca", "washington"),
]
RARE_AIRPORTS = [
    ("mccarran", "las", "las vegas"),
    ("john wayne", "sna", "los angeles"),
    ("blue grass", "lex", "louisville"),
    ("stewart", "swf", "new york"),
]

# Carrier, code.
AIRLINES = [
    ("delta", "dl"),
    ("united", "ua"),
    ("american airlines", "aa"),
    ("alaska airlines", "as"),
    ("continental", "co"),
    ("delta airlines", "dl"),
    ("southwest", "wn"),
    ("northwest", "nw"),
    ("united airlines", "ua"),
    ("us air", "us"),
    ("american", "aa"),
    ("twa", "tw"),
    ("air canada", "ac"),
    ("america west", "hp"),
    ("frontier", "ff"),
    ("lufthansa", "lh"),
    ("aloha", "aq"),
    ("hawaiian airlines", "ha"),
    ("pan am", "pa"),
]
RARE_AIRLINES = [("midwest express", "yx"), ("qantas", "qf"), ("icelandair", "fi"), ("japan airlines", "jl")]

AIRCRAFT = ["737", "747", "757", "767", "dc10", "727", "md80", "f28", "d9s", "100", "l10", "146"]
RARE_AIRCRAFT = ["a300", "777"]

# Flight numbers, clock times, amounts and aircraft share their figures: only the words around tell which is meant.
CLOCK = [f"{hour}{minute}" for minute in ("30", "15", "45", "20", "50") for hour in range(1, 13)]
FLIGHT_NUMBERS = [
    *("315", "200", "1045", "730", "412", "100", "737", "845", "250", "19", "1130", "605", "300", "747", "928"),
    *("515", "71", "400", "1220", "350", "630", "283", "1500", "150", "815", "767", "1015", "62", "500", "345"),
    *("727", "450", "930", "217", "120", "757", "146", "600", "1230", "88", "550", "430", "175", "999", "1000"),
]
TIMES = ["noon", "6 pm", "8 am", "5 pm", "10 am", "7", "9 am", "4 pm", "7 am", "8 o'clock", "midnight", "3 pm", "9"]
TIMES += [f"{time} {half}" for time in CLOCK[:36] for half in ("am", "pm")] + CLOCK
TIMES += [f"{hour} {half}" for hour in range(1, 13) for half in ("pm", "am", "o'clock")]
AMOUNTS = ["300", "200", "500", "250", "400", "150", "100", "350", "600", "1000", "120", "450", "800", "175", "550"]

DAYS = ["monday", "friday", "tuesday", "sunday", "wednesday", "thursday", "saturday"]
MONTHS = ["june", "may", "march", "august", "december", "september", "july", "october", "april", "november", "january"]
MONTHS += ["february"]
_UNITS = "first second third fourth fifth sixth seventh eighth ninth".split()
ORDINALS = [*_UNITS, *"tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth".split()]
ORDINALS += ["eighteenth", "nineteenth", "twentieth", *(f"twenty {unit}" for unit in _UNITS), "thirtieth"]
ORDINALS += ["thirty first"]

FARE_CODES = ["q", "y", "b", "m", "h", "f", "qx", "yn", "bh", "k", "qw", "f n", "y n"]
MEAL_CODES = ["b", "s", "d", "l", "sd", "s d", "bs"]
RESTRICTIONS = ["ap 80", "ap57", "ap 14", "vu 21", "ap 68", "vu7"]
DAYS_CODES = ["sa", "su", "mo", "fr", "daily"]
