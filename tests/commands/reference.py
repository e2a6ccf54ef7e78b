"""The pages of docs/reference that are made from what the product knows.

    python3 tests/commands/reference.py            says which pages are not current
    python3 tests/commands/reference.py --write    writes them

configuration.md comes from config/schema.json, metrics.md from the catalogue of metrics,
log-fields.md from the events, errors.md from the table of errors, admin-api.md from the
routes of the admin port, commands.md from the help texts of the binary (PENSTOCK_BIN, or
target/debug/penstock). What no source says (some log fields, what a client does about an error)
stands here, and the generator refuses to write a page when an entry is missing or left over.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
BIN = pathlib.Path(os.environ.get("PENSTOCK_BIN") or ROOT / "target" / "debug" / "penstock")
HOW = "python3 tests/commands/reference.py --write"


class Incomplete(Exception):
    """A source has something that no page can say."""


def source(path):
    return (ROOT / path).read_text()


def page(title, made_from, intro, body):
    note = f"<!-- Made by tests/commands/reference.py from {made_from}. Do not edit. -->"
    return f"# {title}\n\n{note}\n\n{intro.strip()}\n\n{body.strip()}\n"


#: Names that keep their case at the start of a sentence.
LOWER_CASE_NAMES = ("vLLM", "llama.cpp", "gRPC")


def sentence(text):
    """A description as one line that ends with a full stop."""
    line = " ".join(text.split())
    if not line.startswith(LOWER_CASE_NAMES):
        line = line[:1].upper() + line[1:]
    return line if not line or line[-1] in ".:!?" else line + "."


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def same(what, written, known):
    """Refuses entries of this file that the product does not have, and the reverse."""
    missing, extra = sorted(set(known) - set(written)), sorted(set(written) - set(known))
    if missing or extra:
        raise Incomplete(f"{what} in tests/commands/reference.py: missing {missing}, left over {extra}")


# Rust.


def doc(text, end):
    """The doc comment that ends where `text[end:]` begins, attributes skipped."""
    lines = []
    for line in reversed(text[:end].rstrip().splitlines()):
        line = line.strip()
        if line.startswith("///"):
            lines.insert(0, line[3:].strip())
        elif not line.startswith("#["):
            break
    return " ".join(lines)


def variants(text, name):
    """The variants of an enum with their doc comments."""
    body = re.search(rf"^pub(?:\([^)]*\))? enum {name} \{{\n(.*?)^\}}", text, re.S | re.M).group(1)
    found = {}
    for variant in re.finditer(r"^    ([A-Z]\w*)", body, re.M):
        found[variant.group(1)] = doc(body, variant.start())
    return found


def names(text, enum, method="name"):
    """Each variant's stable name, from the method that gives it: variant -> names."""
    start = text.index(f"impl {enum} {{")
    body = text[start:]
    body = body[body.index(f"fn {method}(self)"):]
    body = body[: body.index("\n    }\n")]
    found = {}
    for variant, name in re.findall(r"Self::(\w+)[^=]*?=> \"(\w+)\"", body):
        found.setdefault(variant, []).append(name)
    return found


def enum_table(path, enum, head):
    """The names of an enum with what they mean: from MEANINGS, or else the doc comments."""
    text = source(path)
    docs, named = variants(text, enum), names(text, enum)
    same(f"variants of {enum}", docs, named)
    meanings = {name: sentence(docs[variant]) for variant in docs for name in named[variant]}
    if enum in MEANINGS:
        same(f"MEANINGS of {enum}", MEANINGS[enum], meanings)
        meanings = {name: MEANINGS[enum][name] for name in meanings}
    return table(head, [(f"`{name}`", meaning) for name, meaning in meanings.items()])


