"""Families `web/shop/*`: filling, changing and ordering a cart."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import shop
from deskhand.tasks.suites.web.content import PEOPLE, TOWNS
from deskhand.tasks.suites.web.families.forms import both, fill_cart, fill_order, submit, submit_each, twice
from deskhand.tasks.suites.web.families.items import having, new_goods, other_item, ranked
from deskhand.tasks.suites.web.scenario import Goal, WebScenario, go, see, web_family

CART = "/shop/cart"


@web_family(
    "shop/add", CART, "easy", "put several units of a product into the cart", "find something", "work in several steps"
)
def add_good(web: WebScenario) -> Goal:
    good, number = web.pick(new_goods(web)), web.rng.randint(2, 9)
    other = other_item(web.state["shop"]["goods"], good)
    return Goal(
        f"In the shop, put {number} of the product called {good['name']} ({good['category']}) into the cart",
        fill_cart(good, number),
        right=submit(shop.put, good, number=number),
        wrong={
            "one less": submit(shop.put, good, number=number - 1),
            "another good": submit(shop.put, other, number=number),
            "twice": twice(submit(shop.put, good, number=number)),
        },
    )


@web_family("shop/remove", CART, "easy", "remove a product from the cart")
def remove_good(web: WebScenario) -> Goal:
    line = web.pick(web.state["shop"]["cart"])
    other = other_item(web.state["shop"]["cart"], line)
    [good] = having(web.state["shop"]["goods"], name=line["good"])
    return Goal(
        f"In the shop, take the product called {line['good']} out of the cart",
        (go("Remove", line["good"]),),
        right=submit(shop.remove, line),
        wrong={
            "another good": submit(shop.remove, other),
            "two goods": submit_each(shop.remove, [line, other]),
            "added once more": submit(shop.put, good, number=1),
        },
    )


@web_family("shop/order", CART, "medium", "order what is in the cart", "fill in a form", "work in several steps")
def order_cart(web: WebScenario) -> Goal:
    name, town, kind = web.pick(list(PEOPLE)), web.pick(list(TOWNS)), web.pick(["Express", "Pick up"])
    form = {"name": name, "town": town, "delivery": kind}
    return Goal(
        f"In the shop, order what is in the cart: name {name}, town {town}, delivery {kind}",
        fill_order(form),
        right=submit(shop.order, form),
        wrong={
            "another delivery": submit(shop.order, form, delivery="Standard"),
            "another town": submit(shop.order, form, town=f"{town}7"),
            "not all of it": both(lambda state: state["shop"]["cart"].pop(), submit(shop.order, form)),
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
    line, good, number = web.pick(web.state["shop"]["cart"]), web.pick(new_goods(web)), web.rng.randint(2, 9)
    form = {"name": web.pick(list(PEOPLE)), "town": web.pick(list(TOWNS)), "delivery": "Express"}
    removed, put, ordered = submit(shop.remove, line), submit(shop.put, good, number=number), submit(shop.order, form)
    return Goal(
        f"In the shop, replace the product called {line['good']} in the cart with {number} of the product called "
        f"{good['name']} ({good['category']}), then order all of it with delivery Express: name {form['name']}, "
        f"town {form['town']}",
        (go("Remove", line["good"]), *fill_cart(good, number), *fill_order(form)),
        right=both(removed, put, ordered),
        wrong={
            "added to it": both(put, ordered),
            "one less": both(removed, submit(shop.put, good, number=number - 1), ordered),
            "another delivery": both(removed, put, submit(shop.order, form, delivery="Standard")),
            "not ordered": both(removed, put),
        },
        max_steps=30,
    )


@web_family("shop/cheapest", CART, "medium", "put the cheapest product of a category into the cart", "read and compare")
def cheapest(web: WebScenario) -> Goal:
    category = web.pick(list(shop.CATEGORIES))
    first, second, *_, last = ranked(web.state["shop"]["goods"], "price", category=category)
    web.state["shop"]["cart"].clear()
    return Goal(
        f"In the shop, find the cheapest product in {category} and put one of it into the cart",
        (go(category), go(first["name"]), go("Add to cart")),
        right=submit(shop.put, first, number=1),
        wrong={
            "the second": submit(shop.put, second, number=1),
            "the dearest": submit(shop.put, last, number=1),
            "two of it": submit(shop.put, first, number=2),
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
    good, number = web.pick(new_goods(web)), web.rng.randint(2, 9)
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
    goods = ranked(web.state["shop"]["goods"], "price", category=category)
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
    name = web.pick(new_goods(web))["name"]
    return Goal(f"In the shop, take the product called {name} out of the cart", (), infeasible=True)
