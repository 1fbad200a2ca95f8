"""Requests of travellers, by intent. ``INTENTS`` gives each intent's rule and its share of the corpus in per mille."""

INTENTS = {
    "atis_flight": ("flight", 640),
    "atis_airfare": ("airfare", 92),
    "atis_ground_service": ("ground_service", 44),
    "atis_airline": ("airline", 38),
    "atis_abbreviation": ("abbreviation", 36),
    "atis_aircraft": ("aircraft", 24),
    "atis_flight_time": ("flight_time", 22),
    "atis_quantity": ("quantity", 16),
    "atis_flight#atis_airfare": ("flight_and_airfare", 14),
    "atis_distance": ("distance", 11),
    "atis_city": ("city", 10),
    "atis_airport": ("airports", 10),
    "atis_capacity": ("capacity", 9),
    "atis_ground_fare": ("ground_fare", 9),
    "atis_flight_no": ("flight_no", 9),
    "atis_meal": ("meal", 7),
    "atis_restriction": ("restriction", 5),
    "atis_airline#atis_flight_no": ("airline_and_flight_no", 1),
    "atis_ground_service#atis_ground_fare": ("ground_service_and_fare", 1),
    "atis_cheapest": ("cheapest", 1),
    "atis_aircraft#atis_flight#atis_flight_no": ("aircraft_flight_and_flight_no", 1),
}

FRAME = """
utterance(%):
  36x {%}
  5x {opener} {%}
  2x {%} {closer}
  {opener} {%} {closer}

opener:
  4x (okay|yes|hello|hi there|well|all right|good morning|right)
  2x (uh|um|so|let's see|now|great|one more thing)
  (excuse me|sorry|thanks|yes please|good evening|hi)
  (okay then|right then|i have a question|in that case|oh and)

closer:
  4x (please|thanks|thank you)
  2x (if possible|if you can|if there is one|if you would)
  (for two people|for my family|for a business trip|for the holidays|as soon as possible)

want:
  6x i (need|want|would like|am looking for|am after)
  3x (i'd like|we'd like|we need|i'm trying to find|i'm hoping for)
  3x (could|can|would) you (find|get|book|reserve) me
  2x (find|get|book|reserve) me
  2x (i'm going to need|i will be needing|i'd prefer|help me find|let me have)
  (my wife and i need|my boss wants|my mother needs|our group is looking for)

show:
  4x (show|give|read|get) me
  3x (list|display|find|look up|pull up)
  3x (could|can|would) you (list|show me|look up|tell me about|check)
  2x (i'd like to see|let me see|i want to see|i'd like a list of|let me hear about)
  2x what are
  2x (please list|please show me|tell me about|please look up)
  (do you have|have you got|are there) any

all:
  3x
  (all|all the|the|all of the|your)
"""

