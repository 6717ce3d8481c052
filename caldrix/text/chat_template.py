"""Chat templates: messages to the ids of a prompt, by jinja2 in its immutable sandbox; the only
module that imports it.

Owns the template environment (what Hugging Face gives to templates, and limits on time and size),
the refusals, and the rule that structure comes from the template alone: see typed_text.py. Must not
know requests, the engine or GGUF files.

A template is the model's, so nothing of its source is shown; `raise_exception` is its way to speak
to the user.
"""

import contextvars
import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caldrix.errors import RefusedError
from caldrix.text import template_source
from caldrix.text.typed_text import TypedText

if TYPE_CHECKING:
    import jinja2

    from caldrix.text.tokenizer import Tokenizer

MAX_CHARACTERS = 32 << 20
MAX_SECONDS = 20.0
_MAX_MESSAGE = 400

Message = Mapping[str, Any]


class TemplateRefused(RefusedError):
    """The template itself refuses the conversation; the message is its own sentence."""


class _LimitError(Exception):
    """A template that runs too long or writes too much."""


class ChatTemplate:
    """A model's chat template and the special tokens that it may write."""

    def __init__(
        self, sources: Mapping[str, str], special_tokens: Mapping[str, object] | None = None
    ) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens or {})
        self._templates = {name: _compile(source) for name, source in self._sources.items()}
        self._accepts_system: bool | None = None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt as text."""
        given = dict(variables, tools=tools, documents=documents)
        given["add_generation_prompt"] = add_generation_prompt
        return self._render(TypedText((), ()), messages, given)

    def encode(
        self,
        tokenizer: "Tokenizer",
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        **variables: Any,
    ) -> list[int]:
        """The prompt as ids. Control tokens come from the template alone, BOS too: the tokenizer
        adds none."""
        given = dict(variables, tools=tools, documents=documents)
        given["add_generation_prompt"] = add_generation_prompt
        controls = tokenizer.control_tokens(self._source(tools))
        typed = TypedText(controls, [messages, given, self._source(tools)])
        text = self._render(typed, messages, given)
        segments = [controls[s] if control else s for s, control in typed.segments(text)]
        return tokenizer.encode_segments(segments, controls.values())

    def _source(self, tools: Sequence[Any] | None) -> str:
        return self._sources[self._name(tools)]

    def _name(self, tools: Sequence[Any] | None) -> str:
        return "tool_use" if tools and "tool_use" in self._sources else next(iter(self._sources))

    def _render(
        self, typed: TypedText, messages: Sequence[Message], given: Mapping[str, Any]
    ) -> str:
        template = self._templates[self._name(given["tools"])]
        variables = {**self._special_tokens, "messages": messages, **given}
        try:
            hidden = {name: typed.hide_all(value) for name, value in variables.items()}
            hidden |= self._special_tokens
            return _run(template, hidden)
        except TemplateRefused as error:
            raise TemplateRefused(_one_line(typed.show(str(error)))) from None
        except RefusedError:
            raise
        except RecursionError:
            raise RefusedError(
                "chat template: the messages or the template nest too deep"
            ) from None
        except MemoryError:
            raise RefusedError("chat template: out of memory") from None
        except Exception as error:
            reason = _one_line(typed.show(str(error))) or type(error).__name__
            raise RefusedError(f"chat template: {reason}") from None


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."


def load_chat_template(directory: Path) -> ChatTemplate | None:
    """The chat template of a model directory; None where there is none."""
    sources, special_tokens = template_source.of_directory(directory)
    return ChatTemplate(sources, special_tokens) if sources else None


def chat_template_from_gguf(
    metadata: Mapping[str, object], tokenizer: "Tokenizer"
) -> ChatTemplate | None:
    """The chat template in a GGUF file's metadata; None where there is none."""
    sources, special_tokens = template_source.of_gguf(metadata)
    return ChatTemplate(sources, special_tokens) if sources else None


