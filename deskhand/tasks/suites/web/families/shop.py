"""Families `web/shop/*`: filling, changing and ordering a cart."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import shop
from deskhand.tasks.suites.web.content import PEOPLE, TOWNS
from deskhand.tasks.suites.web.scenario import Act, Goal, State, WebScenario, choose, fill, go, see, web_family

CART = "/shop/cart"


def _good(web: WebScenario, name: str) -> State:
    return next(each for each in web.state["shop"]["goods"] if each["name"] == name)


def _new_good(web: WebScenario) -> State:
    """Return a good that is not in the cart."""
    taken = {line["good"] for line in web.state["shop"]["cart"]}
    return web.pick([each for each in web.state["shop"]["goods"] if each["name"] not in taken])


def _put(good: State, number: int) -> tuple[Act, ...]:
    return go(good["category"]), go(good["name"]), choose("Number", str(number)), go("Add to cart")


def _values(good: State, number: int) -> State:
    return {"id": good["id"], "number": number}


@web_family(
    "shop/add", CART, "easy", "put several units of a product into the cart", "find something", "work in several steps"
)
def add_good(web: WebScenario) -> Goal:
    good, number = _new_good(web), web.rng.randint(2, 9)
    other = next(each for each in web.state["shop"]["goods"] if each["name"] != good["name"])
    return Goal(
        f"In the shop, put {number} of the product called {good['name']} ({good['category']}) into the cart",
        _put(good, number),
        right=lambda state: shop.put(state["shop"], _values(good, number)),
        wrong={
            "one less": lambda state: shop.put(state["shop"], _values(good, number - 1)),
            "another good": lambda state: shop.put(state["shop"], _values(other, number)),
            "twice": lambda state: [shop.put(state["shop"], _values(good, number)) for _ in range(2)],
        },
    )


@web_family("shop/remove", CART, "easy", "remove a product from the cart")
def remove_good(web: WebScenario) -> Goal:
    line = web.pick(web.state["shop"]["cart"])
    other = next(each for each in web.state["shop"]["cart"] if each is not line)
    return Goal(
        f"In the shop, take the product called {line['good']} out of the cart",
        (go("Remove", line["good"]),),
        right=lambda state: shop.remove(state["shop"], line),
        wrong={
            "another good": lambda state: shop.remove(state["shop"], other),
            "two goods": lambda state: [shop.remove(state["shop"], each) for each in (line, other)],
            "added once more": lambda state: shop.put(state["shop"], _values(_good(web, line["good"]), 1)),
        },
    )


@web_family("shop/order", CART, "medium", "order what is in the cart", "fill in a form", "work in several steps")
def order_cart(web: WebScenario) -> Goal:
    values = {
        "name": web.pick(list(PEOPLE)),
        "town": web.pick(list(TOWNS)),
        "delivery": web.pick(["Express", "Pick up"]),
    }
    return Goal(
        f"In the shop, order what is in the cart: name {values['name']}, town {values['town']}, "
        f"delivery {values['delivery']}",
        (
            fill("Name", values["name"]),
            fill("Town", values["town"]),
            choose("Delivery", values["delivery"]),
            go("Order"),
        ),
        right=lambda state: shop.order(state["shop"], values),
        wrong={
            "another delivery": lambda state: shop.order(state["shop"], {**values, "delivery": "Standard"}),
            "another town": lambda state: shop.order(state["shop"], {**values, "town": f"{values['town']}7"}),
            "not all of it": lambda state: [state["shop"]["cart"].pop(), shop.order(state["shop"], values)],
        },
    )


@web_family(
    "shop/swap",
    CART,
    "hard",
    "replace a product in the cart with another and order",
    "fill in a form",
    "find something",
    "work in several steps",
)
def swap_and_order(web: WebScenario) -> Goal:
    line, good, number = web.pick(web.state["shop"]["cart"]), _new_good(web), web.rng.randint(2, 9)
    values = {"name": web.pick(list(PEOPLE)), "town": web.pick(list(TOWNS)), "delivery": "Express"}

    def end(state: State, *, removed: bool = True, count: int = number, **changes: str) -> None:
        if removed:
            shop.remove(state["shop"], line)
        shop.put(state["shop"], _values(good, count))
        shop.order(state["shop"], {**values, **changes})

    order = fill("Name", values["name"]), fill("Town", values["town"]), choose("Delivery", "Express"), go("Order")
    return Goal(
        f"In the shop, replace the product called {line['good']} in the cart with {number} of the product called "
        f"{good['name']} ({good['category']}), then order all of it with delivery Express: name {values['name']}, "
        f"town {values['town']}",
        (go("Remove", line["good"]), *_put(good, number), *order),
        right=end,
        wrong={
            "added to it": lambda state: end(state, removed=False),
            "one less": lambda state: end(state, count=number - 1),
            "another delivery": lambda state: end(state, delivery="Standard"),
            "not ordered": lambda state: [
                shop.remove(state["shop"], line),
                shop.put(state["shop"], _values(good, number)),
            ],
        },
        max_steps=30,
    )


@web_family("shop/cheapest", CART, "medium", "put the cheapest product of a category into the cart", "read and compare")
def cheapest(web: WebScenario) -> Goal:
    category = web.pick(list(shop.CATEGORIES))
    goods = sorted(
        (each for each in web.state["shop"]["goods"] if each["category"] == category), key=lambda each: each["price"]
    )
    web.state["shop"]["cart"].clear()
    first, second, last = goods[0], goods[1], goods[-1]
    return Goal(
        f"In the shop, find the cheapest product in {category} and put one of it into the cart",
        (go(category), go(first["name"]), go("Add to cart")),
        right=lambda state: shop.put(state["shop"], _values(first, 1)),
        wrong={
            "the second": lambda state: shop.put(state["shop"], _values(second, 1)),
            "the dearest": lambda state: shop.put(state["shop"], _values(last, 1)),
            "two of it": lambda state: shop.put(state["shop"], _values(first, 2)),
        },
    )


@web_family("shop/price", CART, "easy", "say what a product costs", "find something", "answer a question")
def price(web: WebScenario) -> Goal:
    good = web.pick(web.state["shop"]["goods"])
    return Goal(
        f"What does the product called {good['name']} ({good['category']}) cost in the shop, in euros? "
        "Answer with the number only",
        (go(good["category"]), see(good["name"])),
        answer=str(good["price"]),
        wrong_answers=(str(good["price"] + 1), f"{good['price']}0", good["name"]),
    )


@web_family("shop/sold_out", CART, "medium", "put a sold-out product into the cart", "recognize an infeasible task")
def sold_out(web: WebScenario) -> Goal:
    good, number = _new_good(web), web.rng.randint(2, 9)
    good["stock"] = 0
    return Goal(
        f"In the shop, put {number} of the product called {good['name']} ({good['category']}) into the cart",
        (go(good["category"]), go(good["name"])),
        infeasible=True,
    )


@web_family(
    "shop/dearest",
    CART,
    "medium",
    "name the most expensive product of a category",
    "read and compare",
    "answer a question",
)
def dearest(web: WebScenario) -> Goal:
    category = web.pick(list(shop.CATEGORIES))
    goods = sorted(
        (each for each in web.state["shop"]["goods"] if each["category"] == category), key=lambda each: each["price"]
    )
    return Goal(
        f"Which product in {category} costs the most in the shop? Answer with its name only",
        (go(category), *(see(each["name"]) for each in goods)),
        answer=goods[-1]["name"],
        wrong_answers=(*(each["name"] for each in goods[:-1]), str(goods[-1]["price"])),
    )


@web_family(
    "shop/remove_missing", CART, "easy", "remove a product that is not in the cart", "recognize an infeasible task"
)
def remove_missing(web: WebScenario) -> Goal:
    return Goal(f"In the shop, take the product called {_new_good(web)['name']} out of the cart", (), infeasible=True)
