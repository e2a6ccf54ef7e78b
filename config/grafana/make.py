"""Writes the Grafana dashboards beside this file.

    python3 config/grafana/make.py            says which files are not current
    python3 config/grafana/make.py --write    writes them

A dashboard is a list of rows, a row a list of panels, a panel a title, a kind and queries. In queries, `@` stands for the
choice of gateways. Edit here, not in Grafana: the JSON files are replaced.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
GATEWAYS = 'job=~"$job"'
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24


def query(expr, legend="", instant=False, source=PROMETHEUS):
    return {"datasource": source, "expr": expr.replace("@", GATEWAYS), "legendFormat": legend, "instant": instant,
            "range": not instant}


def panel(kind, title, *queries, unit="short", height=8, text="", custom=None, options=None, thresholds=None):
    """One panel. A query is an expression with its legend."""
    defaults = {"unit": unit, "min": 0, "custom": custom or {}}
    if thresholds:
        steps = [{"color": color, "value": value} for value, color in thresholds]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
    targets = [query(*one) if isinstance(one, tuple) else one for one in queries]
    for letter, target in zip("ABCDEF", targets):
        target["refId"] = letter
    return {
        "type": kind, "title": title, "description": text, "datasource": targets[0]["datasource"] if targets else PROMETHEUS,
        "targets": targets, "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options or {},
        "gridPos": {"h": height},
    }


def lines(title, *queries, stack=False, **rest):
    custom = {"fillOpacity": 30 if stack else 5, "lineWidth": 1, "showPoints": "never",
              "stacking": {"mode": "normal" if stack else "none"}}
    options = {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, *queries, custom=custom, options=options, **rest)


def stats(title, *queries, **rest):
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "graphMode": "area",
               "textMode": "value_and_name"}
    return panel("stat", title, *queries, options=options, **rest)


def states(title, *queries, **rest):
    """Which of several states holds, over time. The queries are 1 for the one that does."""
    return panel("state-timeline", title, *queries, options={"showValue": "never", "mergeValues": True},
                 thresholds=[(None, "transparent"), (1, "blue")], **rest)


def heatmap(title, metric, **rest):
    target = query(f"sum by (le) (increase({metric}[$__rate_interval]))", "{{le}}")
    target["format"] = "heatmap"
    return panel("heatmap", title, target, options={"calculate": False, "yAxis": {"unit": "s"}, "cellGap": 1}, **rest)


def rate(metric, by):
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


def quantile(share, metric, by):
    return f"histogram_quantile({share}, {rate(metric, f'{by}, le')})"


def variable(name, label, metric):
    definition = f"label_values({metric}, {name})"
    return {"name": name, "label": label, "type": "query", "datasource": PROMETHEUS, "definition": definition,
            "query": {"query": definition, "refId": name}, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
            "allValue": ".*", "current": {"text": "All", "value": "$__all"}}


def source(name, kind):
    return {"name": name, "label": kind.capitalize(), "type": "datasource", "query": kind, "refresh": 1}


SOURCE = source("datasource", "prometheus")
JOB = variable("job", "Gateways", "penstock_build_info")
POOL = variable("pool", "Pool", "penstock_pool_state")
TENANT = variable("tenant", "Tenant", "penstock_requests_total")
CLASS = variable("class", "Class", "penstock_objective_total")
MODEL = variable("model", "Model", "penstock_requests_total")
ID = {"name": "request_id", "label": "Request id", "type": "textbox", "query": "", "current": {"text": "", "value": ""}}

MISSED = "class_objective:penstock_objective_missed"
GOOD = [(None, "red"), (0.95, "orange"), (0.99, "green")]
BAD_ABOVE_0 = [(None, "green"), (1, "red")]


def overview():
    return "Overview", "Are promises kept, and what is in the way", [JOB], [
        ("Promises", [
            stats("Objectives kept in the last hour", (f"1 - {MISSED}:ratio_rate1h{{@}}", "{{class}} {{objective}}"),
                  unit="percentunit", thresholds=GOOD, text="Needs the recording rules of config/prometheus."),
            lines("Speed at which the error budget goes",
                  (f"{MISSED}:ratio_rate1h{{@}} / class_objective:penstock_objective_budget:ratio{{@}}",
                   "{{class}} {{objective}}"),
                  text="1: the budget of a month lasts a month. 14.4: two days, and somebody is called."),
            lines("Missed a second", (rate('penstock_objective_total{@, kept="false"}', "class, objective"),
                                      "{{class}} {{objective}}"), unit="reqps"),
        ]),
        ("Traffic", [
            lines("Requests", (rate("penstock_requests_total{@}", "outcome"), "{{outcome}}"), unit="reqps", stack=True),
            lines("Refusals", (rate("penstock_rejections_total{@}", "reason") + " > 0", "{{reason}}"), unit="reqps",
                  stack=True),
            lines("Tokens", (rate("penstock_tokens_total{@}", "kind"), "{{kind}}"), unit="short",
                  text="A second, as the engines counted them. Cached ones are part of input."),
        ]),
        ("Queue", [
            lines("Waiting requests", ("sum by (class) (penstock_queue_depth{@})", "{{class}}"), stack=True),
            lines("Oldest waiting request", ("max by (class) (penstock_queue_oldest_seconds{@})", "{{class}}"), unit="s"),
            lines("Wait in the queue, p99", (quantile(0.99, "penstock_queue_wait_seconds_bucket{@}", "class"), "{{class}}"),
                  unit="s"),
        ]),
        ("Latency", [
            lines("First token",
                  (quantile(0.5, "penstock_time_to_first_token_seconds_bucket{@}", "class"), "{{class}} p50"),
                  (quantile(0.99, "penstock_time_to_first_token_seconds_bucket{@}", "class"), "{{class}} p99"), unit="s"),
            lines("Between tokens, mean of a request",
                  (quantile(0.5, "penstock_inter_token_seconds_bucket{@}", "class"), "{{class}} p50"),
                  (quantile(0.99, "penstock_inter_token_seconds_bucket{@}", "class"), "{{class}} p99"), unit="s"),
            lines("Whole request",
                  (quantile(0.5, "penstock_request_duration_seconds_bucket{@}", "class"), "{{class}} p50"),
                  (quantile(0.99, "penstock_request_duration_seconds_bucket{@}", "class"), "{{class}} p99"), unit="s"),
        ]),
        ("Fleet", [
            lines("Places by use", ("sum by (state) (penstock_seats{@})", "{{state}}"), stack=True,
                  text="Running, free, out of service, or what keeps them from work."),
            lines("Replicas", ("max by (pool) (penstock_pool_ready_replicas{@})", "{{pool}} in service"),
                  ("max by (pool) (penstock_desired_replicas{@})", "{{pool}} needed")),
            states("Pools", ("max by (pool, state) (penstock_pool_state{@}) == 1", "{{pool}} {{state}}")),
        ]),
        ("Gateways", [
            stats("Configuration in force is the file's", ("min by (instance) (penstock_config_last_reload_successful{@})",
                                                           "{{instance}}"), thresholds=[(None, "red"), (1, "green")]),
            stats("Broken invariants", ("sum by (instance) (penstock_broken_invariants{@})", "{{instance}}"),
                  thresholds=BAD_ABOVE_0),
            lines("Client connections", ("sum by (instance) (penstock_open_connections{@})", "{{instance}}")),
            lines("Turned away", (rate("penstock_auth_failures_total{@}", "reason") + " > 0", "credential: {{reason}}"),
                  (rate("penstock_connections_refused_total{@}", "reason") + " > 0", "connection: {{reason}}"),
                  (rate("penstock_tls_handshakes_failed_total{@}", "reason") + " > 0", "TLS: {{reason}}"), unit="reqps"),
        ]),
    ]


def tenants():
    own = '{@, tenant=~"$tenant"}'
    return "Tenants", "Who uses what, who waits, who is refused", [JOB, TENANT], [
        ("Use", [
            lines("Requests", (rate("penstock_requests_total" + own, "tenant"), "{{tenant}}"), unit="reqps", stack=True),
            lines("Tokens", (rate('penstock_tokens_total{@, tenant=~"$tenant", kind!="cached"}', "tenant"), "{{tenant}}"),
                  stack=True, text="A second, prompt and output."),
            lines("Part of the used replica time",
                  (rate("penstock_gpu_seconds_total" + own, "tenant")
                   + " / on () group_left sum(rate(penstock_gpu_seconds_total{@}[$__rate_interval]))", "{{tenant}}"),
                  unit="percentunit", stack=True),
        ]),
        ("Wait", [
            lines("Waiting requests", ("sum by (tenant) (penstock_queue_depth" + own + ")", "{{tenant}}"), stack=True),
            lines("Oldest waiting request", ("max by (tenant) (penstock_queue_oldest_seconds" + own + ")", "{{tenant}}"),
                  unit="s"),
            lines("Wait in the queue, p99",
                  (quantile(0.99, "penstock_queue_wait_seconds_bucket" + own, "tenant"), "{{tenant}}"), unit="s"),
            lines("First token, p99",
                  (quantile(0.99, "penstock_time_to_first_token_seconds_bucket" + own, "tenant"), "{{tenant}}"), unit="s"),
        ]),
        ("Refused and failed", [
            lines("Not answered", (rate('penstock_requests_total{@, tenant=~"$tenant", outcome!="success"}',
                                        "tenant, reason"), "{{tenant}} {{reason}}"), unit="reqps"),
            lines("Limits met", (rate("penstock_limits_met_total" + own, "tenant, scope, unit, period, shadow"),
                                 "{{tenant}} {{scope}} {{unit}} {{period}} shadow={{shadow}}"), unit="reqps"),
            lines("Usage that nobody counted", (rate("penstock_usage_unknown_total" + own, "tenant"), "{{tenant}}"),
                  unit="reqps"),
        ]),
        ("Cost", [
            lines("Cost of an hour", (rate("penstock_cost_total" + own, "tenant") + " * 3600", "{{tenant}}"), stack=True,
                  text="In the currency of the configuration, at the prices of the pools."),
            lines("Replica time by pool", (rate("penstock_gpu_seconds_total" + own, "tenant, pool"), "{{tenant}} {{pool}}"),
                  text="Replicas in use, on average."),
            lines("Part of the prompts that was cached",
                  (rate('penstock_tokens_total{@, tenant=~"$tenant", kind="cached"}', "tenant") + " / "
                   + rate('penstock_tokens_total{@, tenant=~"$tenant", kind="input"}', "tenant"), "{{tenant}}"),
                  unit="percentunit"),
            lines("Work for nobody", (rate("penstock_wasted_tokens_total{@}", "reason") + " > 0", "{{reason}}"),
                  text="Tokens a second, of all tenants."),
        ]),
    ]


def pools():
    own = '{@, pool=~"$pool"}'
    return "Pools", "What replicas do, and why not more", [JOB, POOL], [
        ("Places", [
            lines("Places by use", ("sum by (pool, state) (penstock_seats" + own + ")", "{{pool}} {{state}}"), stack=True,
                  text="`running` and `free`; the others say what keeps a place empty."),
            lines("Running", ("sum by (replica) (penstock_replica_running" + own + ")", "{{replica}}")),
            lines("Limit now", ("min by (replica) (penstock_replica_limit" + own + ")", "{{replica}}"),
                  text="Sequences that the replica may have now."),
            states("Replicas", ("max by (replica, state) (penstock_replica_state" + own + ") == 1", "{{replica}} {{state}}")),
        ]),
        ("Engines", [
            lines("KV cache in use, by the engine", ("max by (replica) (penstock_engine_kv_usage" + own + ")", "{{replica}}"),
                  unit="percentunit"),
            lines("KV tokens, by the ledger", ("sum by (replica) (penstock_replica_kv_tokens" + own + ")", "{{replica}}")),
            lines("Prompt tokens in prefill", ("sum by (replica) (penstock_replica_prefill_tokens" + own + ")",
                                               "{{replica}}")),
            lines("Sequences that the engine has beside the gateways'",
                  ("max by (replica) (penstock_engine_running" + own + ") - sum by (replica) (penstock_replica_running" + own
                   + ")", "{{replica}}"), text="Above 0 for long: other clients use the engine."),
            lines("Held back by the engine", ("max by (replica) (penstock_engine_waiting" + own + ")", "{{replica}}")),
            lines("Age of the engine's report", ("max by (replica) (penstock_engine_report_age_seconds" + own + ")",
                                                 "{{replica}}"), unit="s"),
        ]),
        ("Latency", [
            lines("First token", (quantile(0.5, "penstock_time_to_first_token_seconds_bucket" + own, "pool"), "{{pool}} p50"),
                  (quantile(0.99, "penstock_time_to_first_token_seconds_bucket" + own, "pool"), "{{pool}} p99"), unit="s"),
            lines("Between tokens, mean of a request",
                  (quantile(0.5, "penstock_inter_token_seconds_bucket" + own, "pool"), "{{pool}} p50"),
                  (quantile(0.99, "penstock_inter_token_seconds_bucket" + own, "pool"), "{{pool}} p99"), unit="s"),
            lines("Longest gap, p99", (quantile(0.99, "penstock_inter_token_max_seconds_bucket" + own, "pool"), "{{pool}}"),
                  unit="s"),
        ]),
        ("Faults", [
            lines("Tries that failed", (rate("penstock_requeues_total" + own, "pool, fault") + " > 0", "{{pool}} {{fault}}"),
                  (rate("penstock_recalls_total" + own, "pool, reason") + " > 0", "{{pool}} taken back: {{reason}}"),
                  unit="reqps"),
            lines("Broken streams", (rate("penstock_streams_broken_total" + own, "pool"), "{{pool}} stayed broken"),
                  (rate("penstock_continuations_total" + own, "pool, outcome"), "{{pool}} {{outcome}}"), unit="reqps"),
            lines("Ejections", ("sum by (pool) (increase(penstock_ejections_total" + own + "[$__rate_interval]))",
                                "{{pool}} out"),
                  ("sum by (pool) (increase(penstock_readmissions_total" + own + "[$__rate_interval]))", "{{pool}} back"),
                  ("sum by (pool) (increase(penstock_ejections_spared_total" + own + "[$__rate_interval]))",
                   "{{pool}} spared")),
            lines("Questions to engines that failed", (rate("penstock_probes_failed_total" + own, "pool"), "{{pool}} probes"),
                  (rate("penstock_scrapes_failed_total" + own, "pool"), "{{pool}} scrapes"),
                  (rate("penstock_model_mismatches_total" + own, "pool"), "{{pool}} wrong model")),
            lines("Orders to sleep or wake", (rate("penstock_rest_orders_total" + own, "pool, order, outcome"),
                                              "{{pool}} {{order}} {{outcome}}")),
        ]),
    ]


def scale():
    own = '{@, pool=~"$pool"}'
    return "Scale", "How many replicas are needed, why, and who asks", [JOB, POOL], [
        ("Replicas", [
            lines("Needed and in service", ("max by (pool) (penstock_desired_replicas" + own + ")", "{{pool}} needed"),
                  ("max by (pool) (penstock_pool_ready_replicas" + own + ")", "{{pool}} in service")),
            states("Why this number", ("max by (pool, reason) (penstock_desired_reason" + own + ")", "{{pool}} {{reason}}"),
                   text="Reasons: docs/operations/troubleshooting.md."),
            states("State", ("max by (pool, state) (penstock_pool_state" + own + ") == 1", "{{pool}} {{state}}")),
            lines("Replicas with work", (rate('penstock_replica_seconds_total{@, pool=~"$pool", use="busy"}', "pool"),
                                         "{{pool}} busy"),
                  (rate('penstock_replica_seconds_total{@, pool=~"$pool", use="idle"}', "pool"), "{{pool}} idle"), stack=True),
        ]),
        ("Demand", [
            lines("Waiting requests that may go to the pool", ("sum by (pool) (penstock_pool_waiting" + own + ")",
                                                               "{{pool}}"),
                  text="A request that may go to several pools counts for each."),
            lines("Waiting tokens", ("max by (pool) (penstock_pool_queued_tokens" + own + ")", "{{pool}}")),
            lines("Running requests", ("max by (pool) (penstock_pool_in_flight" + own + ")", "{{pool}}")),
        ]),
        ("Scaler", [
            lines("Calls of KEDA", (rate("penstock_scaler_calls_total{@}", "method, code"), "{{method}} {{code}}"),
                  unit="reqps"),
            lines("Answers that the trigger's bounds changed", (rate("penstock_scaler_clamped_total" + own, "pool"),
                                                                "{{pool}}"), unit="reqps"),
            lines("Other gateways", ("max by (instance, state) (penstock_scale_peers{@})", "{{instance}} {{state}}")),
        ]),
        ("Starts", [
            lines("Cold start", ("max by (pool) (penstock_cold_start_seconds" + own + ")", "{{pool}}"), unit="s"),
            lines("Wake", ("max by (pool) (penstock_wake_seconds" + own + ")", "{{pool}}"), unit="s"),
            lines("Replicas that came and went",
                  ("sum by (pool, change) (increase(penstock_replica_changes_total" + own + "[$__rate_interval]))",
                   "{{pool}} {{change}}"),
                  ("sum by (pool) (increase(penstock_pools_emptied_total" + own + "[$__rate_interval]))", "{{pool}} emptied")),
            lines("Discovery that failed", (rate("penstock_source_failures_total" + own, "pool"), "{{pool}}")),
        ]),
    ]


def request():
    own = '{@, tenant=~"$tenant", class=~"$class", model=~"$model"}'
    tempo, loki = ({"type": kind, "uid": f"${{{kind}}}"} for kind in ("tempo", "loki"))
    trace = {"datasource": tempo, "queryType": "traceql", "query": '{ span.penstock.request_id = "$request_id" }', "limit": 20}
    log = {"datasource": loki, "expr": '{job=~".+"} |= "$request_id" | json | request_id = "$request_id"'}
    spread = lambda metric: [(quantile(share, metric + own, "class"), "{{class}} p" + str(share)[2:].ljust(2, "0"))
                             for share in (0.5, 0.95, 0.99)]
    return "One request", "Where its time went, and whether that was usual", [
        source("tempo", "tempo"), source("loki", "loki"), JOB, TENANT, CLASS, MODEL, ID,
    ], [
        ("This request", [
            panel("table", "Its trace", trace, text="`penstock explain ID` says more, without traces."),
            panel("logs", "Its log lines", log, options={"wrapLogMessage": True, "showTime": True}),
        ]),
        ("What is usual for its tenant, class and model", [
            lines("Wait in the queue", *spread("penstock_queue_wait_seconds_bucket"), unit="s"),
            lines("First token", *spread("penstock_time_to_first_token_seconds_bucket"), unit="s"),
            lines("Between tokens, mean of a request", *spread("penstock_inter_token_seconds_bucket"), unit="s"),
            lines("Longest gap", *spread("penstock_inter_token_max_seconds_bucket"), unit="s"),
            lines("Whole request", *spread("penstock_request_duration_seconds_bucket"), unit="s"),
            lines("Ends", (rate("penstock_requests_total" + own, "outcome, reason"), "{{outcome}} {{reason}}"), unit="reqps"),
        ]),
        ("Spread", [
            heatmap("Wait in the queue", "penstock_queue_wait_seconds_bucket" + own),
            heatmap("First token", "penstock_time_to_first_token_seconds_bucket" + own),
            heatmap("Whole request", "penstock_request_duration_seconds_bucket" + own),
        ]),
        ("Before and beside", [
            lines("Waiting requests", ("sum by (tenant, class) (penstock_queue_depth" + own + ")", "{{tenant}} {{class}}")),
            lines("How prompts were counted", (rate('penstock_prompt_counts_total{@, model=~"$model"}', "source"),
                                               "{{source}}"), unit="reqps", stack=True),
            lines("Served by another model", (rate('penstock_fallbacks_total{@, from=~"$model"}', "from, to, reason"),
                                              "{{from}} by {{to}}: {{reason}}"), unit="reqps"),
        ]),
    ]


def laid_out(rows):
    """The panels with their places: each row of panels below its heading, as wide as fits."""
    panels, top = [], 0
    for title, row in rows:
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}})
        top += 1
        # At most three beside each other, and no line with a gap.
        wide = [3] * (len(row) // 3) + [len(row) % 3] * (len(row) % 3 > 0)
        if len(row) % 3 == 1 and len(row) > 3:
            wide[-2:] = [2, 2]
        left = list(row)
        for count in wide:
            line, left = left[:count], left[count:]
            height = max(one["gridPos"]["h"] for one in line)
            for number, one in enumerate(line):
                one["gridPos"] = {"x": number * WIDTH // count, "y": top, "w": WIDTH // count, "h": height}
                panels.append(one)
            top += height
    return [{"id": number, **one} for number, one in enumerate(panels, 1)]


def dashboard(name, make):
    title, text, variables, rows = make()
    return {
        "uid": f"penstock-{name}", "title": f"Penstock / {title}", "description": text, "tags": ["penstock"],
        "schemaVersion": 39, "editable": True, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "graphTooltip": 1, "templating": {"list": [SOURCE, *variables]},
        "links": [{"type": "dashboards", "title": "Penstock", "tags": ["penstock"], "keepTime": True, "includeVars": True,
                   "asDropdown": False, "icon": "external link", "targetBlank": False, "tooltip": "", "url": ""}],
        "annotations": {"list": [{
            "name": "Configuration loaded", "datasource": PROMETHEUS, "enable": True, "iconColor": "blue",
            "expr": f"changes(penstock_config_generation{{{GATEWAYS}}}[1m]) > 0", "titleFormat": "configuration loaded",
        }]},
        "panels": laid_out(rows),
    }


DASHBOARDS = {"overview": overview, "tenants": tenants, "pools": pools, "scale": scale, "request": request}


def made():
    """Each file with its text."""
    return {HERE / f"{name}.json": json.dumps(dashboard(name, make), indent=1) + "\n" for name, make in DASHBOARDS.items()}


def main():
    stale = [path for path, text in made().items() if not path.exists() or path.read_text() != text]
    if sys.argv[1:] == ["--write"]:
        for path in stale:
            path.write_text(made()[path])
        return 0
    print("\n".join(f"{path.name} is not current; run: python3 config/grafana/make.py --write" for path in stale)
          or "the dashboards are current")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
