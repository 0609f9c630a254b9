// Shows the nodes of a cell: who leads, how far each is, the last take-over; or that this node is alone.
import { useLive } from "../api";
import { ago, count, duration, safe } from "../format";
import { Table, type Column } from "../list";
import { Bar, Loading, Text } from "../ui";

interface KnownNode {
  name: string;
  address: string;
  up: boolean;
  error: string;
  clock_seconds: number;
  role: string;
  epoch: number;
  applied: number;
  lag_records: number;
  lag_seconds: number;
  version: string;
  certificate_expires_s: number;
  take_over_seconds: number;
  take_over_at_s: number;
}

interface Standing {
  replicated: boolean;
  role: string;
  node: string;
  epoch: number;
  leader: { name: string; host: string } | null;
  applied: number;
  lag_records: number;
  lag_seconds: number;
  weaknesses: string[];
  nodes: KnownNode[];
}

const NODES: Column<KnownNode>[] = [
  { name: "node", title: "Node", class: "nowrap", show: (one) => (one.name ? <Text of={one.name} /> : <span class="quiet">unknown</span>) },
  { name: "role", title: "Role", show: (one) => (one.up ? safe(one.role) : <span class="bad">{`does not answer${one.error ? `: ${safe(one.error)}` : ""}`}</span>) },
  { name: "epoch", title: "Epoch", number: true, show: (one) => count(one.epoch) },
  { name: "applied", title: "WAL offset", number: true, show: (one) => count(one.applied) },
  { name: "lag", title: "Lag", number: true, show: (one) => <span class={one.lag_seconds > 5 ? "warn" : ""}>{lag(one)}</span> },
  { name: "clock", title: "Clock", number: true, show: (one) => <span class={Math.abs(one.clock_seconds) > 0.5 ? "warn" : ""}>{`${one.clock_seconds < 0 ? "−" : "+"}${Math.abs(one.clock_seconds).toFixed(3)} s`}</span> },
  { name: "version", title: "Version", show: (one) => safe(one.version) },
  { name: "certificate", title: "Certificate", class: "nowrap", show: (one) => certificate(one.certificate_expires_s) },
  { name: "address", title: "Address", class: "mono nowrap", show: (one) => safe(one.address) },
];

function lag(of: { lag_records: number; lag_seconds: number }): string {
  return of.lag_records ? `${count(of.lag_records)} records, ${duration(of.lag_seconds * 1e6)}` : "none";
}

function certificate(expires: number) {
  if (!expires) return <span class="quiet">none</span>;
  const days = Math.floor((expires - Date.now() / 1000) / 86_400);
  return <span class={days < 0 ? "bad" : days < 30 ? "warn" : ""}>{days < 0 ? "expired" : `${count(days)} days`}</span>;
}

export function Cluster() {
  const { data, error } = useLive<Standing>("/api/cluster");
  if (!data) return <Loading error={error} />;
  return (
    <>
      <Bar title="Cluster" />
      {data.replicated ? <Node of={data} /> : <Alone />}
      {data.replicated ? <Table label="Nodes" rows={data.nodes} columns={NODES} id={(one) => one.address} empty="Nodes do not listen for each other here ([cluster] listen), so this one knows itself only." /> : null}
    </>
  );
}

function Alone() {
  return (
    <div class="card">
      <h2>One node, no replication</h2>
      <p>
        What is on this node's disk is the only copy. An acknowledged message survives a crash and a loss of power, and is lost with the disk. Make backups with <code>quintet backup create</code>.
      </p>
    </div>
  );
}

function Node({ of }: { of: Standing }) {
  const leader = of.leader ? safe(of.leader.host ? `${of.leader.name} at ${of.leader.host}` : of.leader.name) : "nobody, as far as this node knows";
  const last = of.nodes.filter((one) => one.take_over_at_s).sort((one, other) => other.take_over_at_s - one.take_over_at_s)[0];
  return (
    <div class="card">
      <dl class="facts">
        <Fact name="Node" value={safe(of.node)} />
        <Fact name="Role" value={safe(of.role)} />
        <Fact name="Leader" value={leader} />
        <Fact name="Epoch" value={count(of.epoch)} />
        <Fact name="Next offset of the WAL" value={count(of.applied)} />
        <Fact name="Lag" value={lag(of)} />
      </dl>
      <p class="quiet">
        {last ? `${safe(last.name)} took over ${ago(last.take_over_at_s)}, in ${duration(last.take_over_seconds * 1e6)}. ` : ""}Each take-over raises the epoch. The log has a line for each.
      </p>
      {of.weaknesses.map((text) => (
        <p key={text} class="warn">
          {safe(text)}
        </p>
      ))}
    </div>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}
