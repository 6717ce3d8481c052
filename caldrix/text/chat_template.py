"""Chat templates: messages to the ids of a prompt, by jinja2 in its immutable sandbox; the only
module that imports it.

Owns the template environment (what Hugging Face gives to templates, and limits on time and size),
the refusals, and the rule that structure comes from the template alone: see typed_text.py. Must not
know requests, the engine or GGUF files.

A template is the model's, so nothing of its source is shown; `raise_exception` is its way to speak
to the user.
"""

import functools
import json
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caldrix.errors import RefusedError
from caldrix.log import escape
from caldrix.text import conversation, template_limits, template_source
from caldrix.text.typed_text import TypedText

if TYPE_CHECKING:
    import jinja2

    from caldrix.text.tokenizer import Tokenizer

_MAX_MESSAGE = 400
_WITH_TOOLS = "tool_use"

_FILE_NAME = "<template>"  # what jinja2 calls a template that is no file

Message = conversation.Message


class TemplateRefused(RefusedError):
    """The template itself refuses the conversation; the message is its own sentence."""


class ChatTemplate:
    """A model's chat template and the special tokens that it may write."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        where: str = "",
    ) -> None:
        """`where` starts the refusal of a template that does not compile."""
        # By name, the default first. Of the others, only one is ever used.
        default = next(iter(sources))
        self._sources = {name: sources[name] for name in sources if name in (default, _WITH_TOOLS)}
        self._special_tokens = dict(special_tokens or {})
        place = f"{where}: chat template" if where else "chat template"
        self._templates = {name: _compile(s, place) for name, s in self._sources.items()}
        self._traits = {name: self._probed(name) for name in self._sources}

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
        given = _given(variables, add_generation_prompt, tools, documents)
        return self._render(self._name(tools), TypedText((), ()), messages, given)

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
        """The prompt as ids. Control tokens come from the template alone; so does BOS, which the
        tokenizer does not add."""
        given = _given(variables, add_generation_prompt, tools, documents)
        name = self._name(tools)
        source = self._sources[name]
        controls = tokenizer.control_tokens(source)
        typed = TypedText(controls, [messages, given, source])
        text = self._render(name, typed, messages, given)
        segments = [controls[s] if control else s for s, control in typed.segments(text)]
        return tokenizer.encode_segments(segments, controls.values())

    @property
    def source(self) -> str:
        """The default template as the model has it."""
        return next(iter(self._sources.values()))

    def accepts_system(self, tools: Sequence[Any] | None = None) -> bool:
        """Whether a system message reaches the prompt: some templates refuse one, some leave it
        out."""
        return self._traits[self._name(tools)].takes_system

    def encode_with_system_fallback(
        self, tokenizer: "Tokenizer", messages: Sequence[Message], **options: Any
    ) -> tuple[list[int], bool]:
        """As `encode`, and whether the system text had to move to the top of the first user
        message."""
        if not messages or not conversation.is_system(messages[0]):
            return self.encode(tokenizer, messages, **options), False
        if self.accepts_system(options.get("tools")):
            return self.encode(tokenizer, messages, **options), False
        return self.encode(tokenizer, conversation.system_moved(messages), **options), True

    def _name(self, tools: Sequence[Any] | None) -> str:
        return _WITH_TOOLS if tools and _WITH_TOOLS in self._sources else next(iter(self._sources))

    def _probed(self, name: str) -> conversation.Traits:
        given = _given({}, True, None, None)
        return conversation.Traits(
            lambda messages: self._rendered(name, TypedText((), ()), list(messages), given)
        )

    def _render(
        self, name: str, typed: TypedText, messages: Sequence[Message], given: Mapping[str, Any]
    ) -> str:
        try:
            traits = self._traits[name]
            shown = conversation.hidden(conversation.fitted(messages, traits), typed, traits)
        except RecursionError:
            raise RefusedError("messages: nested too deep") from None
        return self._rendered(name, typed, shown, given)

    def _rendered(
        self, name: str, typed: TypedText, messages: Sequence[object], given: Mapping[str, Any]
    ) -> str:
        try:
            variables = {key: typed.hide_all(value) for key, value in given.items()}
            variables |= {**self._special_tokens, "messages": messages}
            return _run(self._templates[name], variables)
        except TemplateRefused as error:
            sentence = _one_line(typed.show(str(error)))
            raise TemplateRefused(sentence or "the chat template refuses the messages") from None
        except template_limits.LimitError:
            raise
        except (RecursionError, MemoryError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else "out of memory"
            raise RefusedError(f"chat template: {reason}") from None
        except Exception as error:  # a template is a program: it may raise anything
            reason = _one_line(typed.show(str(error))) or type(error).__name__
            raise RefusedError(f"chat template: {_place(error)}{reason}") from None


def _given(
    variables: Mapping[str, Any],
    add_generation_prompt: bool,
    tools: Sequence[Any] | None,
    documents: Sequence[Any] | None,
) -> dict[str, Any]:
    return {
        **variables,
        "add_generation_prompt": add_generation_prompt,
        "tools": tools,
        "documents": documents,
    }


def _place(error: Exception) -> str:
    """The template's line where `error` came up; jinja2 puts it in the traceback."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}: " if line else ""


