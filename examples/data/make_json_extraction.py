"""Writes the demo's data: sentences with three to five facts, to be extracted as one flat JSON object.

    python examples/data/make_json_extraction.py [folder] [--seed 3407]

2,000 rows for training and 200 held out; no text is in both. The same seed gives the same bytes.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from random import Random

NUM_TRAIN, NUM_HELDOUT = 2000, 200
INSTRUCTION = 'Answer in JSON with the keys "name" and "fact":'


def words(text: str) -> list[str]:
    """The words of a text: lists of names read better as lines."""
    return text.split()


FIRST_NAMES = words(
    "Maria Ahmed Chen Sofia Liam Aisha Pedro Yuki Omar Elena Ravi Hanna Marco Leila Viktor Grace Diego Mei "
    "Tomas Nadia Kofi Ingrid Paolo Zara Hugo Priya Anders Lucia Samir Olga Felix Amara Jonas Carmen Ivan"
)
LAST_NAMES = words(
    "Lopez Khan Wei Rossi Murphy Diallo Silva Tanaka Haddad Petrova Patel Berg Conti Farsi Novak Owens "
    "Ramos Lin Horak Saleh Mensah Larsen Bianchi Malik Weber Gupta Holm Moreno Nasser Orlova Braun Keller"
)
CITIES = (
    ("Lisbon", "Portugal"),
    ("Porto", "Portugal"),
    ("Cairo", "Egypt"),
    ("Oslo", "Norway"),
    ("Bergen", "Norway"),
    ("Madrid", "Spain"),
    ("Seville", "Spain"),
    ("Dublin", "Ireland"),
    ("Dakar", "Senegal"),
    ("Kyoto", "Japan"),
    ("Beirut", "Lebanon"),
    ("Mumbai", "India"),
    ("Delhi", "India"),
    ("Milan", "Italy"),
    ("Turin", "Italy"),
    ("Shiraz", "Iran"),
    ("Lima", "Peru"),
    ("Amman", "Jordan"),
    ("Accra", "Ghana"),
    ("Lahore", "Pakistan"),
    ("Berlin", "Germany"),
    ("Munich", "Germany"),
    ("Aarhus", "Denmark"),
    ("Lagos", "Nigeria"),
    ("Santiago", "Chile"),
    ("Nairobi", "Kenya"),
    ("Athens", "Greece"),
    ("Toronto", "Canada"),
    ("Hanoi", "Vietnam"),
    ("Warsaw", "Poland"),
)
JOBS = words(
    "nurse baker pilot teacher chemist farmer lawyer painter sailor tailor plumber singer dentist welder "
    "librarian gardener waiter mechanic surgeon judge"
)
HOBBIES = words(
    "chess sailing cycling pottery climbing fishing painting rowing archery gardening karate tennis"
)
GOODS = words(
    "lamps chairs kettles books carpets mirrors bicycles candles drums violins tents jackets pillows "
    "clocks vases ladders helmets guitars blankets teapots"
)
COLORS = words("red blue green black white yellow purple orange silver brown")
SHOPS = words("Northwind Bluebird Oakline Sunmart Redfox Silverleaf Easthill Wavecrest Ironbell Maplewood")
EVENTS = words(
    "concert marathon workshop festival lecture parade conference regatta fair ball tournament market"
)
VENUES = (
    "Harbor Hall",
    "Grand Theater",
    "City Museum",
    "Rose Garden",
    "Old Mill",
    "Central Park",
    "Lake House",
    "Royal Hotel",
    "North Pier",
    "Castle Square",
    "Union Station",
    "Green Pavilion",
)
SIGHTS = words("castle bridge cathedral market lighthouse museum harbor fountain palace library")
RIVERS = words("Danube Tagus Nile Volga Elbe Ganges Rhine Douro Loire Tiber Vistula Ebro")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")

TEMPLATES = (
    "{name} is a {age}-year-old {job} from {city}.",
    "{name}, {age}, works as a {job} in {city} and loves {hobby}.",
    "{name} has been a {job} in {city} since {year}.",
    "{name} was born in {city} in {year} and works as a {job}.",
    "{name} moved from {city} to {place} in {year} and became a {job}.",
    "{name} left {city} at {age} and took up {hobby}.",
    "My neighbor {name}, {age}, is a {job} and enjoys {hobby} every {day}.",
    "{name} is mayor of {city} in {country}, home to {people} thousand people.",
    "{name} built the {sight} of {place} by the {river} in {year}.",
    "{name} founded the town of {place} on the {river} in {year}.",
    "{name} shows the {sight} of {place} to {count} guests on {day}.",
    "{name} visited the {sight} in {city} on {day} and paid {price} euros.",
    "{name} ordered {count} {color} {goods} from {shop} for {price} dollars.",
    "{name} in {city} received {count} {goods} from {shop} on {day}.",
    "Order {number}: {count} {color} {goods} for {name}, due on {month} {date}.",
    "{name}, a {job} from {city}, bought {count} {goods} at {shop} on {month} {date}.",
    "{name} paid {price} dollars for a pair of {color} {goods} at {shop}.",
    "Please send {count} {color} {goods} to {name} in {city} by {day}.",
    "{name} opens the {event} at {venue} on {day} at {hour}; tickets cost {price} euros.",
    "{name} will open the {event} in {city} on {month} {date}.",
    "{name} welcomed {count} guests to the {event} at {venue} on {month} {date}.",
    "{name} speaks at the {event} in {city} on {day} at {hour}.",
    "{name} won the {year} {event} in {city}, {country}.",
    "{name} sells tickets for the {event} at {venue} on {month} {date} for {price} dollars.",
)


def facts(random: Random) -> dict[str, Callable[[], object]]:
    """What a template can ask for, each drawn when it is asked for; a city and its country go together."""
    city, country = random.choice(CITIES)
    return {
        "name": lambda: f"{random.choice(FIRST_NAMES)} {random.choice(LAST_NAMES)}",
        "age": lambda: random.randint(19, 79),
        "job": lambda: random.choice(JOBS),
        "city": lambda: city,
        "country": lambda: country,
        "hobby": lambda: random.choice(HOBBIES),
        "year": lambda: random.randint(1950, 2004),
        "day": lambda: random.choice(DAYS),
        "month": lambda: random.choice(MONTHS),
        "date": lambda: random.randint(1, 28),
        "hour": lambda: f"{random.randint(1, 11)}:{random.choice(('00', '15', '30', '45'))}",
        "people": lambda: random.randint(11, 980),
        "sight": lambda: random.choice(SIGHTS),
        "river": lambda: random.choice(RIVERS),
        "place": lambda: random.choice(LAST_NAMES) + random.choice(("ville", "ford", "stad", "burg", "port")),
        "count": lambda: random.randint(2, 60),
        "number": lambda: random.randint(1000, 9999),
        "color": lambda: random.choice(COLORS),
        "goods": lambda: random.choice(GOODS),
        "shop": lambda: random.choice(SHOPS),
        "price": lambda: random.randint(5, 950),
        "event": lambda: random.choice(EVENTS),
        "venue": lambda: random.choice(VENUES),
    }


def sentence(random: Random) -> str:
    """One sentence, from a template and facts drawn at random."""
    template = random.choice(TEMPLATES)
    drawn = {name: draw() for name, draw in facts(random).items() if f"{{{name}}}" in template}
    return template.format_map(drawn)


def distinct_sentences(count: int, seed: int) -> list[str]:
    """So many sentences, no two alike."""
    random = Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[sentence(random)] = None
    return list(found)


def write(path: Path, sentences: list[str]) -> None:
    """Writes one prompt per sentence, with the same bytes on every platform."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["prompt"])
        writer.writerows([f"{INSTRUCTION}\n\n{text}"] for text in sentences)


def main() -> None:
    """Writes both files."""
    parser = argparse.ArgumentParser(description="Writes the data of the JSON-extraction demo.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=3407)
    arguments = parser.parse_args()
    sentences = distinct_sentences(NUM_TRAIN + NUM_HELDOUT, arguments.seed)
    write(arguments.folder / "json_extraction.train.csv", sentences[:NUM_TRAIN])
    write(arguments.folder / "json_extraction.heldout.csv", sentences[NUM_TRAIN:])


if __name__ == "__main__":
    main()
