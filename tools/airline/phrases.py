"""Shared phrases of the airline grammar: places, routes, dates, times, and what a traveller may ask of a flight.

The argument of a rule is a role: ``fromloc`` or ``toloc`` of a place; ``depart``, ``arrive`` or ``return`` of a time.
"""

PLACES = """
loc(%):
  24x <$city:%.city_name>
  2x <$city:%.city_name> <$state:%.state_name>
  <$coded_city:%.city_name> <$state_code:%.state_code>
  <$airport:%.airport_name>
  <$named_airport:%.airport_name>
  [the] <$city_airport:%.airport_name>
  <$airport_code:%.airport_code>

destination:
  24x {loc toloc}
  <canada|mexico|england|japan:toloc.country_name>
  <$any_state:toloc.state_name>

stop_place:
  14x <$city:stoploc.city_name>
  <$airport:stoploc.airport_name>
  <$coded_city:stoploc.city_name> <$state_code:stoploc.state_code>

town:
  5x <$city:city_name>
  <$coded_city:city_name> <$state_code:state_code>

airport:
  2x <$airport:airport_name>
  <$named_airport:airport_name>
  3x [the] <$city_airport:airport_name>
  2x <$airport_code:airport_code>

route:
  44x {plain_route}
  3x out of {loc fromloc} (to|into|for|going to) {destination}
  3x into {loc toloc} (from|out of) {loc fromloc}
  3x (leaving|leaving from|departing|starting in|originating in) {loc fromloc} [and] \
    (going to|bound for|headed to) {destination}
  4x (going to|bound for|headed for|ending up in) {destination} (leaving|leaving from|out of|starting from) \
    {loc fromloc}
  with {loc fromloc} as the origin and {loc toloc} as the destination
  2x <$city:fromloc.city_name> <$city:toloc.city_name>
  2x for {destination} from {loc fromloc}
  2x from {loc fromloc}
  2x to {destination}

plain_route:
  10x from {loc fromloc} to {destination}
  3x to {destination} from {loc fromloc}
  2x between {loc fromloc} and {loc toloc}
  3x {loc fromloc} to {destination}

route_again:
  2x from {loc fromloc} (uh|oh|no|sorry) from {loc fromloc} to {loc toloc}
  from {loc fromloc} to {loc toloc} (no wait|i mean|sorry) {loc toloc}

via:
  5x (via|through|by way of) {stop_place}
  4x with a (stop|stopover|layover|break) in {stop_place}
  3x (stopping in|stopping over in|touching down in|that stops in) {stop_place}
  2x <connecting:connect> (in|through|at) {stop_place}
  changing planes in {stop_place}
  2x with <one stop|a stop:flight_stop> in {stop_place}

# A place or a time may come before, after or between the verbs that say what it is.
journey:
  110x {route}
  4x {route} {via}
  2x {via} {route}
  7x {route} {when depart}
  3x {when depart} {route}
  4x from {loc fromloc} {when depart} to {loc toloc} {when arrive}
  4x (leaving|departing) {loc fromloc} {when depart} and (arriving in|getting into|landing in|reaching) \
    {loc toloc} {when arrive}
  3x (arriving in|landing in|getting to) {loc toloc} {when arrive} (from|out of|coming from) {loc fromloc}
  3x {route} (arriving|getting in|getting there|landing) {when arrive}
  3x {route} (leaving|departing|taking off) {when depart}
  3x {route} {return_part}
  2x {when depart} {route} {return_part}
  from {loc fromloc} to {loc toloc} and from {loc fromloc} to {loc toloc}
  2x {route_again}
  2x from {loc fromloc} to either {loc toloc} <or:or> {loc toloc}
"""

