// Shows what the broker holds beside topics: caches, queues, peers, delayed messages, open and stuck transactions.
import { useState } from "preact/hooks";
import { post, useLive, type Shown, type Whole } from "../api";
import { brief, bytes, count, duration, safe, time } from "../format";
import { LongList, Table, type Column } from "../list";
import { href, place } from "../router";
import { Bar, Facts, Lines, Sure, Text, Topic } from "../ui";

type Figures = Record<string, number>;

// Sums of the whole broker, for those who may see them.
function Sums({ path, names, size = [] }: { path: string; names: [string, string][]; size?: string[] }) {
  const { data } = useLive<{ figures?: Figures }>(path, { limit: 1 });
  const figures = data?.figures;
  if (!figures) return null;
  return <Facts of={names.map(([name, title]) => [title, size.includes(name) ? bytes(figures[name] ?? 0) : count(figures[name] ?? 0)])} />;
}

// -- caches ----------------------------------------------------------------------------------------------------------

interface Cache {
  topic: string;
  tenant: string;
  namespace: string;
  name: string;
  keys: number;
  bytes: number;
  expiring: number;
  version: string;
  kept: boolean;
}
interface Entry {
  key: Shown;
  value: Shown;
  version: string;
  expires_us: Whole;
}

const CACHES: Column<Cache>[] = [
  { name: "name", title: "Cache", width: "minmax(140px, 2fr)", show: (row) => <a href={href("/caches", { topic: row.topic })}><Text of={row.name} /></a> },
  { name: "tenant", title: "Tenant", width: "minmax(100px, 1fr)", show: (row) => <Text of={row.tenant} /> },
  { name: "namespace", title: "Namespace", width: "minmax(100px, 1fr)", show: (row) => <Text of={row.namespace} /> },
  { name: "keys", title: "Keys", width: "100px", number: true, show: (row) => count(row.keys) },
  { name: "expiring", title: "That expire", width: "100px", number: true, show: (row) => count(row.expiring) },
  { name: "bytes", title: "Memory", width: "100px", number: true, show: (row) => bytes(row.bytes) },
  { name: "kept", title: "Evicts", width: "90px", show: (row) => (row.kept ? "never" : "yes") },
];

const ENTRIES: Column<Entry>[] = [
  { name: "key", title: "Key", width: "minmax(160px, 2fr)", show: (row) => <bdi class="mono">{brief(row.key)}</bdi> },
  { name: "value", title: "Value", width: "minmax(200px, 3fr)", show: (row) => <bdi class="mono">{brief(row.value)}</bdi> },
  { name: "size", title: "Size", width: "90px", number: true, show: (row) => bytes(row.value.size) },
  { name: "expires", title: "Expires", width: "180px", show: (row) => (Number(row.expires_us) ? time(row.expires_us) : <span class="quiet">never</span>) },
  { name: "version", title: "Version", width: "150px", number: true, show: (row) => row.version },
];

export function Caches() {
  const { query } = place.value;
  if (query.topic)
    return (
      <>
        <Bar title={<>Cache <Topic name={query.topic} /></>} filter="How a key begins" label="Filter keys" />
        <LongList path="/api/cache" fields={{ topic: query.topic, prefix: query.filter }} columns={ENTRIES} label="Keys" empty="No key begins so." />
      </>
    );
  return (
    <>
      <Bar title="Caches" filter="Part of a name" label="Filter caches" />
      <Sums path="/api/caches" size={["bytes", "bytes_max"]} names={[["hits", "Hits"], ["misses", "Misses"], ["evicted", "Evicted"], ["expired", "Expired"], ["bytes", "Memory"], ["bytes_max", "Limit"]]} />
      <LongList path="/api/caches" fields={{ filter: query.filter }} columns={CACHES} label="Caches" empty="There is no cache that you may see. The first put by the Felix door makes one." />
    </>
  );
}

// -- queues ----------------------------------------------------------------------------------------------------------

interface Queue {
  topic: string;
  id: string;
  flags: string[];
  members: number;
  waiting: number | null;
  rotating: boolean;
  who: string[];
}

