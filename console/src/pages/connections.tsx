// Shows doors and who is connected; ends a connection.
import { post, useLive } from "../api";
import { bytes, count } from "../format";
import { LongList, Table, type Column } from "../list";
import { place } from "../router";
import { Bar, Sure, Text } from "../ui";

interface Connection {
  door: string;
  peer: string;
  who: string | null;
}
interface Door {
  door: string;
  address: string;
  connections: number;
  bytes_in: number;
  bytes_out: number;
  refused: number;
  cut: number;
}

const CONNECTIONS: Column<Connection>[] = [
  { name: "who", title: "Who", width: "minmax(140px, 2fr)", show: (row) => (row.who ? <Text of={row.who} /> : <span class="quiet">not logged in</span>) },
  { name: "door", title: "Door", width: "140px", show: (row) => row.door },
  { name: "peer", title: "Address", width: "minmax(160px, 1fr)", show: (row) => <span class="mono">{row.peer}</span> },
  { name: "end", title: "End it", width: "130px", show: (row) => <Sure label="End" really="Really end it" run={() => post("/api/connection/kick", { door: row.door, peer: row.peer })} done={`the connection of ${row.peer} was ended`} /> },
];

const DOORS: Column<Door>[] = [
  { name: "door", title: "Door", show: (row) => row.door },
  { name: "address", title: "Address", class: "mono", show: (row) => row.address },
  { name: "connections", title: "Connections", number: true, show: (row) => count(row.connections) },
  { name: "in", title: "Received", number: true, show: (row) => bytes(row.bytes_in) },
  { name: "out", title: "Sent", number: true, show: (row) => bytes(row.bytes_out) },
  { name: "refused", title: "Refused", number: true, show: (row) => count(row.refused) },
  { name: "cut", title: "Cut", number: true, show: (row) => count(row.cut) },
];

export function Connections() {
  const { query } = place.value;
  const { data } = useLive<{ doors: Door[] }>("/api/connections", { limit: 1 });
  return (
    <>
      <Bar title="Connections" filter="Part of a name, door or address" label="Filter connections" />
      {data ? <Table label="Doors" rows={data.doors} columns={DOORS} id={(row) => row.door} /> : null}
      <LongList path="/api/connections" fields={{ filter: query.filter }} columns={CONNECTIONS} label="Connections" empty="Nobody is connected." />
    </>
  );
}