FLIGHT = """
flight:
  20x {want} {a_flight} {journey} {wishes}
  16x {show} {all} {flights} {journey} {wishes}
  12x {flights} {journey} {wishes}
  6x (what|which) {flights} {are_there} {journey} {wishes}
  5x (is there|do you have|could i get|might there be|how about|what about) {a_flight} {journey} {wishes}
  4x (what|which) flights (leave|depart|go out of) {loc fromloc} {when depart} and \
    (arrive in|get to|reach|land in) {loc toloc} {when arrive}
  6x {travel} {plain_route} [{when depart}] {wishes}
  4x {must_be}
  4x {roles}
  6x {journey} {wishes}
  4x what is the {best} flight {journey} {wishes}
  3x (which|what) {flights} (get into|land in|arrive at|come into) {loc toloc} {when arrive} [from {loc fromloc}]
  3x (which|what) {flights} (leave|get out of|take off from) {loc fromloc} {when depart} [for {destination}]
  3x {follow_up}
  3x {priced}
  2x does <$airline:airline_name> (fly|go|have anything|run flights) {journey} {wishes}
  2x does flight <$number:flight_number> (fly|go|run) {journey}
  2x (which|what) <$airline:airline_name> flights {are_there} {journey}
  2x {plan}

are_there:
  3x are there
  2x do you have
  (go|run|operate|are available|can i take)

travel:
  4x (i want to|i need to|i'd like to|i have to|we want to) (fly|travel|go|get)
  2x (i am|i'm|we are) (flying|traveling|going)
  2x (how can i|can i|how do i|what is the best way to) (get|fly|travel)
  (fly me|get me|put me on a plane|i am planning a trip)

must_be:
  2x i (have to|need to|must|want to) be in {loc toloc} {when arrive} [and] (i'm coming|i'm starting|i leave) \
    from {loc fromloc}
  2x i'm in {loc fromloc} and (need to|have to|want to) (get to|be in|reach) {loc toloc} {when arrive}
  get me (to|into) {loc toloc} {when arrive} from {loc fromloc}
  (my meeting|my conference|the wedding) in {loc toloc} is {date arrive} and i (leave|fly out of|live in) \
    {loc fromloc}
  i can't leave {loc fromloc} {clock depart} what gets to {loc toloc} {date arrive}
  i'd like to (leave|depart) {date depart} and be in {loc toloc} {when arrive} [from {loc fromloc}]

roles:
  2x {loc fromloc} is (where i start|where i'm leaving from|my departure city) and {loc toloc} is \
    (where i want to go|my destination|where i end up)
  2x {loc toloc} is (where i want to go|my destination|where i have to be) and {loc fromloc} is \
    (where i am|where i leave from|my home airport)
  (my departure city is|i live in|i'm leaving from) {loc fromloc} [and] \
    (my destination is|i'm headed to|i'm going to) {loc toloc} {when depart}
  (my destination is|i'm going to|i'm visiting) {loc toloc} [and] \
    (i'm leaving from|i'll depart from|coming from) {loc fromloc} {when depart}
  (destination|arrival city) {loc toloc} (origin|departure city) {loc fromloc} {when depart}
  (origin|departure city) {loc fromloc} (stop|stopover) {stop_place} (destination|final stop) {loc toloc}

follow_up:
  2x (and|what about|how about|anything) (leaving|going out|departing) {when depart}
  2x (and|what about|how about|anything) (arriving|getting in|landing) {when arrive}
  2x (and|what about|how about) (returning|coming back|the way back) {when_return}
  {stops} (please|only|if possible)
  (and|how about|what about) (to|into) {loc toloc} (instead|then)
  (and|how about|what about) from {loc fromloc} (instead|then)
  (same trip|same thing|the same) but {carrier}
  (same trip|same thing|the same) but {via}
  do any of (these|those|them) (serve|offer) <breakfast|lunch|dinner:meal_description>
  (i'd prefer|i'd like|i'd rather have) {a_flight} {wish}

priced:
  2x (which|what) {flights} {journey} cost <less than|under|more than|about:cost_relative> <$amount:fare_amount>
  2x {show} {flights} {journey} with fares <under|below|over:cost_relative> <$amount:fare_amount>
  (which|what) flight {route} (has|comes with) the <lowest|cheapest|best:cost_relative> fare
  {flights} {route} that i can get for <under|less than|at most:cost_relative> <$amount:fare_amount>
  {show} {flights} {route} using fare code <$fare_code:fare_basis_code>

plan:
  {travel} from {loc fromloc} to {loc toloc} {date depart} and then on to {loc toloc}
  first from {loc fromloc} to {loc toloc} then to {loc toloc} {return_part}
  {loc fromloc} to {loc toloc} <or:or> {loc toloc} {when depart}
  i'd like to fly {carrier} {date depart} <or:or> {date depart} {route}
"""

FARES = """
airfare:
  6x how much (is|would be|does it cost for|do you charge for) {a_flight} {journey}
  5x what is the {fare} {journey} {wishes}
  5x what are the {fares} {journey} {wishes}
  4x {show} {all} {fares} {journey} {wishes}
  4x {fares} {journey}
  3x what does {a_flight} {route} cost [{carrier}]
  2x how much does it cost to (fly|go|get) {journey} {wish}
  2x {want} the {fare} {journey}
  2x {show} {fares} for {flights} {journey}
  what is the (price|cost) of flight <$number:flight_number> {route}
  are there any {fares} {route} <under|below|less than:cost_relative> <$amount:fare_amount>
  (how expensive is|what would i pay for|what will it cost me for) {a_flight} {journey}
  what is the <$fare_code:fare_basis_code> fare {route}

fare:
  3x [<cheapest|lowest|least expensive:cost_relative>] (fare|airfare|ticket price)
  2x <round trip|one way:round_trip> (fare|airfare|price)
  2x <first class|business class|coach:class_type> (fare|airfare)
  <cheapest|lowest:cost_relative> <round trip|one way:round_trip> fare
  <economy|coach economy:economy> fare
  price of {a_flight}
  cost of {a_flight}

fares:
  4x (fares|airfares|ticket prices|prices)
  2x <round trip|one way:round_trip> (fares|tickets|airfares)
  2x <first class|business class|coach:class_type> fares
  2x <cheapest|lowest|least expensive:cost_relative> (fares|tickets)
  <economy:economy> fares

flight_and_airfare:
  3x {show} {all} {flights} and {fares} {journey}
  2x {flights} and (fares|prices) {journey} {wish}
  what {flights} are there {route} and (how much are they|what do they cost)
  {want} {a_flight} {journey} and (the price|the fare|tell me the cost)
  {show} {all} {flights} {journey} with their (fares|prices)

cheapest:
  {show} whatever is <cheapest:cost_relative>
  what is the <cheapest|least expensive:cost_relative> you have

restriction:
  4x (what restrictions are there|are there any restrictions) on the [<cheapest|lowest:cost_relative>] \
    [<round trip|one way:round_trip>] fare {route}
  2x what are the restrictions (for|on) {a_flight} {route}
  (does|would) restriction <$restriction:restriction_code> apply to {a_flight} {route}
"""

