"""Chat templates drawn by a seed: each renders or is refused in one line, soon, and nothing else
comes out of it.
"""

import os
import random
import time
import warnings

import pytest

from caldrix.errors import RefusedError
from caldrix.text import template_limits
from caldrix.text.chat_template import ChatTemplate

# The same draws in every run; CALDRIX_FUZZ=N draws N others for a search.
SEARCH = int(os.environ.get("CALDRIX_FUZZ", "0"))
SEED, COUNT = (SEARCH, SEARCH) if SEARCH else (1, 200)


def words(text: str) -> list[str]:
    return text.split()


ATOMS = words(
    """
messages x ns.a ns "a" "{0}{0}{0}" "%s%s%s" "<b>&" 1 2.5 -3 [1,2] {"a":"b"} range(99999)
none true dict(a=x,b=ns.a) namespace(a=x,b=ns.a) [x,x,x,x] (x,ns.a) {"k":x,"l":ns.a} cycler(1,2)
joiner(x) loop.index strftime_now("%c") 10**50 "\\\\\\"" "aaaaaaaaaaaaaaaa\\n\\t" """
)
FILTERS = words(
    """
abs attr("x") batch(3) batch(70000) batch(2,x) capitalize center(50000) default("d") e
dictsort filesizeformat first float format(1) format("a","b") format(*[1]*99) groupby("role") int
indent(4) indent(60000) indent("ab"*20000) items join join("ab") last length list lower max min
map("upper") map(attribute="role") map("replace","a","aaaaaaaa") map("join","x"*1000)|list random
reject("none") replace("a","aaaaaaaaaaaaaaaa") replace("","x") reverse round(3) round(60000) select
slice(3) slice(70000) sort sort(attribute="role") string striptags sum sum(start=[]) title tojson
tojson(indent=50) tojson(indent="abc") trim truncate(10) unique urlencode urlize wordcount
wordwrap(5) xmlattr"""
)
METHODS = words(
    """
upper() join(x) replace("a","aaaaaaa") split("a") split() format("b") center(60000)
format_map({"a":1}) zfill(65536) encode() items() values() copy() expandtabs(60000) count("a")
translate({97:"aaaaaaaaaaaaaaaa"}) encode("utf-32") splitlines() partition("a") __class__
to_bytes(60000,"big") x hex() ljust(65000,"b") striptags() encode().decode()"""
)
OPERATORS = words("+ ~ * % ** - / // in == < and or")


class Grammar:
    """Expressions and statements of bounded depth."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def expression(self, depth: int = 0) -> str:
        chance, pick = self.rng.random(), self.rng.choice
        if depth > 3 or chance < 0.25:
            return pick(ATOMS)
        inner = f"({self.expression(depth + 1)})"
        if chance < 0.6:
            return f"{inner} | {pick(FILTERS)}"
        if chance < 0.75:
            return inner + pick([".", ".", "[0].", "[:5]."]) + pick(METHODS)
        return f"({inner} {pick(OPERATORS)} {self.expression(depth + 1)})"

    def statement(self, depth: int = 0) -> str:
        chance, pick = self.rng.random(), self.rng.choice
        if depth > 3 or chance < 0.3:
            return "{{ " + self.expression() + " }}"
        if chance < 0.6:
            return "{% set " + pick(["x", "ns.a"]) + " = " + self.expression() + " %}"
        if chance < 0.8:
            times = pick([self.expression(), "range(30)", "range(9)"])
            body = "".join(self.statement(depth + 1) for _ in range(self.rng.randint(1, 3)))
            return "{% for i in " + times + " %}" + body + "{% endfor %}"
        inner = self.statement(depth + 1)
        if chance < 0.9:
            return "{% if " + self.expression() + " %}" + inner + "{% endif %}"
        if chance < 0.95:
            return "{% set x %}" + inner + "{% endset %}"
        return "{% filter " + pick(FILTERS) + " %}" + inner + "{% endfilter %}"


def test_drawn_templates_render_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings.simplefilter("error")
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.5)
    n_rendered = 0
    for number in range(COUNT):
        rng = random.Random(f"template {SEED} {number}")
        grammar = Grammar(rng)
        body = "".join(grammar.statement() for _ in range(rng.randint(1, 4)))
        source = "{% set ns = namespace(a='a') %}{% set x = messages[0].content %}" + body
        start, message = time.monotonic(), ""
        try:
            text = ChatTemplate({"default": source}).render([{"role": "user", "content": "aaa"}])
            n_rendered += 1
            assert len(text) <= template_limits.MAX_CHARACTERS
        except RefusedError as error:
            message = str(error)
        assert message.isprintable(), source
        assert time.monotonic() - start < 20, source
    assert n_rendered > COUNT / 20