const QUEUES: Column<Queue>[] = [
  { name: "topic", title: "Queue", width: "minmax(160px, 2fr)", show: (row) => <Topic name={row.topic} /> },
  { name: "id", title: "Number", width: "100px", show: (row) => <span class="mono">{row.id}</span> },
  { name: "flags", title: "Kind", width: "minmax(140px, 1fr)", show: (row) => row.flags.join(", ") || <span class="quiet">fan-out</span> },
  { name: "members", title: "Members", width: "90px", number: true, show: (row) => count(row.members) },
  { name: "who", title: "Who", width: "minmax(120px, 2fr)", show: (row) => <Lines of={row.who} /> },
  { name: "waiting", title: "Waiting", width: "100px", number: true, show: (row) => (row.waiting === null ? <span class="quiet">not kept</span> : count(row.waiting)) },
  { name: "key", title: "Key", width: "100px", show: (row) => (row.rotating ? "changing" : "set") },
];

export function Queues() {
  const { query } = place.value;
  return (
    <>
      <Bar title="Queues" filter="Part of a name, number or member" label="Filter queues" />
      <Sums path="/api/queues" names={[["rotations", "Keys rotated"], ["ended", "Members ended"], ["refused", "Requests refused"]]} />
      <LongList path="/api/queues" fields={{ filter: query.filter }} columns={QUEUES} label="Queues" empty="There is no queue that you may see. A CREATE by the Fast door makes one." />
    </>
  );
}

// -- peers -----------------------------------------------------------------------------------------------------------

interface Peer {
  name: string;
  owner: string;
  connected: boolean;
  waiting: number;
  registered_us: number;
  topic: string | null;
}

const PEERS: Column<Peer>[] = [
  { name: "name", title: "Peer", width: "minmax(140px, 2fr)", show: (row) => <Text of={row.name} /> },
  { name: "owner", title: "Owner", width: "minmax(120px, 1fr)", show: (row) => <Text of={row.owner} /> },
  { name: "state", title: "State", width: "110px", show: (row) => (row.connected ? <span class="good">connected</span> : <span class="quiet">away</span>) },
  { name: "waiting", title: "Waiting", width: "100px", number: true, show: (row) => count(row.waiting) },
  { name: "since", title: "Registered", width: "180px", show: (row) => time(row.registered_us) },
  { name: "mailbox", title: "Mailbox", width: "minmax(140px, 1fr)", show: (row) => (row.topic ? <Topic name={row.topic} /> : <span class="quiet">none yet</span>) },
];

export function Peers() {
  const { query } = place.value;
  const { data } = useLive<{ dropped?: Figures }>("/api/peers", { limit: 1 });
  const dropped = Object.entries(data?.dropped ?? {});
  return (
    <>
      <Bar title="Peers" filter="Part of a name or owner" label="Filter peers" />
      <Sums path="/api/peers" names={[["connected", "Connected"], ["sent", "Sent"], ["broadcasts", "Broadcasts"], ["dropped", "Dropped"]]} />
      {dropped.length ? <p class="quiet">{`Dropped: ${dropped.map(([why, number]) => `${count(number)} ${why.replaceAll("_", " ")}`).join(", ")}`}</p> : null}
      <LongList path="/api/peers" fields={{ filter: query.filter }} columns={PEERS} label="Peers" empty="No peer of yours is registered. A HELLO by the peerbus door registers one." />
    </>
  );
}

// -- delayed messages ------------------------------------------------------------------------------------------------

interface Delayed {
  handle: string;
  owner: string;
  topic: string;
  partition: number;
  due_us: Whole;
  key: Shown | null;
  bytes: number;
  origin: string;
}

export function DelayedMessages() {
  const { query } = place.value;
  const [turn, setTurn] = useState(0);
  const columns: Column<Delayed>[] = [
    { name: "due", title: "Due", width: "190px", show: (row) => time(row.due_us) },
    { name: "in", title: "In", width: "90px", number: true, show: (row) => duration(Math.max(Number(row.due_us) - Date.now() * 1000, 0)) },
    { name: "topic", title: "Topic", width: "minmax(140px, 2fr)", show: (row) => <Topic name={row.topic} /> },
    { name: "owner", title: "Owner", width: "minmax(100px, 1fr)", show: (row) => <Text of={row.owner} /> },
    { name: "key", title: "Key", width: "minmax(80px, 1fr)", show: (row) => (row.key ? <bdi class="mono">{brief(row.key)}</bdi> : <span class="quiet">none</span>) },
    { name: "bytes", title: "Size", width: "90px", number: true, show: (row) => bytes(row.bytes) },
    {
      name: "cancel",
      title: "Cancel it",
      width: "150px",
      show: (row) => <Sure label="Cancel" really="Really cancel it" run={() => post("/api/delayed/cancel", { topic: row.topic, handle: row.handle }).then(() => setTurn((before) => before + 1))} done={`the delayed message ${row.handle} was cancelled`} />,
    },
  ];
  return (
    <>
      <Bar title="Delayed messages" filter="Part of a topic, owner or handle" label="Filter delayed messages" />
      <Sums path="/api/delayed" size={["bytes"]} names={[["waiting", "Waiting"], ["bytes", "Memory"], ["delivered", "Delivered"], ["cancelled", "Cancelled"], ["without_topic", "Topic was deleted"]]} />
      <LongList path="/api/delayed" fields={{ filter: query.filter }} columns={columns} label="Delayed messages" empty="No message of yours waits for its time." turn={turn} />
    </>
  );
}

