"""Alerts and dashboard of deploy/: promtool accepts them, each alert has a test, and they name only metrics that there are."""

import json
import re
import runpy
import subprocess
from collections.abc import Iterable
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from quintet.cell_cluster import node_families
from tests.admin.prometheus import scraping
from tests.client.server import running
from tests.tools import tool

DEPLOY = Path(__file__).parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "quintet.rules.yaml"
RULE_TESTS = DEPLOY / "prometheus" / "quintet.rules.test.yaml"
DASHBOARD = DEPLOY / "grafana" / "quintet.json"
METRIC = re.compile(r"\b(?:quintet|process)_[a-z_]+\b")


def expressions() -> list[str]:
    """Every PromQL expression of the alerts and the dashboard."""
    alerts = re.findall(r"^ +expr: (.+)$", RULES.read_text(), re.MULTILINE)
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return alerts + [target["expr"] for panel in panels for target in panel.get("targets", [])]


def unknown(expressions: Iterable[str], names: set[str]) -> set[str]:
    return {name for each in expressions for name in METRIC.findall(each)} - names


def test_alerts_and_dashboard_name_only_metrics_that_there_are() -> None:
    with running() as server:
        text = httpx2.get(f"http://127.0.0.1:{server.ports['admin']}/metrics", trust_env=False, timeout=60).text
    names = {
        sample for family in text_string_to_metric_families(text) for sample in samples_of(family.name, family.type)
    }
    names |= {family.name for family in node_families(())}  # of nodes of a cell
    assert unknown(expressions(), names) == set()
    assert unknown(["rate(quintet_publshed_total[5m])"], names) == {"quintet_publshed_total"}  # the control


def samples_of(name: str, kind: str) -> tuple[str, ...]:
    return {"counter": (f"{name}_total",), "histogram": (f"{name}_bucket", f"{name}_sum", f"{name}_count")}.get(
        kind, (name,)
    )


def test_each_alert_is_seen_to_fire() -> None:
    alerts = re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)
    fired = re.findall(r"^ +alertname: (\w+)\n +exp_alerts:\n +- exp_labels", RULE_TESTS.read_text(), re.MULTILINE)
    assert sorted(alerts) == sorted(fired)


def test_promtool_accepts_the_rules_and_their_tests(tmp_path: Path) -> None:
    promtool = tool("promtool")
    assert subprocess.run([promtool, "check", "rules", RULES], capture_output=True, check=False).returncode == 0
    done = subprocess.run([promtool, "test", "rules", RULE_TESTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # The control: a rule that never fires is caught by its test.
    for file in (RULES, RULE_TESTS):
        (tmp_path / file.name).write_text(
            file.read_text().replace("quintet_log_damaged_ranges > 0", "quintet_log_damaged_ranges > 9")
        )
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / RULE_TESTS.name], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "QuintetDataDamaged" in done.stdout + done.stderr


def test_a_real_prometheus_loads_the_alerts_and_answers_the_panels(tmp_path: Path) -> None:
    with running() as server, scraping(tmp_path, f"127.0.0.1:{server.ports['admin']}", rules=RULES) as prometheus:

        def evaluated() -> list[dict[str, str]]:
            groups = prometheus.get("/rules")["data"]["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            return rules if all(rule["health"] != "unknown" for rule in rules) else []

        assert prometheus.value_of("up == 1") == 1
        rules = prometheus.until(evaluated)
        assert {rule["health"] for rule in rules} == {"ok"}
        assert {rule["name"] for rule in rules} == set(
            re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)
        )
        for expression in expressions():
            expression = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")  # as Grafana does
            assert prometheus.get("/query", query=expression)["status"] == "success", expression
        assert prometheus.get("/query", query="rate(quintet_topics[")["status"] == "error"  # the control


def test_the_dashboard_is_the_one_its_table_makes() -> None:
    made = runpy.run_path(str(DEPLOY / "grafana" / "dashboard.py"))
    assert made["dashboard"]() == DASHBOARD.read_text(), "run python deploy/grafana/dashboard.py"
