"""Every flag once: its name, what it takes, its default, who takes it and what it means.

The parser, the help text, the tables in docs/ and the tests read this table and nothing else. It
owns no behaviour: cli/parse.py reads a command line by it, cli/rules.py holds what depends on the
lane or on several flags together. Imports nothing heavy: `caldrix run` reads this first.
"""

from dataclasses import dataclass

from caldrix.cli import values
from caldrix.cli.values import Kind, choice, integer

ANSWER = frozenset({"run"})
SERVE = frozenset({"serve"})
BENCH = frozenset({"bench"})
ALL = ANSWER | SERVE | BENCH | {"plan"}

MAX_CONTEXT = 2**24  # no model is trained for more, and a KV cache of this many rows is terabytes
MAX_IMAGES = 8


@dataclass(frozen=True, slots=True)
class Flag:
    """One row. `own`: caldrix itself checks it (exit 2); else it is a serving flag (exit 1)."""

    name: str
    takes: str  # what stands for the value in help; "" for a switch
    kind: Kind
    default: object  # the value when the flag is not given
    shown: str  # the default, in help and docs
    help: str
    commands: frozenset[str] = ALL
    own: bool = False
    other: str = ""  # a second spelling
    repeats: bool = False  # the value is the tuple of all that were given
    why_not: str = ""  # what the commands that do not take it say
    lanes: str = ""  # the only lanes on which it may leave its default; "" is every lane
    needs: str = ""  # the flag without which it has no meaning

    @property
    def key(self) -> str:
        return self.name.lstrip("-").replace("-", "_")

    @property
    def meaning(self) -> str:
        """Its help, after the flag that it goes with."""
        return f"with {self.needs}: {self.help}" if self.needs else self.help

    @property
    def usage(self) -> str:
        """`-p PROMPT, --prompt PROMPT`."""
        value = f" {self.takes}" if self.takes else ""
        names = [self.other, self.name] if len(self.other) == 2 else [self.name, self.other]
        return ", ".join(name + value for name in names if name)


NO_HTTP = "caldrix {command} serves no HTTP; use caldrix serve"
ONE_ANSWER = "it belongs to caldrix run"
ONE_REPLY = "caldrix {command} decodes one reply at a time; it belongs to caldrix serve"
MEASURES = "it belongs to caldrix bench"
FIRST_ARGUMENT = "give the model as the first argument"
PATH = values.text("a path")

