"""What a request says to the chat template: template variables, and the short ways to ask for
thinking or none.

Owns `chat_template_kwargs`, `reasoning_effort`, `enable_thinking` and `thinking`, and refuses forms
that contradict each other. Knows no template: a variable that a template does not read is nothing.
"""

from caldrix.api.fields import Fields
from caldrix.api.refusals import ApiError, unsupported, wrong_value

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# The renderer's own; a request may not replace them.
RESERVED = (
    "messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenizer",
    "self", "continue_final_message",
)  # fmt: skip


def template_variables(f: Fields) -> dict[str, object]:
    effort = f.choice("reasoning_effort", EFFORTS)
    given = f.object("chat_template_kwargs")
    variables = {} if given is None else dict(given.values)
    for name in RESERVED:
        if name in variables:
            raise unsupported(f"chat_template_kwargs.{name}", "the server sets it")
    forms: dict[str, bool] = {}
    if effort is not None:
        forms["reasoning_effort"] = effort != "none"
    if f.get("enable_thinking") is not None:
        forms["enable_thinking"] = f.boolean("enable_thinking")
    if (thinking := _thinking(f)) is not None:
        forms["thinking"] = thinking
    if isinstance(own := variables.get("enable_thinking"), bool):
        forms["chat_template_kwargs.enable_thinking"] = own
    if len(set(forms.values())) > 1:
        raise _contradiction(forms)
    if forms:
        variables["enable_thinking"] = next(iter(forms.values()))
    if effort not in (None, "none"):
        variables["reasoning_effort"] = effort
    return variables


def _thinking(f: Fields) -> bool | None:
    value = f.object("thinking")
    if value is None:
        return None
    kind = value.required_string("type")
    if kind not in ("enabled", "disabled"):
        raise wrong_value("thinking.type", "enabled or disabled", kind)
    return kind == "enabled"


def _contradiction(forms: dict[str, bool]) -> ApiError:
    said = ", ".join(f"{name} says {'on' if on else 'off'}" for name, on in forms.items())
    param = next(iter(forms))
    return ApiError(400, "invalid_value", f"thinking is asked for in two ways: {said}", param)
