"""Draws the map: who publishes to which topic, and who reads it. Nodes and edges only; where they lie is the browser's business."""

from typing import Final

import msgspec

from quintet.broker.slices import Steps
from quintet.broker.topics.catalog import Topic
from quintet.console.call import Call, Operation
from quintet.console.pages.topics import producers, readers
from quintet.console.paging import arranged, folded, has
from quintet.console.sampler import TopicFigures

TOPICS_MAX: Final = 60  # drawn: the busiest first
OF_TOPIC_MAX: Final = 12  # producers, and readers, drawn of one topic


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    """`filter` is a part of a topic's name, or of a producer's or reader's; `quiet`: also topics without any traffic."""

    filter: str = ""
    quiet: bool = False


def _chosen(call: Call, ask: Ask) -> Steps[tuple[list[Topic], int]]:
    """The topics to be drawn, and how many would be."""
    wanted = folded(ask.filter)
    figures = call.console.sampler.topics
    found: list[tuple[tuple[bool, float, int], Topic]] = []
    for topic in call.broker.topics.all():
        yield
        if not call.may_see(topic.name):
            continue
        known = figures.get(topic.name, TopicFigures())
        groups = call.broker.groups.of_topic(topic.name)
        used = bool(known.producers or groups or topic.subscriptions)
        if not used and not ask.quiet and not wanted:
            continue
        words = (topic.name, *known.producers, *groups, *(s.owner for s in topic.subscriptions))
        if has(wanted, words):
            found.append(((used, known.rate, known.published), topic))
    found = yield from arranged(found, lambda pair: (pair[0], pair[1].name), down=True)
    return [topic for _, topic in found[:TOPICS_MAX]], len(found)


async def _map(call: Call, ask: Ask) -> object:
    topics, total = await call.sliced(_chosen(call, ask))
    nodes: dict[str, dict[str, object]] = {}
    edges: list[dict[str, object]] = []
    names = {topic.name for topic in topics}
    broker, figures = call.broker, call.console.sampler.topics
    for topic in topics:
        known = figures.get(topic.name, TopicFigures())
        place = f"t:{topic.name}"
        reads = call.may("read", topic.name)
        dead = broker.dead.counts(topic.raw) if reads else 0
        kind = "dead" if broker.dead.is_dead(topic.name) else "topic"
        nodes[place] = {"kind": kind, "label": topic.name, "rate": round(known.rate, 1), "dead": dead}
        wrote = producers(known)
        for one in wrote[:OF_TOPIC_MAX]:
            source = f"p:{one['origin']}"
            nodes.setdefault(source, {"kind": "producer", "label": one["name"], "door": one["door"]})
            edges.append({"from": source, "to": place, "rate": one["rate"], "lag": 0, "seen": one["seen"]})
        read = readers(call, topic) if reads else []
        for one in read[:OF_TOPIC_MAX]:
            reader = f"{one['kind'][:1]}:{topic.name}\n{one['id']}" if one["kind"] == "group" else f"s:{one['id']}"
            nodes[reader] = {"kind": one["kind"], "label": one["name"], "state": one["state"], "lag": one["lag"],
                             "trend": one["trend"], "topic": topic.name, "door": one.get("door", "")}  # fmt: skip
            edges.append({"from": place, "to": reader, "rate": one["rate"], "lag": one["lag"]})
        more = max(len(wrote) - OF_TOPIC_MAX, 0) + max(len(read) - OF_TOPIC_MAX, 0)
        if more:
            nodes[place]["more"] = more
        letters = broker.dead.name_for(topic.raw).decode()
        if letters in names and dead:
            edges.append({"from": place, "to": f"t:{letters}", "rate": 0, "lag": 0, "dead": dead})
    for status in call.console.surroundings.pipelines(call.owner, call.administers):
        report = status.report
        place = f"l:{status.owner}\n{report.name}"
        nodes[place] = {"kind": "pipeline", "label": report.name, "state": report.state, "lag": report.lag,
                        "rate": round(report.rows_per_second, 1)}  # fmt: skip
        reads_from = [topic.name for topic in topics if report.name in broker.groups.of_topic(topic.name)]
        rate = round(report.rows_per_second, 1)
        edges += [{"from": f"t:{name}", "to": place, "rate": rate, "lag": report.lag} for name in reads_from]
    return {"nodes": nodes, "edges": edges, "total": total, "shown": len(topics)}


OPERATIONS: Final = (Operation(method="GET", path="/api/map", right="known", asks=Ask, answer=_map, live=True),)
