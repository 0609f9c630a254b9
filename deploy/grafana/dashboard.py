"""Writes deploy/grafana/quintet.json, the Grafana dashboard, from the table of panels below.

    python deploy/grafana/dashboard.py        after a change here; tests/test_deploy.py compares

A panel is a row: title, unit, queries with legends. Positions follow from the order, three panels a line.
"""

import json
from pathlib import Path

COLUMNS, WIDTH, HEIGHT = 3, 8, 8
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WHERE = 'instance=~"$instance"'

Query = tuple[str, str]  # expression with {w} for the instances chosen, legend
Panel = tuple[str, str, list[Query]]  # title, unit of Grafana, queries

SECTIONS: list[tuple[str, list[Panel]]] = [
    (
        "Traffic",
        [
            ("Messages accepted", "cps", [("sum by (instance) (rate(quintet_published_messages_total{{{w}}}[$__rate_interval]))", "{{instance}}")]),
            ("Messages accepted, busiest topics", "cps", [("topk(10, sum by (topic) (rate(quintet_topic_published_messages_total{{{w}}}[$__rate_interval])))", "{{topic}}")]),
            ("Messages delivered", "cps", [("sum by (instance) (rate(quintet_delivered_messages_total{{{w}}}[$__rate_interval]))", "{{instance}}")]),
            ("Bytes in, by door", "Bps", [("sum by (door) (rate(quintet_received_bytes_total{{{w}}}[$__rate_interval]))", "{{door}}")]),
            ("Bytes out, by door", "Bps", [("sum by (door) (rate(quintet_sent_bytes_total{{{w}}}[$__rate_interval]))", "{{door}}")]),
            ("Connections, by door", "short", [("sum by (door) (quintet_connections{{{w}}})", "{{door}}")]),
        ],
    ),
    (
        "Consumers",
        [
            ("Lag of groups, messages", "short", [("topk(10, quintet_group_lag_messages{{{w}}})", "{{group}} on {{topic}}")]),
            ("Lag of groups, age of the oldest", "s", [("topk(10, quintet_group_lag_seconds{{{w}}})", "{{group}} on {{topic}}")]),
            ("In flight", "short", [("quintet_in_flight_messages{{{w}}}", "{{instance}}")]),
            ("Redeliveries and dead letters", "cps", [
                ("rate(quintet_redelivery_rounds_total{{{w}}}[$__rate_interval])", "redelivered"),
                ("rate(quintet_dead_lettered_messages_total{{{w}}}[$__rate_interval])", "dead letters"),
            ]),
            ("Rebalances and fenced commits", "cps", [
                ("rate(quintet_group_rebalances_total{{{w}}}[$__rate_interval])", "rebalances"),
                ("rate(quintet_group_fenced_total{{{w}}}[$__rate_interval])", "fenced"),
            ]),
            ("Transactions", "cps", [
                ("rate(quintet_transactions_committed_total{{{w}}}[$__rate_interval])", "committed"),
                ("rate(quintet_transactions_aborted_total{{{w}}}[$__rate_interval])", "rolled back"),
            ]),
        ],
    ),
    (
        "Log and disk",
        [
            ("Free on disk", "bytes", [("quintet_disk_free_bytes{{{w}}}", "{{instance}}")]),
            ("Largest topics", "bytes", [("topk(10, quintet_topic_bytes{{{w}}})", "{{topic}}")]),
            ("Syncs", "cps", [("rate(quintet_log_fsyncs_total{{{w}}}[$__rate_interval])", "{{instance}}")]),
            ("Waiting for the disk", "bytes", [("quintet_log_unsynced_bytes{{{w}}}", "{{instance}}")]),
            ("Appends refused", "cps", [("rate(quintet_log_refused_appends_total{{{w}}}[$__rate_interval])", "{{instance}}")]),
            ("Damaged ranges", "short", [("quintet_log_damaged_ranges{{{w}}}", "{{instance}}")]),
        ],
    ),
    (
        "Latency",
        [
            ("Requests by door, 99 of 100 within", "s", [("histogram_quantile(0.99, sum by (door, le) (rate(quintet_request_seconds_bucket{{{w}}}[$__rate_interval])))", "{{door}}")]),
            ("Requests by operation, slowest ten", "s", [("topk(10, histogram_quantile(0.99, sum by (door, operation, le) (rate(quintet_request_seconds_bucket{{{w}}}[$__rate_interval]))))", "{{door}} {{operation}}")]),
            ("From append to durable", "s", [
                ("histogram_quantile(0.5, sum by (instance, le) (rate(quintet_append_durable_seconds_bucket{{{w}}}[$__rate_interval])))", "half, {{instance}}"),
                ("histogram_quantile(0.99, sum by (instance, le) (rate(quintet_append_durable_seconds_bucket{{{w}}}[$__rate_interval])))", "99 of 100, {{instance}}"),
            ]),
            ("Syncs of the disk, 99 of 100 within", "s", [("histogram_quantile(0.99, sum by (instance, le) (rate(quintet_disk_sync_seconds_bucket{{{w}}}[$__rate_interval])))", "{{instance}}")]),
            ("Age of pushed messages, 99 of 100 within", "s", [("histogram_quantile(0.99, sum by (instance, le) (rate(quintet_delivery_age_seconds_bucket{{{w}}}[$__rate_interval])))", "{{instance}}")]),
            ("Turns of the loop, 99 of 100 within", "s", [("histogram_quantile(0.99, sum by (instance, le) (rate(quintet_loop_turn_seconds_bucket{{{w}}}[$__rate_interval])))", "{{instance}}")]),
        ],
    ),
    (
        "The process",
        [
            ("Processor", "percentunit", [("rate(process_cpu_seconds_total{{{w}}}[$__rate_interval])", "{{instance}}")]),
            ("Memory", "bytes", [("process_resident_memory_bytes{{{w}}}", "{{instance}}")]),
            ("Turns of the loop above 5 ms", "cps", [(
                'sum by (instance) (rate(quintet_loop_turn_seconds_bucket{{le="+Inf", {w}}}[$__rate_interval]))'
                ' - sum by (instance) (rate(quintet_loop_turn_seconds_bucket{{le="0.005", {w}}}[$__rate_interval]))', "{{instance}}")]),
            ("Open files", "short", [("process_open_fds{{{w}}}", "{{instance}}")]),
            ("Refused logins, by door", "cps", [("sum by (door) (rate(quintet_auth_failures_total{{{w}}}[$__rate_interval]))", "{{door}}")]),
            ("Days until certificates expire", "d", [("(quintet_certificate_expires_timestamp_seconds{{{w}}} - time()) / 86400", "{{door}} {{instance}}")]),
        ],
    ),
]  # fmt: skip