#: Meanings for operators, where the doc comments are for those who change the code.
MEANINGS = {
    "ScaleReason": {
        "idle": "Nothing is asked of the pool.",
        "start": "Requests wait, and nothing is in service.",
        "later": "Requests wait that a later start serves in time.",
        "sustained": "The steady demand.",
        "burst": "Replicas that start now serve in time what waits.",
        "deadline": "Patient work has to be done by its deadline.",
        "forecast": "The last two days needed the replicas at the time at which they will have started.",
        "unmet": "Requests were refused, or waited past their objective, for longer than a start takes, although all replicas serve.",
        "floor": "`min_replicas`, or what repeated bursts have shown to be needed.",
        "hold": "The number was needed a while ago and is kept for now.",
        "hold_restart": "The gateway has not watched demand for long enough since its start to ask for less than there is.",
        "clamp": "`max_replicas`.",
    },
    "PoolStatus": {
        "cold": "The pool has no replica, and no request waits for one.",
        "starting": "Requests are held for the pool; its first token has not come.",
        "ready": "A replica is in service.",
        "draining": "The pool has only replicas that finish what they run.",
        "asleep": "All replicas sleep.",
        "down": "The pool has replicas, and none is in service.",
    },
    "ReplicaStatus": {
        "serving": "Takes work.",
        "slow_start": "Takes work below its full limit: it is new or came back a moment ago.",
        "busy": "Takes no work for a moment: the engine said that it was busy, it failed while too many of its pool were out, or the gateway lacked file descriptors.",
        "cordoned": "Takes no work until the override ends; finishes what it runs.",
        "draining": "Takes no work; requests that had not begun went elsewhere.",
        "asleep": "Sleeps until it is woken.",
        "waking": "Was told to wake.",
        "ejected": "Takes no work until a probe succeeds.",
        "gone": "Ejected, and nothing has answered there for a minute.",
        "removed": "No longer listed; finishes what it runs.",
    },
    "RejectReason": {
        "quota_spent": "A limit of a day or month is spent, or the request alone is more than a limit.",
        "rate_limited": "A limit of the tenant, key or model.",
        "tenant_queue_full": "The tenant's own `queue` is full.",
        "queue_full": "The whole `queue` is full.",
        "deadline_exceeded": "The request's time was over before a replica could take it.",
        "deadline_unmeetable": "The work that waits before the request takes longer than the request may wait.",
        "cold_start": "No pool of the model has a replica, and none starts in time.",
        "displaced": "The queue was full, and the request's tenant had most in it for its weight.",
        "tenant_paused": "An operator paused the tenant for longer than the request can wait.",
        "no_replica": "No replica of the model is in service, and another model may serve the request.",
        "no_room": "A copy for comparison found no capacity that nobody else needs.",
        "too_many_sequences": "The request asks for more sequences than the model's largest replica runs.",
        "no_pool": "No pool serves the model.",
        "withdrawn": "The tenant or class left the configuration.",
        "attempts_exhausted": "No further attempt is made: engines failed the request too often (`retry.max_attempts`), or its answer took longer than `upstream.answer_timeout`.",
        "retries_spent": "An engine failed the request, and the budget for repeated tries is spent (`retry.budget`).",
        "draining": "The gateway is shutting down.",
    },
    "OrderReason": {
        "alone": "Nobody else waited for the same replicas.",
        "fair": "Its class was first, and its tenant had had least for its weight.",
        "guaranteed_share": "Its class was owed its `min_share`.",
        "own_quota": "Its tenant had less of the replicas than `quota.guarantee`.",
        "requeued": "It was back from a replica that failed it.",
    },
    "PlacementReason": {
        "only": "All pools that may serve it are equally good, or there is one.",
        "prefix": "The same, and the replica has the start of its prompt in its cache.",
        "session": "The same, and the replica had its session before.",
        "wanted": "The pool is the most wanted one, and keeps the objective.",
        "spilled": "More wanted pools could not take it, or not in time.",
        "kept": "A more wanted pool could take it, but is not better by enough to change.",
        "fastest": "No pool keeps the objective; here the first token comes soonest.",
        "waited": "No pool keeps the objective; it waited for this one.",
        "held": "The replica was held for it, so that it did not starve.",
    },
    "EngineFault": {
        "refused": "The connection was refused, or did not come about in `upstream.connect_timeout`.",
        "reset": "The connection broke before the answer was whole.",
        "server_error": "A 5xx other than 501 that means neither busy nor shutting down, or 401, 403, 408 or 424.",
        "draining": "The engine is shutting down.",
        "aborted": "The engine aborted the request (`finish_reason: abort`), or a stream ended without a finish reason.",
        "error_event": "An error event inside a stream.",
        "malformed": "Bytes that are not the protocol.",
        "silent": "No byte for too long.",
        "overtime": "A plain answer took longer than `upstream.answer_timeout`.",
        "busy": "429, 503 or 529: the engine can take no more just now. Or the gateway lacks file descriptors or memory.",
    },
}
#: The same for codes of errors.
CODES = {
    "rate_limit_exceeded": "A limit of the tenant, key or model.",
    "insufficient_quota": "A limit of a day or month is spent, or the request alone is more than a limit.",
    "slow_down": "A queue is full, no replica can start the request within the longest wait of its class, the tenant is paused, "
                 "no replica is running and none starts in time, engines failed too many requests, or there is no memory for "
                 "the body or the answer.",
    "deadline_unmeetable": "No replica could start the request, or none answered, before the deadline that the client named.",
    "upstream_failed": "Every engine that was tried failed the request.",
    "identity_not_mapped": "The token or certificate is valid, and belongs to no tenant.",
    "model_not_found": "No such model for this tenant.",
}


# Configuration.

#: The types of values, by their definition in the schema.
VALUES = {
    "Duration": "duration", "Size": "size", "Address": "address", "Moment": "day or time",
}


#: Beginnings that point at another entry, which a reader of one entry does not see.
POINTERS = re.compile(r"(The same|Such|So many|It)\b")


def description(name, found):
    """The description of a key, section or value. It must be clear alone."""
    text = sentence(found.get("description", ""))
    if POINTERS.match(text):
        raise Incomplete(f"config/schema.json: the description of {name} points at another one: {text!r}")
    return text