# fmt: off
FLAGS = (
    # --- caldrix run ------------------------------------------------------------------------------
    Flag("--prompt", "PROMPT", values.ANY_TEXT, None, "chat", "answer this prompt and exit",
         ANSWER, own=True, other="-p", why_not=ONE_ANSWER),
    Flag("--image", "IMAGE", PATH, (), "none",
         "attach a PNG, JPEG or WebP file to the first message; repeatable, up to 8",
         ANSWER, own=True, other="-i", repeats=True, why_not=ONE_ANSWER),
    Flag("--system", "TEXT|@FILE", values.ANY_TEXT, None, "none",
         "the system text, or the file that holds it", ANSWER, own=True, why_not=ONE_ANSWER),
    Flag("--max-tokens", "N", values.POSITIVE, None,
         "until the model ends its reply or the context is full; 256 without a chat template",
         "stop after N new tokens", ANSWER, own=True, why_not=ONE_ANSWER),
    Flag("--raw", "", values.SWITCH, False, "off",
         "send the prompt as it is, without the chat template", ANSWER, own=True,
         why_not=ONE_ANSWER),
    Flag("--plain", "", values.SWITCH, False, "off",
         "no line editing, no timing line, and the answer's control characters as they are",
         ANSWER, own=True, why_not=ONE_ANSWER),
    # --- caldrix bench ----------------------------------------------------------------------------
    Flag("--lengths", "LIST", values.COUNTS, (32, 128, 512), "32,128,512",
         "measure prompts of so many tokens", BENCH, own=True, why_not=MEASURES),
    Flag("--depths", "LIST", values.COUNTS, (32, 512), "32,512",
         "measure decoding after so many tokens of context", BENCH, own=True, why_not=MEASURES),
    Flag("--steps", "N", integer(1, 65536), 32, "32",
         "decode N tokens at each depth", BENCH, own=True, why_not=MEASURES),
    Flag("--rounds", "N", integer(1, 1000), 3, "3",
         "measure N times; the table shows medians", BENCH, own=True, why_not=MEASURES),
    Flag("--no-start", "", values.SWITCH, False, "off",
         "leave out the start of a whole program, which a model without a tokenizer has not",
         BENCH, own=True, why_not=MEASURES),
    Flag("--json", "FILE|-", PATH, None, "none",
         "write every figure of every round to FILE; - writes it to stdout instead of the table",
         BENCH, own=True, why_not=MEASURES),
    # --- all commands -----------------------------------------------------------------------------
    Flag("--max-context", "N", integer(1, MAX_CONTEXT), None,
         "2048, or what the model was trained for if that is less",
         "the compiled context length, in tokens", own=True, other="--ctx"),
    Flag("--backend", "auto|hip|metal|cpu", choice("auto", "hip", "metal", "cpu"), "auto",
         "the first usable of metal, hip, cpu", "the lane: AMD GPU, Apple GPU or CPU", own=True),
    Flag("--draft-model", "DIR|ALIAS|REPO", values.text("a model"), None, "none",
         "speculate with this draft model", own=True),
    Flag("--temperature", "T", values.TEMPERATURE, 0.0, "0",
         "sample the next token at temperature T; 0 picks the most likely token", own=True),
    Flag("--top-k", "N", values.TOP_K, 0, "0", "keep only the N most likely tokens; 0 keeps all",
         own=True),
    Flag("--top-p", "P", values.TOP_P, 1.0, "1",
         "keep the smallest set of tokens whose probability adds up to P; 1 keeps all", own=True),
    Flag("--min-p", "M", values.MIN_P, 0.0, "0",
         "drop tokens whose probability is below M times the most likely token's", own=True),
    Flag("--repetition-penalty", "R", values.REPETITION_PENALTY, 1.0, "1",
         "divide the score of each token among the last 64 of prompt and reply by R; 1 is off",
         own=True),
    Flag("--seed", "N", values.SEED, None, "fresh entropy per reply",
         "seed the random draw", own=True),
    # --- serving flags ----------------------------------------------------------------------------
    Flag("--port", "N", integer(0, 65535), 8425, "8425", "the HTTP port; 0 takes any free port",
         SERVE, why_not=NO_HTTP),
    Flag("--host", "ADDR", values.text("an address"), "127.0.0.1", "127.0.0.1",
         "the address to listen on", SERVE, why_not=NO_HTTP),
    Flag("--model-dir", "DIR", PATH, None, "none", "", frozenset(), own=True,
         why_not=FIRST_ARGUMENT),
    Flag("--served-name", "NAME", values.utf8_text("a name in UTF-8"), None,
         "the repo id or directory's name", "the model name the API answers to"),
    Flag("--dtype", "bf16|f32", choice("bf16", "f32"), None, "bf16; f32 for a quantized model",
         "the type the model is compiled in"),
    Flag("--activations", "f32|int8", choice("f32", "int8"), "f32", "f32",
         "what quantized weights are multiplied with: int8 is faster and not exact"),
    Flag("--queue-depth", "N", integer(0, 65536), 8, "8",
         "requests that may wait for the engine; past it a request gets 429"),
    Flag("--max-batch", "1|8", values.count_choice(1, 8), 1, "8 on the AMD lane, else 1",
         "requests decoded together", lanes="hip"),
    Flag("--parallel", "N", integer(1, 16), 1, "1",
         "requests decoded together, each with the whole --ctx; a reply is the same with any N",
         SERVE | BENCH | {"plan"}, why_not=ONE_REPLY, lanes="cpu"),
    Flag("--admission", "fill|one", choice("fill", "one"), "fill", "fill",
         "prompts admitted between decode steps: every free slot, or at most one"),
    Flag("--prefill-grid", "off|on", choice("off", "on"), "off", "off",
         "run each prompt's prefill as one train beside the decode step", lanes="hip"),
    Flag("--threads", "N", integer(1, 4096), None, "physical cores, capped by a CPU quota",
         "the size of the thread pool"),
    Flag("--cpu-isa", "ROW", values.text("an instruction-set row"), None, "the best usable row",
         "the instruction-set row to compile for"),
    Flag("--weight-budget", "BYTES",
         values.size("a size above 0 such as 5g, 4500m or a byte count"), None,
         "every weight resident", "stream the weights through this much memory"),
    Flag("--weight-ring", "N", integer(2, 1024), 2, "2",
         "slots in the streaming ring", needs="--weight-budget"),
    Flag("--weight-pin", "N", integer(0, 65536), None, "no cap",
         "at most this many layers held resident", needs="--weight-budget"),
    Flag("--weight-pins", "spread|prefix", choice("spread", "prefix"), "spread", "spread",
         "which layers are held resident", needs="--weight-budget"),
    Flag("--weight-digest", "every-fill|at-open", choice("every-fill", "at-open"), "every-fill",
         "every-fill", "when a streamed segment's checksum is checked", needs="--weight-budget"),
    Flag("--weight-codec", "raw|planes", choice("raw", "planes"), None,
         "raw; planes with --weight-budget",
         "how bf16 weights are held: as they are, or as planes, a fifth smaller and with the same "
         "results; with --weight-budget, how the streamed layout file stores the weights"),
    Flag("--layout-dir", "DIR", PATH, None, "layout under the cache",
         "with --weight-codec planes or --weight-budget: where layout files are kept"),
    Flag("--telemetry", "off|host|sampled", choice("off", "host", "sampled"), "sampled", "sampled",
         "how much of each request's timing is recorded"),
    Flag("--device-sample-period", "N", integer(1, 10**6), 8, "8",
         "with --telemetry sampled: device timing on one step in N"),
    Flag("--device-sample-offset", "N", integer(0, 10**6), 4, "4",
         "with --telemetry sampled: which step of each period, below the period"),
    Flag("--telemetry-log", "FILE", PATH, None, "none",
         "append each request's telemetry record to FILE"),
    Flag("--batch-gemv", "rows|x2|x4", choice("rows", "x2", "x4"), "rows", "rows",
         "the batched GEMV kernel's spelling", lanes="hip"),
    Flag("--tail", "generated", choice("generated"), "generated", "generated",
         "the output-layer kernel's spelling", lanes="hip"),
    Flag("--prefill-attention", "rows|tiles", choice("rows", "tiles"), "rows", "rows",
         "the prefill attention kernel's spelling", lanes="hip"),
    Flag("--batch-attention", "rows|grouped", choice("rows", "grouped"), "rows", "rows",
         "the batched attention kernels' spelling", lanes="hip"),
    Flag("--sampler", "device|host", choice("device", "host"), "device", "device",
         "where a sampled token is picked, with --max-batch 8", lanes="hip"),
    Flag("--api-key", "KEY", values.KEY, (), "none; CALDRIX_API_KEY in the environment adds one",
         "ask every client for a key, of which this is one; repeatable",
         SERVE, repeats=True, why_not=NO_HTTP),
    Flag("--api-key-file", "FILE", PATH, None, "none",
         "more such keys, one a line of FILE",
         SERVE, why_not=NO_HTTP),
    Flag("--cors-origins", "LIST|*|off", values.ORIGINS, None, "pages of this machine",
         "the web pages that may use the server, by origin", SERVE, why_not=NO_HTTP),
    Flag("--allowed-hosts", "LIST|off", values.HOSTS, None, "off: any host",
         "the hosts that clients may ask for, beside those of loopback", SERVE, why_not=NO_HTTP),
    Flag("--access-log", "off|on", choice("off", "on"), "off", "off",
         "a line on stderr for each exchange: method, path, status, bytes, seconds, request id",
         SERVE, why_not=NO_HTTP),
    Flag("--reasoning-format", "none|auto|deepseek", choice("none", "auto", "deepseek"), "none",
         "none", "where thinking goes: left in the text, or in a field of its own",
         SERVE, why_not=NO_HTTP),
    Flag("--sse-ping-interval", "SECONDS", values.SECONDS, 15.0, "15",
         "send a comment on a stream that was silent for so long; 0 sends none",
         SERVE, why_not=NO_HTTP),
    Flag("--request-timeout", "SECONDS", values.SECONDS, 0.0, "none",
         "the most that a request may take, waiting included; 0 sets no limit",
         SERVE, why_not=NO_HTTP),
    Flag("--prefix-cache", "on|off", choice("on", "off"), "on", "on",
         "start a prompt from where it differs from what a slot holds of an earlier one",
         SERVE, why_not=NO_HTTP),
    Flag("--drain-timeout", "SECONDS", values.SECONDS, 30.0, "30",
         "what running replies get to finish after SIGTERM", SERVE, why_not=NO_HTTP),
    Flag("--admin", "", values.SWITCH, False, "off",
         "open the variant-swap admin endpoint, on loopback only; needs --admin-port",
         SERVE, why_not=NO_HTTP),
    Flag("--admin-port", "N", integer(0, 65535), None, "none", "the admin endpoint's port",
         SERVE, why_not=NO_HTTP, needs="--admin"),
    Flag("--shadow-ring", "N", integer(1, 4096), 8, "8",
         "recent requests kept to check a candidate variant against", needs="--admin"),
    Flag("--shadow-requests", "N", integer(1, 4096), 4, "4",
         "requests a candidate must match before it serves", needs="--admin"),
    Flag("--shadow-timeout", "SECONDS", integer(1, 10**6), 600, "600",
         "how long a candidate has to match", needs="--admin"),
)
# fmt: on

BY_NAME = {name: flag for flag in FLAGS for name in (flag.name, flag.other) if name}
SAMPLING = (
    "--temperature",
    "--top-k",
    "--top-p",
    "--min-p",
    "--repetition-penalty",
    "--seed",
)