def panels() -> list[dict[str, object]]:
    """All panels with their places; a line of its own for the title of each section."""
    found: list[dict[str, object]] = []
    y = 0
    for section, rows in SECTIONS:
        found.append(
            {
                "type": "row",
                "title": section,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
            }
        )
        y += 1
        for number, (title, unit, queries) in enumerate(rows):
            found.append(
                {
                    "type": "timeseries",
                    "title": title,
                    "datasource": DATA_SOURCE,
                    "gridPos": {"x": number % COLUMNS * WIDTH, "y": y + number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
                    "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                    "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
                    "targets": [
                        {"refId": chr(ord("A") + each), "datasource": DATA_SOURCE, "expr": query.format(w=WHERE), "legendFormat": legend}
                        for each, (query, legend) in enumerate(queries)
                    ],
                }
            )  # fmt: skip
        y += -(-len(rows) // COLUMNS) * HEIGHT
    return [{"id": number, **panel} for number, panel in enumerate(found, 1)]


def dashboard() -> str:
    """The file's text."""
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "instance", "type": "query", "label": "Broker", "datasource": DATA_SOURCE, "refresh": 2, "multi": True,
            "includeAll": True, "query": {"query": "label_values(quintet_build_info, instance)", "refId": "instance"},
        },
    ]  # fmt: skip
    made = {
        "uid": "quintet",
        "title": "Quintet",
        "schemaVersion": 39,
        "tags": ["quintet"],
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels(),
    }
    return json.dumps(made, indent=1) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("quintet.json").write_text(dashboard(), encoding="utf-8")
