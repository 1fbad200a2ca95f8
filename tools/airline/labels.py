"""The label scheme of the airline corpus: ATIS's 22 intent and 122 slot labels, in ATIS's order.

The lists equal those of the ATIS corpus, so a model trained on one corpus can be tested on the other.
"""

INTENT_LABELS = [
    "UNK",
    "atis_abbreviation",
    "atis_aircraft",
    "atis_aircraft#atis_flight#atis_flight_no",
    "atis_airfare",
    "atis_airline",
    "atis_airline#atis_flight_no",
    "atis_airport",
    "atis_capacity",
    "atis_cheapest",
    "atis_city",
    "atis_distance",
    "atis_flight",
    "atis_flight#atis_airfare",
    "atis_flight_no",
    "atis_flight_time",
    "atis_ground_fare",
    "atis_ground_service",
    "atis_ground_service#atis_ground_fare",
    "atis_meal",
    "atis_quantity",
    "atis_restriction",
]

# Chunk types in alphabetical order; "+" marks a type whose chunks may have more than one word (it has an I- label).
CHUNK_TYPES = """
    aircraft_code airline_code airline_name+ airport_code airport_name+
    arrive_date.date_relative arrive_date.day_name arrive_date.day_number+ arrive_date.month_name
    arrive_date.today_relative arrive_time.end_time+ arrive_time.period_mod arrive_time.period_of_day+
    arrive_time.start_time+ arrive_time.time+ arrive_time.time_relative+
    city_name+ class_type+ connect cost_relative+ day_name day_number days_code
    depart_date.date_relative depart_date.day_name depart_date.day_number+ depart_date.month_name
    depart_date.today_relative+ depart_date.year depart_time.end_time+ depart_time.period_mod
    depart_time.period_of_day+ depart_time.start_time+ depart_time.time+ depart_time.time_relative+
    economy+ fare_amount+ fare_basis_code+ flight_days flight_mod+ flight_number flight_stop+ flight_time+
    fromloc.airport_code fromloc.airport_name+ fromloc.city_name+ fromloc.state_code fromloc.state_name+
    meal meal_code+ meal_description+ mod month_name or period_of_day restriction_code+
    return_date.date_relative+ return_date.day_name return_date.day_number return_date.month_name
    return_date.today_relative+ return_time.period_mod return_time.period_of_day round_trip+
    state_code state_name stoploc.airport_name stoploc.city_name+ stoploc.state_code
    time+ time_relative today_relative+ toloc.airport_code toloc.airport_name+ toloc.city_name+
    toloc.country_name toloc.state_code toloc.state_name+ transport_type+
""".split()

MANY_WORDS = frozenset(name.rstrip("+") for name in CHUNK_TYPES if name.endswith("+"))

SLOT_LABELS = ["PAD", "UNK", "O"] + [
    prefix + name.rstrip("+") for name in CHUNK_TYPES for prefix in (("B-", "I-") if name.endswith("+") else ("B-",))
]