SERVICES = """
ground_service:
  3x what [kind of] (ground transportation|ground transport) (is there|is available) (in|at) {town}
  2x is there any (ground transportation|ground transport) (in|at) {town} {maybe_day}
  4x {show} ground transportation (around|near) {town} {maybe_day}
  4x (can i get|is there|do they have) (a|any) {vehicle} (in|at) {town} {maybe_day}
  3x ground transport for {town}
  3x (how do i get|how can i get|what is the best way to get|what takes me) from {airport} (to|into) \
    (downtown|the center of|the city of) <$home_city:city_name>
  3x (how do i get|how can i get) (downtown|into town) from {airport} {maybe_day}
  2x {want} a {vehicle} (in|at) {town} {maybe_day}
  2x does {airport} have (a|any) {vehicle} service
  {vehicle} service (in|from) {airport}

maybe_day:
  1x
  {day_only}

vehicle:
  4x <taxi|rental car|limousine|shuttle:transport_type>
  2x <shuttle bus|bus|train|subway|car rental|air taxi:transport_type>

ground_fare:
  3x how much (is|does it cost for) a {vehicle} (in|to|from) {town}
  3x what does a {vehicle} cost (from {airport} to downtown|in {town}|at {airport})
  what are the {vehicle} (rates|prices|fares) in {town}
  {show} the {vehicle} (rates|prices) (in|at|for) {town} {maybe_day}

ground_service_and_fare:
  what ground transportation is there in {town} and (how much is it|what does it cost)
  {show} {vehicle} service in {town} and (the price|what it costs)

airports:
  3x (what|which) airports (are there|are) (in|near|around) {town}
  2x what is the name of the airport (in|at|near) {town}
  2x {show} {all} airports (in|near|around) {town}
  does {town} have (an airport|more than one airport)
  (which|what) airports are in <$any_state:state_name>
  (which|what) airport is <closest|nearest:mod> to downtown <$city:city_name>

city:
  3x (what|which) cities does <$airline:airline_name> (serve|fly to|fly into|cover)
  2x (where is|what city is) {airport} [in]
  2x {show} {all} cities [that are] served by <$airline:airline_name>
  (what|which) (city|town) does {airport} belong to
  what time zone is <$city:city_name> in

distance:
  4x how far is {airport} from (downtown|the center of|central) <$home_city:city_name>
  3x what is the distance (from|between) {airport} (to|and) (downtown|the city of) <$home_city:city_name>
  3x how far is it (from {loc fromloc} to {loc toloc}|between {loc fromloc} and {loc toloc})
  how many miles is it from {loc fromloc} to {loc toloc}
  how long is the drive from {airport} to <$home_city:city_name>
"""

