// Shows the pipelines that report to the broker, and lets one stop.
import { post, useLive } from "../api";
import { count, duration, rate, safe } from "../format";
import { Table, type Column } from "../list";
import { Bar, Loading, Sure, Text } from "../ui";

interface Pipeline {
  name: string;
  owner: string;
  kind: string;
  state: string;
  detail: string;
  rows_in: number;
  rows_out: number;
  rows_per_second: number;
  batch_ms: number;
  lag: number;
  restarts: number;
  heard_seconds: number;
  stopping: boolean;
}

const COLUMNS: Column<Pipeline>[] = [
  { name: "name", title: "Name", show: (one) => <><Text of={one.name} /><div class="quiet">{safe(one.owner)}</div></> },
  { name: "kind", title: "Kind", show: (one) => safe(one.kind) },
  { name: "state", title: "State", show: (one) => <><span class={one.state === "failed" ? "bad" : ""}>{one.state}</span><div class="quiet break">{safe(one.detail)}</div></> },
  { name: "rate", title: "Rows/s", number: true, show: (one) => rate(one.rows_per_second) },
  { name: "in", title: "Read", number: true, show: (one) => count(one.rows_in) },
  { name: "out", title: "Written", number: true, show: (one) => count(one.rows_out) },
  { name: "batch", title: "Batch", number: true, show: (one) => duration(one.batch_ms * 1000) },
  { name: "lag", title: "Lag", number: true, show: (one) => count(one.lag) },
  { name: "restarts", title: "Restarts", number: true, show: (one) => count(one.restarts) },
  { name: "heard", title: "Heard", show: (one) => (one.heard_seconds < 10 ? "now" : `${duration(one.heard_seconds * 1e6)} ago`) },
  { name: "stop", title: "Stop it", show: (one) => (one.stopping ? "stopping" : <Sure label="Stop" really="Really stop it" run={() => post("/api/pipeline/stop", { name: one.name })} done={`${one.name} stops with its next report`} />) },
];

export function Pipelines() {
  const { data, error } = useLive<{ rows: Pipeline[] }>("/api/pipelines");
  if (!data) return <Loading error={error} />;
  return (
    <>
      <Bar title="Pipelines" />
      <Table label="Pipelines" rows={data.rows} columns={COLUMNS} id={(one) => `${one.owner} ${one.name}`} empty={<>No pipeline has reported within a day. <code>quintet pipeline list</code> names those that come with Quintet, <code>quintet pipeline run</code> starts one.</>} />
    </>
  );
}