// -- transactions ----------------------------------------------------------------------------------------------------

interface Transaction {
  id: string;
  owner: string;
  name: string;
  state: string;
  age_seconds: number;
  left_seconds: number;
  messages: number;
  bytes: number;
  topics: string[];
  offsets: number;
  mine: boolean;
}
interface Stuck {
  number: number;
  owner: string;
  id: string;
  bytes: number;
  age_seconds: number;
  why: string;
}

const STUCK: Column<Stuck>[] = [
  { name: "number", title: "Intent", show: (row) => row.number },
  { name: "owner", title: "Owner", show: (row) => <Text of={row.owner || "the broker"} /> },
  { name: "id", title: "Transaction", class: "mono", show: (row) => safe(row.id) },
  { name: "age", title: "Age", number: true, show: (row) => duration(row.age_seconds * 1e6) },
  { name: "bytes", title: "Size", number: true, show: (row) => bytes(row.bytes) },
  { name: "why", title: "Waits because", class: "break", show: (row) => safe(row.why) },
];

export function Transactions() {
  const { query } = place.value;
  const [turn, setTurn] = useState(0);
  const { data } = useLive<{ stuck: Stuck[]; committed: number; aborted: number; total: number }>("/api/transactions", { limit: 1 });
  const columns: Column<Transaction>[] = [
    { name: "id", title: "Transaction", width: "minmax(160px, 2fr)", show: (row) => <span class="mono">{row.id}</span> },
    { name: "owner", title: "Owner", width: "minmax(90px, 1fr)", show: (row) => <Text of={row.owner} /> },
    { name: "name", title: "Producer", width: "minmax(90px, 1fr)", show: (row) => <Text of={row.name} /> },
    { name: "state", title: "State", width: "100px", show: (row) => <span class={row.state === "in doubt" ? "bad" : ""}>{row.state}</span> },
    { name: "age", title: "Age", width: "80px", number: true, show: (row) => duration(row.age_seconds * 1e6) },
    { name: "left", title: "Ends in", width: "80px", number: true, show: (row) => <span class={row.left_seconds < 10 ? "warn" : ""}>{duration(row.left_seconds * 1e6)}</span> },
    { name: "messages", title: "Messages", width: "90px", number: true, show: (row) => count(row.messages) },
    { name: "bytes", title: "Size", width: "80px", number: true, show: (row) => bytes(row.bytes) },
    { name: "topics", title: "Topics", width: "minmax(100px, 1fr)", show: (row) => <Lines of={row.topics} /> },
    {
      name: "abort",
      title: "Roll it back",
      width: "150px",
      show: (row) => (row.mine && row.state === "open" ? <Sure label="Roll back" really="Really roll back" run={() => post("/api/transaction/abort", { id: row.id }).then(() => setTurn((before) => before + 1))} done="the transaction was rolled back" /> : <span class="quiet">{row.mine ? "" : "its owner may"}</span>),
    },
  ];
  return (
    <>
      <Bar title="Transactions" filter="Part of an id, owner, producer or topic" label="Filter transactions" />
      {data ? <Facts of={[["Open", count(data.total)], ["Committed", count(data.committed)], ["Rolled back", count(data.aborted)], ["Stuck", <span class={data.stuck.length ? "bad" : ""}>{count(data.stuck.length)}</span>]]} /> : null}
      {data?.stuck.length ? (
        <section>
          <h2>Committed, and not yet visible everywhere</h2>
          <Table label="Stuck transactions" rows={data.stuck} columns={STUCK} id={(row) => row.number} />
        </section>
      ) : null}
      <LongList path="/api/transactions" fields={{ filter: query.filter }} columns={columns} label="Transactions" empty="No transaction of yours is open." turn={turn} />
    </>
  );
}