TIMES = """
date(%):
  10x on <$day:%_date.day_name>
  3x <$day:%_date.day_name>
  4x on <$month:%_date.month_name> <$ordinal:%_date.day_number>
  <$month:%_date.month_name> <$ordinal:%_date.day_number>
  3x on the <$ordinal:%_date.day_number> of <$month:%_date.month_name>
  2x on <$day:%_date.day_name> the <$ordinal:%_date.day_number>
  on <$day:%_date.day_name> <$month:%_date.month_name> <$ordinal:%_date.day_number>
  3x <next|this|following:%_date.date_relative> <$day:%_date.day_name>
  3x <today|tomorrow:%_date.today_relative>
  on the <$ordinal:%_date.day_number>

daytime(%):
  4x in the <morning|afternoon|evening:%_time.period_of_day>
  in the <early|late:%_time.period_mod> <morning|afternoon|evening:%_time.period_of_day>
  <early|late:%_time.period_mod> in the <morning|afternoon|evening:%_time.period_of_day>
  at <night|lunchtime:%_time.period_of_day>

clock(%):
  5x at <$time:%_time.time>
  6x <after|before|around|by|about:%_time.time_relative> <$time:%_time.time>
  <no later than|no earlier than|just after|as close to:%_time.time_relative> <$time:%_time.time>
  2x between <$time:%_time.start_time> and <$time:%_time.end_time>
  from <$time:%_time.start_time> to <$time:%_time.end_time>
  at <$clock:%_time.time> in the <morning|afternoon|evening:%_time.period_of_day>

when(%):
  8x {date %}
  5x {clock %}
  4x {daytime %}
  3x {date %} {clock %}
  2x {clock %} {date %}
  3x {date %} {daytime %}
  <$day:%_date.day_name> <morning|afternoon|evening|night:%_time.period_of_day>
  <tomorrow:%_date.today_relative> <morning|afternoon|evening:%_time.period_of_day>

when_return:
  5x {date return}
  2x {date return} {daytime return}
  {daytime return}
  <the same day|the following day|the next day:return_date.date_relative>
  <tomorrow|the day after tomorrow|two days later:return_date.today_relative>

return_part:
  5x [and] (returning|coming back|flying back|returning home) {when_return}
  2x and back [again] {when_return}
  with the return {when_return}

depart_year:
  on <$month:depart_date.month_name> <$ordinal:depart_date.day_number> <1993|1994|1995:depart_date.year>
  the <day after tomorrow:depart_date.today_relative>

day_only:
  3x on <$day:day_name>
  2x on <$month:month_name> <$ordinal:day_number>
  2x <today|tonight|this evening:today_relative>
  2x <after|before|around:time_relative> <$time:time>
  2x at <$time:time>
  2x in the <morning|evening|afternoon:period_of_day>
"""

WISHES = """
carrier:
  6x on <$airline:airline_name>
  3x (with|flying|operated by) <$airline:airline_name>
  on <$airline:airline_name> <or:or> <$airline:airline_name>
  on <$airline_code:airline_code>

cabin:
  4x (in|flying) <first class|business class|coach class|coach:class_type>
  in <economy|economy class|coach economy:economy>

price:
  3x for <under|less than|below|at most|no more than:cost_relative> <$amount:fare_amount>
  2x that (costs|cost) <less than|under|at most|about:cost_relative> <$amount:fare_amount>
  for <$amount:fare_amount>

food:
  3x with <breakfast|lunch|dinner|a snack:meal_description> (served|on board|included)
  2x with a <meal:meal>
  2x that (serves|serve|offers) <breakfast|lunch|dinner|supper|a hot snack:meal_description>

plane:
  2x on a <$aircraft:aircraft_code>
  (using|flown with) a <$aircraft:aircraft_code>

stops:
  4x <nonstop|non stop|direct:flight_stop>
  with <no stops|one stop|no connections:flight_stop>

days:
  <daily:flight_days>
  (on|only on) <weekdays|weekends:flight_days>

wish:
  6x {carrier}
  4x {via}
  3x {cabin}
  3x {price}
  3x {food}
  2x {plane}
  4x {stops}
  {days}
  5x <round trip|one way:round_trip>

wishes:
  70x
  12x {wish}
  3x {wish} {when depart}
  3x {when depart} {wish}
  {depart_year}

trait:
  6x <nonstop|non stop|direct:flight_stop>
  6x <round trip|one way:round_trip>
  6x <morning|afternoon|evening:depart_time.period_of_day>
  2x <early|late:depart_time.period_mod> <morning|afternoon|evening:depart_time.period_of_day>
  3x <$day:depart_date.day_name>
  3x <$day:depart_date.day_name> <morning|afternoon|evening:depart_time.period_of_day>
  2x <tomorrow:depart_date.today_relative> <morning|afternoon|evening:depart_time.period_of_day>
  6x <$airline:airline_name>
  5x <first class|business class|coach:class_type>
  <economy:economy>
  2x <connecting:connect>
  2x <breakfast|lunch|dinner:meal_description>
  2x <$time:depart_time.time>
  <$aircraft:aircraft_code>

best:
  3x <cheapest|least expensive|lowest priced|lowest cost:cost_relative>
  4x <earliest|latest|first|last|next|quickest|shortest:flight_mod>
  <last possible|next available|very first:flight_mod>
  <most expensive:cost_relative>

a_flight:
  10x a flight
  8x a {trait} flight
  a {trait} {trait} flight
  4x the {best} flight
  2x the {best} {trait} flight
  3x a (seat|ticket|reservation)
  2x a <round trip|one way:round_trip> ticket
  <$airline:airline_name> flight <$number:flight_number>
  2x flight <$airline_code:airline_code> <$number:flight_number>
  something <cheap:cost_relative>

flights:
  14x flights
  8x {trait} flights
  {trait} {trait} flights
  2x <cheap|cheaper|inexpensive:cost_relative> flights
  <daily:flight_days> flights
  flights and <connections:connect>
"""