# One rendering's deadline, seen by the ticks inside the template.
_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("deadline")


def _run(template: "jinja2.Template", variables: Mapping[str, object]) -> str:
    token = _deadline.set(time.monotonic() + MAX_SECONDS)
    try:
        parts, size = [], 0
        for part in template.generate(variables):
            parts.append(part)
            size += len(part)
            if size > MAX_CHARACTERS:
                raise _LimitError(f"writes more than {MAX_CHARACTERS} characters")
        return "".join(parts)
    finally:
        _deadline.reset(token)


def _compile(source: str) -> "jinja2.Template":
    import jinja2

    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        reason = _one_line(error.message or "")
        raise RefusedError(f"chat template: line {error.lineno}: {reason}") from None
    except RecursionError:
        raise RefusedError("chat template: nested too deep") from None


_cached_environment: list["jinja2.Environment"] = []


def _environment() -> "jinja2.Environment":
    if not _cached_environment:
        _cached_environment.append(_new_environment())
    return _cached_environment[0]


def _new_environment() -> "jinja2.Environment":
    """The environment that templates written for transformers expect."""
    from jinja2 import nodes, sandbox
    from jinja2.ext import LoopControlExtension

    metering = _metering()

    class Environment(sandbox.ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "*", "**", "%"])

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree: nodes.Template = metering.visit(super()._parse(source, name, filename))
            tree.set_environment(self)
            return tree

        @staticmethod
        def tick() -> None:
            if time.monotonic() > _deadline.get():
                raise _LimitError(f"runs for more than {MAX_SECONDS:g} seconds")

        @staticmethod
        def joined(*values: object) -> str:
            return _sized("".join(map(str, values)))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return super().call_binop(context, operator, left, right)

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), LoopControlExtension]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _metering() -> Any:
    """Puts a tick at the head of every loop and macro and a size check on every `~`."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def call(attribute: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
        function = nodes.EnvironmentAttribute(attribute)
        return nodes.Call(function, arguments, [], None, None, lineno=lineno)

    class Metering(NodeTransformer):
        def _ticking(self, node: Any) -> Any:
            self.generic_visit(node)
            tick = call("tick", [], node.lineno)
            node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
            return node

        visit_For = visit_Macro = visit_CallBlock = _ticking

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            return call("joined", node.nodes, node.lineno)

    return Metering()


def _generation() -> Any:
    """{% generation %} marks what the model wrote, for training; here its content alone counts."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (as the base class has it)

        def parse(self, parser: Any) -> list[nodes.Node]:
            parser.stream.expect("name:generation")
            body: list[nodes.Node] = parser.parse_statements(
                ("name:endgeneration",), drop_needle=True
            )
            return body

    return Generation


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: no HTML escapes, unlike jinja2's own."""
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if ensure_ascii:  # but for the stand-ins of typed_text.py
        text = "".join(c if c.isascii() or c >= "\U000f0000" else json.dumps(c)[1:-1] for c in text)
    return text


def _raise_exception(message: object) -> None:
    raise TemplateRefused(str(message))


def _sized(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise _LimitError(f"builds a string of more than {MAX_CHARACTERS} characters")
    return text


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuses an operation whose result would fill the memory, before it is done."""

    def size(value: Any) -> int:
        return len(value) if isinstance(value, (str, list, tuple)) else 0

    if operator == "+" and size(left) + size(right) > MAX_CHARACTERS:
        raise _LimitError(f"builds a value of more than {MAX_CHARACTERS} characters")
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and size(value) * times > MAX_CHARACTERS:
                raise _LimitError(f"builds a value of more than {MAX_CHARACTERS} characters")
    if operator in ("*", "**") and all(isinstance(v, int) for v in (left, right)):
        bits = (
            left.bit_length() * right
            if operator == "**"
            else left.bit_length() + right.bit_length()
        )
        if bits > 4096:
            raise _LimitError("computes a number of more than 4096 bits")