class Schema:
    def __init__(self):
        self.whole = json.loads(source("config/schema.json"))
        self.definitions = self.whole["definitions"]
        uses = re.findall(r'"#/definitions/(\w+)"', json.dumps(self.whole))
        self.shared = {
            name for name in set(uses) if uses.count(name) > 1 and "properties" in self.definitions[name]
        }

    def target(self, field):
        """The name of the definition that a field refers to."""
        for one in [field, *field.get("allOf", []), *field.get("anyOf", [])]:
            if "$ref" in one:
                return one["$ref"].rpartition("/")[2]
        return None

    def type_of(self, field):
        """The type of a field, for people."""
        name = self.target(field)
        if name in VALUES:
            return f"[{VALUES[name]}](#kinds-of-values)"
        if name:
            found = self.definitions[name]
            if name in self.shared:
                return f"[{title_of(name)}](#{anchor(title_of(name))})"
            if "properties" in found:
                return "section"
            if "oneOf" in found or "enum" in found:
                return "one of the values below"
            kinds = [self.type_of(one) for one in found.get("anyOf", [])]
            return " or ".join(dict.fromkeys(kinds)) or self.type_of(found)
        kind = field.get("type", "string")
        kinds = [one for one in (kind if isinstance(kind, list) else [kind]) if one != "null"]
        said = []
        for one in kinds:
            if one == "array":
                said.append(f"list of {self.type_of(field['items'])}" if field.get("items") else "list")
            elif one == "object":
                more = field.get("additionalProperties")
                said.append(f"map of names to {self.type_of(more)}" if isinstance(more, dict) and more else "map")
            else:
                said.append(one)
        if field.get("anyOf") and not kinds:
            said = [self.type_of(one) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(said)

    def choices(self, field):
        """The values that a field may have, with what they mean."""
        found = self.definitions.get(self.target(field) or "", field)
        if "items" in field and not self.target(field):
            found = self.definitions.get(self.target(field["items"]) or "", {})
        if "enum" in found:
            return [(value, "") for value in found["enum"]]
        return [(one["const"], description(one["const"], one)) for one in found.get("oneOf", []) if "const" in one]

    def bounds(self, field):
        least, most = field.get("minimum"), field.get("maximum")
        if field.get("type") in ("string", "array") or (least in (None, 0) and most is None):
            return ""
        if most is None:
            return f"at least {number(least)}"
        return f"from {number(least or 0)} to {number(most)}" if most < 1e9 else ""

    def entries(self, path, section, level):
        """One heading for each key of a section, and of the sections in it."""
        lines = []
        for key, field in section.get("properties", {}).items():
            name = f"{path}.{key}" if path else key
            facts = [self.type_of(field)]
            if key in section.get("required", []):
                facts.append("required")
            default = field.get("default")
            if default not in (None, {}, []) and not isinstance(default, dict):
                shown = json.dumps(default) if not isinstance(default, str) else default
                facts.append(f"default `{shown}`")
            facts.append(self.bounds(field))
            if field.get("x-penstock-restart"):
                facts.append("**needs a restart**")
            text = description(name, field).replace("A change needs a restart.", "").strip()
            lines += [f"{'#' * level} `{name}`", "", "; ".join(filter(None, facts)) + ".", "", text, ""]
            for value, meaning in self.choices(field):
                lines.append(f"- `{value}`" + (f": {meaning}" if meaning else ""))
            if self.choices(field):
                lines.append("")
            lines += self.inner(name, field, level)
        return lines

    def inner(self, name, field, level):
        target, many = self.target(field), ""
        if not target and isinstance(field.get("items"), dict):
            target, many = self.target(field["items"]), "[]"
        if not target and isinstance(field.get("additionalProperties"), dict):
            target, many = self.target(field["additionalProperties"]), ".*"
        if target == "ReplicaSection":
            target = "ReplicaDetail"
        if not target or target in self.shared or "properties" not in self.definitions[target]:
            return []
        return self.entries(name + many, self.definitions[target], level)

    def page(self):
        lines = []
        top = self.whole["properties"]
        for key in ["version", *sorted(set(top) - {"version"})]:
            field = top[key]
            lines += [f"## {key}", "", description(key, field), ""]
            lines += self.inner(key, field, 3)
        for name in sorted(self.shared, key=title_of):
            found = self.definitions[name]
            lines += [f"## {title_of(name)}", "", description(name, found), ""]
            lines += self.entries("", found, 3)
        lines += ["## Kinds of values", ""]
        rows = []
        for name, said in VALUES.items():
            found = self.definitions[name]
            rows.append((said, sentence(found["description"]), ", ".join(f"`{one}`" for one in found["examples"])))
        lines += [table(("kind", "form", "examples"), rows)]
        return page(
            "Configuration", "config/schema.json",
            "Every key of the configuration file. [config/penstock.yaml](../../config/penstock.yaml) shows them in one file, "
            "each with its default. `*` stands for a name that you choose, `[]` for an entry of a list. A key without a "
            "default may be absent. Changes take effect at once unless the key **needs a restart**. Keys of these sections "
            "are described once: " + ", ".join(
                f"[{title_of(name)}](#{anchor(title_of(name))})" for name in sorted(self.shared, key=title_of)) + ".",
            "\n".join(lines),
        )


#: What sections are called that stand in several places.
TITLES = {
    "AmountsSection": "Amounts of a minute", "ClientTlsSection": "TLS of connections that the gateway opens",
    "ConcurrentSection": "Amounts at a time", "GuardrailRuleSection": "Guardrails of a tenant or class", "LimitsSection": "Limits",
    "PlacementSection": "Placement", "QuotasSection": "Amounts of a day or month", "SecretRef": "Secret",
    "TlsSection": "TLS of a listener",
}


def title_of(name):
    if name not in TITLES:
        raise Incomplete(f"TITLES in tests/commands/reference.py: no title for the section {name}")
    return TITLES[name]


def number(value):
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def configuration():
    return Schema().page()


# Metrics.

CATALOGUE = "src/telemetry/metrics/catalogue"
#: A metric as its row in the catalogue has it. The labels are in their order.
Metric = collections.namedtuple("Metric", "kind help labels")
#: A string of Rust, or one other character.
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|.', re.S)


def parts(text):
    """What stands between the commas of a list, not those of lists and strings inside it."""
    depth, found = 0, [""]
    for token in TOKEN.findall(text):
        depth += (token in "([{") - (token in ")]}")
        if token == "," and depth == 0:
            found.append("")
        else:
            found[-1] += token
    return [part.strip() for part in found if part.strip()]


def label_constants(text):
    return dict(re.findall(r'const (\w+): LabelKey = \w+\("(\w+)"', text))


def metric_sections():
    """The catalogue in its order: the heading of each section, and the metrics below it by name."""
    order = re.search(r"const SECTIONS.*?= \[(.*?)\];", source(f"{CATALOGUE}/mod.rs"), re.S).group(1)
    shared = label_constants(source(f"{CATALOGUE}/row.rs"))
    sections, read = {}, 0
    for file in re.findall(r"(\w+)::ALL", order):
        text = source(f"{CATALOGUE}/{file}.rs")
        heading = re.match(r'//! Metrics of the section "([^"]+)"', text).group(1)
        constants, rows = {**shared, **label_constants(text)}, {}
        for kind, row in re.findall(r"^    \w+ = (counter|gauge|histogram)\((.*?)\);$", text, re.S | re.M):
            name, meaning, labels = parts(row)[:3]
            own = {label: re.match(r'\w+\("(\w+)"', label) for label in parts(labels[2:-1])}
            keys = [key.group(1) if key else constants[label] for label, key in own.items()]
            rows[name.strip('"')] = Metric(kind, sentence(meaning[1:-1].replace('\\"', '"')), keys)
        sections[heading] = rows
        read += len(rows)
    written = sum(path.read_text().count('"penstock_') + path.read_text().count('"gen_ai_server_')
                  for path in (ROOT / CATALOGUE).glob("*.rs"))
    if read != written:
        raise Incomplete(f"{CATALOGUE}: {written} metrics, of which this script can read {read}")
    return sections


def metric_rows():
    """Every metric by its name."""
    return {name: metric for rows in metric_sections().values() for name, metric in rows.items()}


def metrics():
    body = []
    for heading, rows in metric_sections().items():
        body += [f"## {heading}", ""]
        for name, metric in rows.items():
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            body += [f"### `{name}`", "", f"{metric.kind}; " + (f"labels {labels}." if labels else "no labels."), "",
                     metric.help, ""]
    intro = """
Every metric of `GET /metrics` on the admin port, with the HELP text that Prometheus gets. All durations are in seconds.

- Counters start at 0 for the names of the configuration, at most 1,000 series of each, also after a reload. What only an event can
  name, such as the reason of a tenant's refusal or the limit of a key, has a series from its first event. Histograms have one from
  their first sample.
- Values of `tenant`, `class`, `model` and `pool` come from the configuration. Names that it does not have, and the tenants
  beyond 1,000 series, are `other`.
- A histogram has the series `_bucket`, `_sum` and `_count`.

```sh
curl -s http://127.0.0.1:8081/metrics
```
"""
    return page("Metrics", CATALOGUE, intro, "\n".join(body))


# Log fields.

#: What the fields of `request finished` mean.
REQUEST_FIELDS = {
    "request_id": "The request's id: the client's own `x-request-id`, or `req_…`.",
    "trace_id": "The trace that the request belongs to; absent = not traced.",
    "key_id": "The public part of the API key.",
    "tenant": "The tenant; absent = no valid credential.",
    "class": "The latency class in which the request came.",
    "model": "The model that served, by its public name.",
    "requested_model": "The model as the client wrote it.",
    "fallback_from": "The model that the request was for, when another one served.",
    "fallback_reason": "Why the first model could not serve: a [reason](errors.md#reasons-of-refusals).",
    "pool": "The pool that served last.",
    "replica": "The replica that served last: pool and URL.",
    "api": "The path of the call, such as `/v1/chat/completions`.",
    "operation": "The operation by the OpenTelemetry conventions: `chat`, `text_completion`, `embeddings`, …",
    "stream": "Whether the client asked for a stream.",
    "status": "The HTTP status that was sent; 499 = the client left before one.",
    "outcome": "How the request ended: [outcomes](#outcomes).",
    "reason": "The code of the error or refusal; absent for a success. See [reasons](errors.md#reasons-of-refusals).",
    "prompt_tokens": "Tokens of the prompt, before any engine counted them.",
    "prompt_source": "How these are known: `bound` (the bytes alone show that the prompt fits), `estimate`, `ids`, `exact` (the model's "
                     "own tokenizer), `engine` (asked).",
    "usage": "`exact`, `partial` (a lower bound) or `unknown`; absent = no engine saw the request.",
    "input_tokens": "Tokens of the prompt, as the engine counted.",
    "cached_tokens": "Those of them that the engine had in its prefix cache.",
    "output_tokens": "Tokens of the answer, as the engine counted.",
    "gpu_ms": "The request's part of replicas' time, in milliseconds, over all tries.",
    "cost": "What that time costs at the pools' `price`; absent = no price.",
    "queue_ms": "Time in the queue over all tries, in milliseconds.",
    "connect_ms": "Time to get a connection to the engine at the last try; absent = not reached.",
    "ttft_ms": "Time from the request's head to the first token of a stream, the queue included.",
    "total_ms": "Time from the request's head to the end.",
    "gap_mean_ms": "Mean time between two tokens of the stream.",
    "gap_max_ms": "Longest time between two tokens of the stream.",
    "attempts": "Engines that the request was sent to.",
    "continued": "How often the stream went on at another replica; absent = never.",
    "recalls": "How often the request was taken away from a replica before the client saw anything; absent = never.",
    "recall_reason": "Why, the last time: `stalled`, `preempted`, `drained`, `spot_notice`, `asleep`.",
    "gateway_id": "The gateway's own id of the request, in the answer as `x-penstock-request-id`; absent = `request_id` is that one. No client can choose it.",
    "client_address": "Address of the client as far as `telemetry.log.client_address` has it logged.",
    "guardrail": "How the check of the prompt by the guardrails ended: `allowed`, `denied`, or why there was no verdict; absent = not checked.",
    "guardrail_reason": "The code that the guardrails gave as their reason.",
    "guardrail_ms": "Time of that check.",
    "answer_guardrail": "The same for the answer.",
    "answer_guardrail_reason": "The code that the guardrails gave as their reason.",
    "answer_guardrail_ms": "Time of that check.",
    "replaces": "The id of the try whose place the request took.",
    "replaced_by": "The id of the retry that took its place.",
    "finish_reason": "Why the answer's first choice ended; `other` = a reason that no known engine gives.",
    "turn": "The rule by which its turn came: [rules](#rules-of-turn).",
    "choice": "Why it went to that pool: [choices](#choices-of-a-pool).",
    "adapter": "How a LoRA adapter stood to the replica: `loaded`, `room` (loaded into a free slot), `evicts` (in place of an idle one).",
    "demoted_to": "The class in which the request was served, when that is not the one in which it came.",
    "behind": "Requests that waited for the same models when it was dispatched.",
    "candidates": "Replicas that could have taken it.",
    "outstanding_tokens": "Work at the chosen replica before it, in tokens.",
    "expected_ms": "The predicted time to the first token at the chosen replica, from dispatch.",
    "expected_cached_tokens": "The part of the prompt that the replica was taken to have in its cache.",
    "replica_running": "Sequences at the replica before it.",
    "replica_limit": "The replica's limit on sequences at that moment.",
}


def log_lines():
    """Every line of the events: message -> (levels, fields, when)."""
    found = {}
    for path in sorted((ROOT / "src/telemetry/event").rglob("*.rs")):
        text = path.read_text().partition("#[cfg(test)]")[0]
        docs = {m.group(1): doc(text, m.start()) for m in re.finditer(r"^pub struct (\w+)", text, re.M)}
        for impl in re.finditer(r"^impl (\w+)(?:<'_>)? \{\n(.*?)^\}", text, re.S | re.M):
            for call in re.finditer(r"\b(info|warn|error|debug)!\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*?)\"([^\"]+)\",?\s*\)",
                                    impl.group(2), re.S):
                level, inner, message = call.groups()
                fields = []
                for part in re.split(r",(?![^()]*\))", inner):
                    name = re.match(r"\s*[%?]?(\w+)", part)
                    if name:
                        fields.append(name.group(1))
                levels, known, when = found.get(message, ([], [], docs.get(impl.group(1), "")))
                found[message] = (levels + [level] * (level not in levels),
                                  known + [one for one in fields if one not in known], when)
    return found


def log_fields():
    text = source("src/telemetry/event/request.rs")
    macro = re.search(r"macro_rules! line \{(.*?)\"request finished\"", text, re.S).group(1)
    fields = re.findall(r"^ {20}(\w+) = ", macro, re.M)
    same("REQUEST_FIELDS", REQUEST_FIELDS, fields)
    lines = log_lines()
    if len(lines) < 40:
        raise Incomplete("src/telemetry/event: fewer log lines found than there are")
    rows = [
        (f"`{message}`", ", ".join(levels), ", ".join(f"`{name}`" for name in known) or "none", sentence(when))
        for message, (levels, known, when) in sorted(lines.items())
    ]
    body = ["## The line of a request", "",
            "One line with the message `request finished` for each request. A field without a value is absent.", ""]
    for name in fields:
        body += [f"### `{name}`", "", REQUEST_FIELDS[name], ""]
    model = "src/core/model/reason.rs"
    text = source("src/telemetry/summary.rs")
    outcomes = variants(text, "RequestOutcome")
    outcome_names = names(text, "RequestOutcome")
    body += ["## Outcomes", "", table(("outcome", "meaning"), [
        (f"`{name}`", sentence(outcomes[variant])) for variant in outcomes for name in outcome_names[variant]]), ""]
    body += ["## Rules of turn", "", enum_table(model, "OrderReason", ("`turn`", "meaning")), ""]
    body += ["## Choices of a pool", "", enum_table("src/core/placement/" + placement_file(), "PlacementReason",
                                                   ("`choice`", "meaning")), ""]
    body += ["## Faults of engines", "", "The field `fault` of other lines, and the label `fault` of metrics.", "",
             enum_table(model, "EngineFault", ("`fault`", "meaning")), ""]
    body += ["## Other lines", "", table(("message", "level", "fields", "when"), rows)]
    intro = """
The log is one JSON line for each event on standard error (`telemetry.log.format: text` for people, in colour on a terminal
unless `NO_COLOR` is set). Every line has `timestamp`, `level`, `message` and `target`. No line has a key, a prompt or an answer. Texts of foreign origin are cut at 128 bytes. Of
requests of one tenant and reason that no engine got, `telemetry.refusals_per_second` are logged; a line with `kept_back` has the number
of the others.
"""
    return page("Log fields", "src/telemetry/event", intro, "\n".join(body))


def placement_file():
    for path in sorted((ROOT / "src/core/placement").glob("*.rs")):
        if re.search(r"pub enum PlacementReason \{", path.read_text()):
            return path.name
    raise Incomplete("src/core/placement: no file has PlacementReason")


# Errors.

#: What a client does about each code.
REMEDIES = {
    "invalid_value": "Change the field that `param` names.",
    "unprocessable_entity": "The message is the engine's.",
    "invalid_body": "Send the JSON or form that the call wants.",
    "context_length_exceeded": "Send a shorter prompt, or ask for less output.",
    "missing_api_key": "Send a key, a token or a certificate.",
    "invalid_api_key": "Use a valid key: it may have ended.",
    "model_not_allowed": "Ask the operator for the model.",
    "class_not_allowed": "Ask for another class.",
    "model_not_found": "Use a name of `/v1/models`.",
    "unknown_url": "Use a call of [the list](clients.md#calls).",
    "method_not_allowed": "Use the method in `allow`.",
    "unsupported_operation": "Use a model whose engine has this call.",
    "answer_too_large": "Ask for less at once, for embeddings in base64, or for a stream (`requests.max_answer`).",
    "body_too_large": "Send less (`requests.max_body`).",
    "body_timeout": "Send the body faster (`server.body_timeout`, `requests.min_body_rate`).",
    "unsupported_media_type": "Send `application/json`, or a form where the call wants one.",
    "rate_limit_exceeded": "Wait for `retry-after`. The message has the numbers.",
    "insufficient_quota": "Ask for a higher limit: a retry does not help.",
    "slow_down": "Wait for `retry-after`.",
    "deadline_unmeetable": "Allow more time, or try later.",
    "answer_timeout": "Ask for a stream, or for less output (`upstream.answer_timeout`).",
    "superseded": "Nothing: only the retry is served.",
    "upstream_failed": "Ask the operator: `penstock explain` names the fault of each try.",
    "upstream_broken": "Send the request again. The code comes as an event inside the stream.",
    "draining": "Try again, at another gateway.",
    "identity_not_mapped": "Ask the operator for a tenant.",
    "too_many_failed_attempts": "Fix the credential.",
    "identity_provider_unavailable": "Try again: the token's provider cannot be asked.",
    "guardrail_denied": "Change the prompt: the message says why it was refused. Of an answer: ask for another one.",
    "guardrail_unavailable": "Try again. If it stays so, tell the operator: the guardrails give no verdict.",
    "internal_error": "Try again, and tell the operator the `x-request-id`.",
}


def error_rows():
    text = source("src/protocol/error/catalogue.rs")
    kinds = list(variants(text, "ErrorKind").items())
    rows = re.findall(r"^ +(\d{3}) (\w+) (\w+) \| (\d{3}) (\w+) \| (\d{3}) (\w+) \| (\w+)$", text, re.M)
    if len(rows) != len(kinds):
        raise Incomplete(f"src/protocol/error/catalogue.rs: {len(kinds)} kinds, {len(rows)} rows in the snapshot")
    codes = [row[2] for row in rows]
    if set(CODES) - set(codes):
        raise Incomplete(f"CODES in tests/commands/reference.py: left over {sorted(set(CODES) - set(codes))}")
    return [(*row, CODES.get(row[2], meaning)) for row, (_, meaning) in zip(rows, kinds)]


def errors():
    rows = error_rows()
    same("REMEDIES", REMEDIES, [row[2] for row in rows])
    body = ["## Codes", ""]
    body += [table(("status", "`code`", "meaning", "retry"), [
        (row[0], f"[`{row[2]}`](#{row[2]})", sentence(row[8]), "yes" if row[7] == "retry" else "no") for row in rows]), ""]
    for row in rows:
        status, kind, code, anthropic, anthropic_kind, tgi, tgi_kind, again, meaning = row
        body += [f"### `{code}`", "", sentence(meaning) + " " + REMEDIES[code], "",
                 table(("API", "status", "type"), [
                     ("OpenAI", status, f"`{kind}`"), ("Anthropic", anthropic, f"`{anthropic_kind}`"),
                     ("TGI", tgi, f"`{tgi_kind}`")]), ""]
    body += ["## Reasons of refusals", "",
             "The log's `reason`, `penstock_rejections_total` and `penstock explain` tell more than the code.", "",
             enum_table("src/core/model/reason.rs", "RejectReason", ("`reason`", "meaning")), "",
             "A request that is refused before it is queued, or after its answer came, has its error's code as the reason. `slow_down` as a "
             "reason: the memory for bodies (`requests.max_total_body`, `requests.tenant_body_share`) or answers "
             "(`requests.max_total_answer`) is full."]
    intro = """
Errors have the shape of the API that was called:

```json
{"error": {"message": "Your queue is full: too many requests wait already.", "type": "service_unavailable_error", "param": null, "code": "slow_down"}}
```

```json
{"type": "error", "error": {"type": "overloaded_error", "message": "...", "details": {"error_code": "slow_down"}}, "request_id": "req_..."}
```

The first is for OpenAI's calls, the second for Anthropic's. TGI's calls get `error` and `error_type`.

| header | meaning |
|---|---|
| `x-should-retry` | whether the same request may succeed later; OpenAI's and Anthropic's SDKs obey it |
| `retry-after`, `retry-after-ms` | when to try again, at most 60 s |
| `x-queue-eta-ms` | the wait, when it is longer than that; `x-should-retry` is then `false` |
| `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` | on a 429 of a per-minute limit: the limit of which the least part is left |

"Retry" in the table: whether SDKs are told to repeat the request by themselves.
"""
    return page("Errors", "src/protocol/error/catalogue.rs", intro, "\n".join(body))


# Admin API.


def admin_api():
    text = source("src/admin/routes.rs")
    index = re.search(r"const INDEX: &str = \"\\\n(.*?)\";", text, re.S).group(1).replace('\\"', '"')
    routes = re.findall(r"^(GET|POST|DELETE) +(/\S*) {2,}(.+)$", index, re.M)
    served = set(re.findall(r'route\("(/[^"]*)"', text.partition("async fn")[0])) - {"/"}
    others = "".join(map(source, ("src/admin/console/mod.rs", "src/admin/console/live.rs", "src/scaler/json.rs")))
    served_elsewhere = set(re.findall(r'route\("(/[^"]*)"', others))
    listed = {path for _, path, _ in routes}
    if served - listed:
        raise Incomplete(f"src/admin/routes.rs: the list of routes lacks {sorted(served - listed)}")
    verbs = re.findall(r'\("(/admin/v1/[^"]*)", Op', source("src/admin/operate.rs"))
    body = ["## Routes", "", table(("route", "answer"), [
        ("`GET /`", "The list of routes, as text."), *[(f"`{method} {path}`", sentence(meaning)) for method, path, meaning in routes if path in served
                                    or path in served_elsewhere]]), ""]
    body += ["## Verbs", "",
             "Each takes a JSON body, and answers with what changed. The commands of the [runbook](../operations/runbook.md) send them.", "",
             table(("route", "what it does"), [(f"`POST {path}`", VERBS[path]) for path in verbs]), ""]
    same("VERBS", VERBS, verbs)
    fields = re.search(r"struct VerbBody \{(.*?)\n\}", source("src/admin/operate.rs"), re.S).group(1)
    known = [re.search(r'rename = "(\w+)"', line).group(1) if "rename" in line else name
             for line, name in re.findall(r"((?:#\[serde[^\n]*\]\s*)?)(\w+): ", fields)]
    same("VERB_FIELDS", VERB_FIELDS, known)
    body += [table(("field", "meaning"), [(f"`{name}`", VERB_FIELDS[name]) for name in known]), ""]
    body += ["""```console
$ curl -sX POST http://127.0.0.1:8081/admin/v1/tenants/boost -H 'Content-Type: application/json' -d '{"name": "research", "by": 2, "for": "10m", "reason": "deadline"}'
{"verb":"boost","name":"research","before":"none","after":"boost x2","ends_in_seconds":600.0,"requeued":0,"still_running":0,"notes":[]}
$ curl -sX POST http://127.0.0.1:8081/admin/v1/tenants/resume -H 'Content-Type: application/json' -d '{"name": "research"}'
{"verb":"resume","name":"research","before":"boost x2","after":"none","ends_in_seconds":null,...
```
"""]
    keys = source("src/admin/keys/mod.rs")
    struct = re.search(r"struct KeyRequest \{\n(.*?)\n\}", keys, re.S).group(1)
    rows = [(renamed or name, sentence(" ".join(line.strip(" /") for line in text.splitlines())))
            for text, renamed, name in re.findall(r'((?: *///[^\n]*\n)+)(?: *#\[serde\(rename = "(\w+)"\)\]\n)? *(\w+): ', struct + "\n")]
    body += ["## Keys", "",
             "`POST /admin/v1/keys` makes an API key and writes its digest into `auth.keys_dir`, a file for each key, mode 0600. "
             "The key is in force when the answer (201) comes, and is shown only there. Keys of the configuration file and of files "
             "that people write are listed, and changed where they stand (409). The body's fields:", "",
             table(("field", "meaning"), [(f"`{name}`", meaning) for name, meaning in rows]), "",
             "[API keys](../guides/identity.md#keys-while-the-gateway-runs) shows it.", ""]
    columns = re.search(r"const COLUMNS: &\[&str\] = &\[(.*?)\];", source("src/admin/requests/mod.rs"), re.S).group(1)
    columns = re.findall(r'"([\w.]+)"', columns)
    same("LISTED_FIELDS", LISTED_FIELDS, columns)
    names = re.search(r"const NAMES: .*? =\s*\[(.*?)\];", source("src/admin/requests/events.rs"), re.S).group(1)
    names = re.findall(r'"(\w+)"', names)
    same("LIVE_EVENTS", LIVE_EVENTS, names)
    body += ["## Requests", "", REQUEST_LIST.strip(), "",
             table(("field", "meaning"), [(f"`{name}`", LISTED_FIELDS[name]) for name in columns]), "",
             "## Events", "", LIVE_INTRO.strip(), "",
             table(("`event`", "when"), [(f"`{name}`", LIVE_EVENTS[name]) for name in names]), ""]
    body += ["## Reasons of the scale signal", "", "`reason` of `/scale/v1/pools`, and the label of `penstock_desired_reason`.", "",
             enum_table("src/core/autoscale/mod.rs", "ScaleReason", ("`reason`", "meaning")), ""]
    snapshot = "src/core/model/snapshot.rs"
    body += ["## States of a pool", "", enum_table(snapshot, "PoolStatus", ("`state`", "meaning")), "",
             "While an operator's override closes the pool, `penstock pools list` shows that instead.", ""]
    body += ["## States of a replica", "", enum_table(snapshot, "ReplicaStatus", ("`state`", "meaning")), ""]
    body += ["## Why a request waits", "", "`penstock explain` puts these into words. `gateway` of `/admin/v1/requests/{id}` is the name of another gateway",
             "that has the request: [Several gateways](../guides/several-gateways.md#operate-all-of-them-at-once).", "",
             enum_table(snapshot, waiting_enum(), ("`why`", "meaning")), ""]
    body += ["## Scores of a decision", "", SCORES.strip(), "",
             enum_table("src/core/replica/scores.rs", "WhyNot", ("`why_not`", "meaning"))]
    intro = """
The admin port (`server.admin`, default `127.0.0.1:8081`) answers with JSON unless the route says otherwise. Errors are
`{"error": {"message": …}}`.

Without `admin.auth`, whoever reaches the port may do everything. With it, every route but `/`, `/livez`, `/readyz`, `/healthz` and
what is below `/console` asks for `Authorization: Bearer <token>` or a client certificate. The role `read` may GET; `operate` may POST
and DELETE, too:
[Operators](../guides/identity.md#operators).

A change needs a POST with a JSON body, or a DELETE, so that no web page can act in an operator's name.

```console
$ curl -s http://127.0.0.1:8081/admin/v1/queues
{"queues":[...
```
"""
    return page("Admin API", "src/admin", intro, "\n".join(body))


SCORES = """
`GET /admin/v1/requests/{id}` has in each of `tries`, under `why`, the `score` of the replica that was chosen, and in `others` up to four
other replicas with their `score`, `expected_ttft`, `cached_tokens` and `why_not`, the best first. Times are in seconds. A score is the
predicted time to first token, the time that the prompt takes from later prompts there, and the time that the answer's tokens add to the
streams there; the least goes first. The replica of the request's session has a lower score, by what is left of `routing.session.max_delay`.

The scheduler does not look at every replica. `others` has the replicas with the request's prompt, adapter or session, whether they
had room or not, and of those with room the ones that its search meets first, in at most four pools. In a fleet of up to five replicas with
room these are all; in a larger one a replica that is not in the list may have been better than the last ones in it. Replicas that were
full or out of service, and had nothing of the request, are not rated; `candidates` counts those that had room.
"""


def waiting_enum():
    text = source("src/core/model/snapshot.rs")
    return re.search(r'impl (\w+) \{(?:(?!\nimpl ).)*?"not_its_turn"', text, re.S).group(1)


VERBS = {
    "/admin/v1/pools/cordon": "The pool gets no new work.",
    "/admin/v1/pools/drain": "The same, and requests that have not begun go to other pools.",
    "/admin/v1/pools/spot-notice": "A drain whose streams move after 20 s at most.",
    "/admin/v1/pools/uncordon": "Undoes these.",
    "/admin/v1/replicas/cordon": "The replica gets no new work.",
    "/admin/v1/replicas/drain": "The same, and requests that have not begun go to other replicas.",
    "/admin/v1/replicas/spot-notice": "A drain whose streams move after 20 s at most.",
    "/admin/v1/replicas/uncordon": "Undoes these.",
    "/admin/v1/tenants/pause": "The tenant's requests wait.",
    "/admin/v1/tenants/resume": "Undoes pause and boost.",
    "/admin/v1/tenants/boost": "Multiplies the tenant's weight.",
}
VERB_FIELDS = {
    "name": "The pool, replica or tenant, as the lists show it.",
    "for": "How long: a duration, or `forever`; absent = 1 h.",
    "reason": "Why, for the log and the list of overrides; at most 200 bytes.",
    "by": "The factor of `boost`.",
}


REQUEST_LIST = """
`GET /admin/v1/requests` has all requests that wait or run, and the last 10,000 that ended. Those that wait come first, the oldest
first; then those that run, the oldest first; then those that ended, the last one first. The query takes `state` (`waiting`, `running`,
`finished`), `tenant`, `class`, `model` and `pool`, each more than once, and `limit` (1 to 1,000, default 100). `matched` has the
number of all that match, by state. No field has prompt text or a key.

```console
$ curl -s "http://127.0.0.1:8081/admin/v1/requests?state=waiting&limit=10"
{"limit":10,"matched":{"finished":0,"running":0,"waiting":0},"requests":[]}
```

In CSV, which this list, `/admin/v1/queues`, `pools`, `replicas` and `tenants` have as well, a dot in a name is `_`. A text that begins
like a formula has `'` before it.
"""
LISTED_FIELDS = {
    "request_id": "The id of the answer's header `x-request-id`.",
    "state": "`waiting`, `running` or `finished`.",
    "tenant": "Its tenant.",
    "class": "The class that it asked for.",
    "model": "The model that serves it, after a fallback the other one.",
    "came_at_unix": "When it came, in seconds since 1970.",
    "age_seconds": "Time since then.",
    "state_seconds": "Time in its state.",
    "stream": "Whether it asked for a stream.",
    "prompt_tokens": "Tokens of its prompt, as the gateway counts or estimates them.",
    "output_tokens": "Tokens so far, at least: the events with output of its stream. After its end, as counted.",
    "attempts": "How often it was sent to a replica.",
    "pool": "Pool of the last attempt.",
    "replica": "Replica of the last attempt.",
    "ttft_seconds": "Time from its arrival to the first token of the last attempt.",
    "waits.obstacle": "[Why it waits](#why-a-request-waits).",
    "waits.ahead": "Requests that go before it, of its tenant, class and model; absent when it is far from both ends of a long queue.",
    "waits.queued_seconds": "Time in the queue, over all attempts.",
    "waits.may_wait_seconds": "Time that it may still wait.",
    "waits.starts_in_seconds": "Predicted time until it starts, from how fast its tenant's requests of the class have started; absent while that is not known.",
    "end.outcome": "As `outcome` in the [log](log-fields.md).",
    "end.reason": "As `reason` in the log.",
    "end.status": "HTTP status that the client got.",
    "end.total_seconds": "Time from its arrival to its end.",
}
LIVE_INTRO = """
`GET /admin/v1/events` is a stream of server-sent events. Each message is a JSON object with `event`, `at_unix` and, except for `change`,
the request's `request_id`, `tenant`, `class` and `model`. The query takes `event`, `tenant`, `class`, `model` and `pool`, each more
than once. At most 8 readers are served at once. A last message `{"event": "end", "why": …}` comes after 240 s, and at once with
`missed`, the number of lost events, when a reader is too slow; a browser's `EventSource` then connects again by itself.
"""
LIVE_EVENTS = {
    "arrived": "A request came and was understood.",
    "dispatched": "It was sent to `pool` and `replica`; `why` is the decision, as in `/admin/v1/requests/{id}`.",
    "first_token": "The first token of its stream came, `after_seconds` from its arrival.",
    "returned": "It is back in the queue: `reason` is the engine's fault or the scheduler's reason.",
    "fell_back": "Another model is to serve it.",
    "ended": "It ended, with `outcome`, `reason`, `status`, `total_seconds` and `output_tokens`.",
    "change": "`change` of `subject`, with `detail` for people: `ejected`, `readmitted`, `pool_wanted`, `pool_started`, `pool_down`, `desired`, `override`, `config`.",
}


# Commands.


def help_of(words):
    done = subprocess.run([BIN, *words, "--help"], text=True, capture_output=True, check=True,
                          env={**os.environ, "COLUMNS": "100"})
    return done.stdout.rstrip()


def subcommands(words=()):
    """Every command with its help, in the order of the help texts."""
    text = help_of(words)
    yield words, text
    listed = re.search(r"^Commands:\n(.*?)(?:^$|\Z)", text, re.S | re.M)
    for name in re.findall(r"^  ([a-z-]+)", listed.group(1), re.M) if listed else []:
        if name != "help":
            yield from subcommands((*words, name))


#: Commands that must have an option, word for word, for it to be described once for all.
MANY_COMMANDS = 8


def options_of(text):
    """A help text in three: what stands before its options, each option, what stands behind them."""
    before, heading, rest = text.partition("\nOptions:\n")
    if not heading:
        return text, [], ""
    options, _, after = rest.partition("\n\nExamples:\n") if "\n\nExamples:\n" in rest else rest.partition("\n\nExample:\n")
    behind = rest[len(options):]
    said = re.split(r"\n\n(?=(?:  -\w, |      )--)", options)
    return before, [option for option in said if not re.match(r"  -[hV], --(help|version)", option)], behind


def commands():
    helps = [(words, re.sub(r" +$", "", text, flags=re.M)) for words, text in subcommands()]
    counts = collections.Counter(option for _, text in helps for option in options_of(text)[1])
    common = [option for option, count in counts.items() if count >= MANY_COMMANDS]
    names = {option: re.search(r"--[a-z-]+", option).group(0) for option in common}
    body = ["## Options of many commands", "", "```text", "\n\n".join(common), "```", ""]
    for words, text in helps:
        before, options, behind = options_of(text)
        own = [option for option in options if option not in names]
        shared = [names[option] for option in options if option in names]
        if shared:
            own.append(f"      and of many commands: {', '.join(shared)}")
        text = before + ("\nOptions:\n" + "\n\n".join(own) if own else "") + behind
        text = re.sub(r"\n{3,}", "\n\n", text)
        body += [f"## penstock {' '.join(words)}".rstrip(), "", "```text", text.rstrip(), "```", ""]
    intro = """
Every command with its help text. Commands that ask the admin port of a running gateway take `--admin URL` (or `PENSTOCK_ADMIN`), `--token-file` (or
`PENSTOCK_ADMIN_TOKEN`), `--ca`, `--cert`, `--key`, and all but `ready` take `-o table|json|csv` (CSV: lists). `check` and `keda` name the gateway with
`--against`. `check`, `diff`, `doctor`, `keys`, `plan` and `usage` take `-o`, too, and `import` takes `--report`, since its `-o` is the file to
write. Each has `--help` and `--version`. Other options that many commands have are [described once](#options-of-many-commands).

```sh
penstock --help
penstock completion bash > penstock.bash
```
"""
    return page("Commands", "the help texts", intro, "\n".join(body))


PAGES = {
    "configuration.md": configuration, "metrics.md": metrics, "log-fields.md": log_fields, "errors.md": errors,
    "admin-api.md": admin_api, "commands.md": commands,
}


def problem(name):
    """What is wrong with a page as it stands; None when it is current."""
    path = REFERENCE / name
    made = PAGES[name]()
    if not path.exists():
        return f"docs/reference/{name} is missing; run: {HOW}"
    if path.read_text() != made:
        old, new = path.read_text().splitlines(), made.splitlines()
        at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
        shown = lambda lines: lines[at] if at < len(lines) else "(nothing)"
        return (f"docs/reference/{name} is not current; run: {HOW}\n"
                f"first difference at line {at + 1}:\n  is:        {shown(old)}\n  should be: {shown(new)}")
    return None


def main():
    if sys.argv[1:] == ["--write"]:
        REFERENCE.mkdir(exist_ok=True)
        for name, make in PAGES.items():
            (REFERENCE / name).write_text(make())
        return 0
    problems = list(filter(None, map(problem, PAGES)))
    print("\n".join(problems) or "the reference is current")
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Incomplete as what:
        sys.exit(f"reference.py: {what}")
