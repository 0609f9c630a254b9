// Lists consumer groups and subscriptions with their lag.
import { duration, rate, safe } from "../format";
import { LongList, useSort, type Column } from "../list";
import { href, place } from "../router";
import { Bar, Lag, Text, Topic } from "../ui";

interface Row {
  kind: "group" | "subscription";
  topic: string;
  name: string;
  id: string;
  owner: string;
  state: string;
  members: number;
  door: string;
  in_flight: number;
  lag: number;
  rate: number;
  trend: number;
  behind_ms?: number | null;
}

const COLUMNS: Column<Row>[] = [
  { name: "name", title: "Reader", width: "minmax(140px, 2fr)", show: (row) => (row.kind === "group" ? <a href={href("/group", { topic: row.topic, group: row.name })}><Text of={row.name} /></a> : <Text of={row.name} />) },
  { name: "topic", title: "Topic", width: "minmax(140px, 2fr)", sort: true, show: (row) => <Topic name={row.topic} /> },
  { name: "kind", title: "Kind", width: "150px", show: (row) => (row.kind === "group" ? "group" : `subscription, ${safe(row.door)}`) },
  { name: "state", title: "State", width: "90px", show: (row) => row.state },
  { name: "members", title: "Members", width: "80px", number: true, show: (row) => row.members },
  { name: "rate", title: "Out/s", width: "80px", number: true, sort: true, show: (row) => rate(row.rate) },
  { name: "lag", title: "Lag", width: "100px", number: true, sort: true, show: (row) => <Lag lag={row.lag} trend={row.trend} /> },
  { name: "behind", title: "Behind", width: "80px", number: true, show: (row) => (row.behind_ms ? duration(row.behind_ms * 1000) : "") },
];

export function AllReaders() {
  const { query } = place.value;
  const order = useSort("lag");
  return (
    <>
      <Bar title="Groups and subscriptions" filter="Part of a name" label="Filter readers" />
      <LongList path="/api/readers" fields={{ filter: query.filter, sort: order.sort, down: order.down }} columns={COLUMNS} {...order} label="Groups and subscriptions" empty="No group and no subscription, as far as you may see them." />
    </>
  );
}
