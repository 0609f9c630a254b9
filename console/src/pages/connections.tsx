// Shows doors and who is connected, what each moves and what waits for it; ends a connection.
import { post, useLive } from "../api";
import { bytes, count, duration, time } from "../format";
import { LongList, Table, useSort, type Column } from "../list";
import { place } from "../router";
import { Bar, Sure, Text } from "../ui";

interface Connection {
  id: number;
  door: string;
  peer: string;
  who: string | null;
  since_ms: number;
  seconds: number;
  idle_seconds: number;
  rate_in: number;
  rate_out: number;
  bytes_in: number;
  bytes_out: number;
  unsent_bytes: number;
  unanswered: number;
  paused: boolean;
  tls: string;
  cipher: string;
}
interface Door {
  door: string;
  address: string;
  connections: number;
  bytes_in: number;
  bytes_out: number;
  rate_in: number;
  rate_out: number;
  refused: number;
  cut: number;
}

function PerSecond({ of, all }: { of: number; all: number }) {
  return <span title={`${bytes(all)} in all`} class={of ? "" : "quiet"}>{`${bytes(of)}/s`}</span>;
}

function Backlog({ row }: { row: Connection }) {
  const words = `${bytes(row.unsent_bytes)} that the client has not taken, ${count(row.unanswered)} requests without an answer${row.paused ? "; it is not read from now" : ""}`;
  return (
    <span title={words} class={row.unsent_bytes > 1 << 20 || row.paused ? "lag warn" : row.unsent_bytes ? "" : "quiet"}>
      {bytes(row.unsent_bytes)}
    </span>
  );
}

const CONNECTIONS: Column<Connection>[] = [
  { name: "age", title: "No.", width: "52px", number: true, sort: true, show: (row) => row.id },
  { name: "who", title: "Who", width: "minmax(100px, 2fr)", sort: true, show: (row) => (row.who ? <Text of={row.who} /> : <span class="quiet">not logged in</span>) },
  { name: "door", title: "Door", width: "88px", sort: true, show: (row) => row.door },
  { name: "peer", title: "Address", width: "minmax(150px, 1fr)", sort: true, show: (row) => <span class="mono">{row.peer}</span> },
  { name: "since", title: "For", width: "58px", show: (row) => <span title={time(row.since_ms * 1000)}>{duration(row.seconds * 1e6)}</span> },
  { name: "idle", title: "Idle", width: "58px", sort: true, show: (row) => (row.idle_seconds < 3 ? "active" : <span class="quiet">{duration(row.idle_seconds * 1e6)}</span>) },
  { name: "in", title: "In", width: "92px", number: true, sort: true, show: (row) => <PerSecond of={row.rate_in} all={row.bytes_in} /> },
  { name: "out", title: "Out", width: "92px", number: true, sort: true, show: (row) => <PerSecond of={row.rate_out} all={row.bytes_out} /> },
  { name: "unsent", title: "Backlog", width: "84px", number: true, sort: true, show: (row) => <Backlog row={row} /> },
  { name: "tls", title: "TLS", width: "46px", show: (row) => (row.tls ? <span title={row.cipher || "the QUIC library does not say with which cipher"}>{row.tls.replace("TLSv", "")}</span> : <span class="quiet">none</span>) },
  { name: "end", title: "End it", width: "112px", show: (row) => <Sure label="End" really="Really end it" run={() => post("/api/connection/kick", { door: row.door, peer: row.peer })} done={`the connection of ${row.peer} was ended`} /> },
];

const DOORS: Column<Door>[] = [
  { name: "door", title: "Door", show: (row) => row.door },
  { name: "address", title: "Address", class: "mono", show: (row) => row.address },
  { name: "connections", title: "Connections", number: true, show: (row) => count(row.connections) },
  { name: "in", title: "In", number: true, show: (row) => <PerSecond of={row.rate_in} all={row.bytes_in} /> },
  { name: "received", title: "Received", number: true, show: (row) => bytes(row.bytes_in) },
  { name: "out", title: "Out", number: true, show: (row) => <PerSecond of={row.rate_out} all={row.bytes_out} /> },
  { name: "sent", title: "Sent", number: true, show: (row) => bytes(row.bytes_out) },
  { name: "refused", title: "Refused", number: true, show: (row) => count(row.refused) },
  { name: "cut", title: "Cut", number: true, show: (row) => count(row.cut) },
];

export function Connections() {
  const { query } = place.value;
  const order = useSort("who");
  const { data } = useLive<{ doors: Door[] }>("/api/connections", { limit: 1 });
  return (
    <>
      <Bar title="Connections" filter="Name, door, address or number" label="Filter connections" />
      {data ? <Table label="Doors" rows={data.doors} columns={DOORS} id={(row) => row.door} /> : null}
      <LongList
        path="/api/connections"
        fields={{ filter: query.filter, sort: order.sort, down: order.down }}
        columns={CONNECTIONS}
        {...order}
        label="Connections"
        empty="Nobody is connected."
      />
    </>
  );
}
