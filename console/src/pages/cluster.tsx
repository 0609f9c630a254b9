// Shows which part this node has in its cell, or that it is alone.
import { useLive } from "../api";
import { count, duration, safe } from "../format";
import { Bar, Loading } from "../ui";

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
}

export function Cluster() {
  const { data, error } = useLive<Standing>("/api/cluster");
  if (!data) return <Loading error={error} />;
  return (
    <>
      <Bar title="Cluster" />
      {data.replicated ? <Node of={data} /> : <Alone />}
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
  return (
    <div class="card">
      <dl class="facts">
        <Fact name="Node" value={safe(of.node)} />
        <Fact name="Role" value={safe(of.role)} />
        <Fact name="Leader" value={leader} />
        <Fact name="Epoch" value={count(of.epoch)} />
        <Fact name="Next offset of the WAL" value={count(of.applied)} />
        <Fact name="Lag" value={of.lag_records ? `${count(of.lag_records)} records, ${duration(of.lag_seconds * 1e6)}` : "none"} />
      </dl>
      <p class="quiet">Each take-over raises the epoch. The log has a line for each.</p>
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
