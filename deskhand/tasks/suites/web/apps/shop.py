"""Shop: goods by category, a cart, and an order with an address."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from deskhand.tasks.suites.web.web_app import (
    Invalid,
    Page,
    State,
    WebApp,
    add,
    choice,
    find,
    form,
    item_link,
    required,
    table,
    text_field,
)

CATEGORIES = ("Kitchen", "Garden", "Office")
DELIVERY = ("Standard", "Express", "Pick up")
app = WebApp("shop", "Shop", {**{name: f"/category/{name}" for name in CATEGORIES}, "Cart": "/cart"})


@app.view("/category/{category}")
def show_category(state: State, values: Mapping[str, str]) -> Page:
    goods = [each for each in state["goods"] if each["category"] == values["category"]]
    rows = [[item_link("good", each, each["name"]), f"{each['price']} euros"] for each in goods]
    return Page(values["category"], table(("Name", "Price"), rows))


@app.view("/good/{id}")
def show_good(state: State, values: Mapping[str, str]) -> Page:
    good = find(state["goods"], values["id"])
    about = f"<p>{good['price']} euros</p><p>{escape(good['text'])}</p>"
    if not good["stock"]:
        return Page(good["name"], f"{about}<p>Sold out. It will not be sold again.</p>")
    number = choice("number", "Number", map(str, range(1, 10)))
    return Page(good["name"], about + form(f"/add/{good['id']}", "Add to cart", number))


@app.view("/cart")
def show_cart(state: State, values: Mapping[str, str]) -> Page:
    rows = []
    for line in state["cart"]:
        good = next(each for each in state["goods"] if each["name"] == line["good"])
        out = form(f"/remove/{line['id']}", "Remove", inline=True)
        rows.append([item_link("good", good, good["name"]), str(line["number"]), f"{good['price']} euros", out])
    if not rows:
        return Page("Cart", "<p>The cart is empty.</p>")
    fields = text_field("name", "Name"), text_field("town", "Town"), choice("delivery", "Delivery", DELIVERY)
    return Page("Cart", table(("Name", "Number", "Price of one", ""), rows) + form("/order", "Order", *fields))


@app.view("/thanks")
def show_thanks(state: State, values: Mapping[str, str]) -> Page:
    return Page("Thank you", "<p>The order was sent.</p>")


@app.action("/add/{id}")
def put(state: State, values: Mapping[str, str]) -> str:
    good, number = find(state["goods"], values["id"]), int(values["number"])
    if not good["stock"] or not 1 <= number <= 9:
        raise Invalid("This number is not in stock.")
    line = next((each for each in state["cart"] if each["good"] == good["name"]), None)
    if line is None:
        add(state["cart"], good=good["name"], number=number)
    else:
        line["number"] += number
    return "/cart"


@app.action("/remove/{id}")
def remove(state: State, values: Mapping[str, str]) -> str:
    state["cart"].remove(find(state["cart"], values["id"]))
    return "/cart"


@app.action("/order")
def order(state: State, values: Mapping[str, str]) -> str:
    name, town = required(values, "name", "town")
    if values["delivery"] not in DELIVERY or not state["cart"]:
        raise Invalid("The cart is empty.")
    lines = sorted([line["good"], line["number"]] for line in state["cart"])
    add(state["orders"], name=name, town=town, delivery=values["delivery"], lines=lines)
    state["cart"].clear()
    return "/thanks"