FLEET = """
airline:
  5x (what|which) (airlines|carriers) (fly|go|have flights|have <nonstop|direct:flight_stop> flights) {journey}
  3x (what|which) (airline|carrier) (has|offers) {flights} {journey}
  3x (who flies|which airline flies|which airline goes) {journey} {wishes}
  2x (what|which) (airlines|carriers) (come into|fly into|fly out of|operate in) {town}
  2x {show} {all} (airlines|carriers) (flying|with flights|that fly) {journey}
  2x (what|which) (airline|carrier) (uses the code|has the code|goes by) <$airline_code:airline_code>
  (what|which) airline (has|offers) the {best} (flight|fare) {route}
  (what|which) airlines (fly|use|have) the <$aircraft:aircraft_code>
  (what|which) airline has the <most|fewest:mod> {trait} flights {route}

abbreviation:
  4x what does {code} (signify|refer to|stand for here)
  2x what would {code} (be|mean)
  can you tell me what {code} (is|means)
  3x (what do you mean by|can you explain|tell me the meaning of|i don't understand|spell out) {code}
  2x what exactly is {bare_code}
  2x (what is|what's) {bare_code} short for
  is <$airline_code:airline_code> the code for <$airline:airline_name>

code:
  5x (fare code|fare basis|booking code|the fare code|fare class) <$fare_code:fare_basis_code>
  3x (airport code|the airport code|airport) <$airport_code:airport_code>
  3x (airline code|the airline code|carrier code) <$airline_code:airline_code>
  2x restriction <$restriction:restriction_code>
  3x (meal code|the meal code) <$meal_code:meal_code>
  2x (aircraft code|plane code) <$aircraft:aircraft_code>
  (days code|day code) <$days_code:days_code>

bare_code:
  3x <$airport_code:airport_code>
  3x <$airline_code:airline_code>
  2x <$fare_code:fare_basis_code>
  <$restriction:restriction_code>

aircraft:
  4x what (kind|type|sort) of (plane|aircraft|airplane) (is used on|flies|is|do they use on) {this_flight}
  3x (what|which) (planes|aircraft|airplanes) (fly|are used|go) {journey}
  2x (what|which) (planes|aircraft) does <$airline:airline_name> (fly|use|own|operate) [{route}]
  2x {show} the (type|types) of (plane|aircraft) {journey}
  is flight <$number:flight_number> {route} a <$aircraft:aircraft_code>
  what is the <largest|smallest|biggest:mod> (plane|aircraft) <$airline:airline_name> (flies|has)

this_flight:
  3x flight <$number:flight_number> {route}
  2x <$airline:airline_name> flight <$number:flight_number>
  2x the <$time:depart_time.time> flight {route}
  2x the {best} flight {journey}
  <$airline_code:airline_code> <$number:flight_number> [{route}]

capacity:
  4x how many (seats|passengers|people) (are there on|does it take to fill|can you put on) a <$aircraft:aircraft_code>
  2x (how many passengers|how many people) can a <$aircraft:aircraft_code> (take|carry|seat)
  2x tell me the [seating] capacity of (a|the) <$aircraft:aircraft_code>
  how (big|large) is the <$aircraft:aircraft_code> [that <$airline:airline_name> flies]
  how many (seats|people) does {this_flight} (hold|have|carry)

quantity:
  4x how many {flights} {are_there} {journey}
  2x how many {flights} does <$airline:airline_name> have {journey}
  how many (airlines|carriers) (fly|go) {journey}
  how many (cities|airports) does <$airline:airline_name> (serve|fly to)
  how many <first class|business class|coach:class_type> (seats|flights) are there {journey}
  how many <round trip|one way:round_trip> fares are there {route}

flight_time:
  4x (when|what time|at what time) does {this_flight} (leave|depart|take off|arrive|land|get in)
  3x what are the <departure times|arrival times|flight times|times:flight_time> (for|of) {flights} {journey}
  3x what is the <departure time|arrival time|schedule|flying time:flight_time> (for|of) {this_flight}
  2x {show} the <schedule|timetable|departure times:flight_time> (of|for) {flights} {journey}
  2x how long (is|does it take for) {this_flight}
  <schedules|flight times:flight_time> {journey}

flight_no:
  4x what is the (flight number|number) (of|for) {a_flight} {journey}
  3x what is the flight number of the (<$time:depart_time.time>|{best}) flight {route}
  2x flight numbers {journey}
  {show} the flight numbers (of|for) {all} {flights} {journey}

meal:
  3x (what|which) (meals|kind of meal) (are|is) served on {this_flight}
  2x (is|are) <breakfast|lunch|dinner|a snack:meal_description> served on {this_flight}
  2x does {this_flight} (serve|have|include) \
    (<breakfast|lunch|dinner|supper:meal_description>|a <meal:meal>|any <food:meal>)
  (do i get|will they give me) (<breakfast|lunch|dinner:meal_description>|a <meal:meal>) on {this_flight}

airline_and_flight_no:
  (what|which) airline and flight number (go|is it) {journey}
  {want} the airline and the flight number {journey}

aircraft_flight_and_flight_no:
  {show} the flight and the flight number and the (plane|aircraft) {journey}
  what (plane|aircraft) flight and flight number is it {journey}
"""