def _one_line(text: str) -> str:
    text = escape(" ".join(text.split()))
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."


def load_chat_template(directory: Path) -> ChatTemplate | None:
    """The chat template of a model directory; None where there is none."""
    sources, special_tokens = template_source.of_directory(directory)
    return ChatTemplate(sources, special_tokens, escape(str(directory))) if sources else None


def chat_template_from_gguf(
    metadata: Mapping[str, object], where: str = "gguf"
) -> ChatTemplate | None:
    """The chat template in a GGUF file's metadata; None where there is none."""
    sources, special_tokens = template_source.of_gguf(metadata, where)
    return ChatTemplate(sources, special_tokens, where) if sources else None


def _run(template: "jinja2.Template", variables: Mapping[str, object]) -> str:
    with template_limits.deadline():
        return template_limits.joined(template.generate(variables))


def _compile(source: str, place: str) -> "jinja2.Template":
    import jinja2

    if len(source) > template_limits.MAX_SOURCE:
        limit = template_limits.MAX_SOURCE
        raise RefusedError(f"{place}: {len(source)} characters; at most {limit} are read")
    try:
        n_tokens = sum(1 for _ in _environment().lex(source))
        if n_tokens > template_limits.MAX_TOKENS:
            limit = template_limits.MAX_TOKENS
            raise RefusedError(f"{place}: {n_tokens} words and signs; at most {limit} are read")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # Python's, on the code jinja2 makes
            return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        reason = _one_line(error.message or "")
        raise RefusedError(f"{place}: line {error.lineno}: {reason}") from None
    except (RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
        reason = _one_line(str(error)) or type(error).__name__  # what Python's compiler refuses
        raise RefusedError(f"{place}: cannot be compiled: {reason}") from None


@cache
def _environment() -> "jinja2.Environment":
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

        tick = staticmethod(template_limits.tick)
        measured = staticmethod(template_limits.measured)
        concat = staticmethod(template_limits.joined)

        @staticmethod
        def concatenated(*values: object) -> str:
            return template_limits.joined(str(template_limits.measured(v)) for v in values)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            template_limits.check_operands(operator, left, right)
            return template_limits.measured(super().call_binop(context, operator, left, right))

        def call(self, context: Any, function: Any, /, *values: Any, **named: Any) -> Any:
            checked = template_limits.check_call(function, values, named)
            return template_limits.measured(super().call(context, function, *checked, **named))

    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation(), LoopControlExtension],
        finalize=template_limits.measured,
    )
    environment.filters["tojson"] = _tojson
    environment.filters.pop("pprint")
    for name, function in environment.filters.items():
        environment.filters[name] = _limited(name, function)
    environment.globals.pop("lipsum")
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _limited(name: str, function: Any) -> Any:
    """A filter within the limits. It takes the context, so that jinja2 does not run it when it
    compiles a template, as it does with other filters of constants."""
    from jinja2 import pass_context

    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @pass_context
    def limited(context: Any, value: Any, *values: Any, **named: Any) -> Any:
        own = {"context": context, "environment": context.environment}
        own["eval_context"] = context.eval_ctx
        bound = functools.partial(function, own[wanted]) if wanted else function
        return template_limits.filtered(name, bound, value, values, named)

    return limited


def _strftime_now(form: str) -> str:
    template_limits.check_date(form)
    return datetime.now().strftime(form)


def _metering() -> Any:
    """Puts a tick at the head of every loop and macro, and a measure on every `~` and on every
    literal that is built of other values."""
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

        def _measured(self, node: Any) -> Any:
            self.generic_visit(node)
            is_target = getattr(node, "ctx", "load") != "load"
            parts = node.iter_child_nodes()
            if is_target or all(isinstance(part, nodes.Const) for part in parts):
                return node
            return call("measured", [node], node.lineno)

        visit_List = visit_Tuple = visit_Dict = _measured

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            return call("concatenated", node.nodes, node.lineno)

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
