// Lists topics, any number of them.
import { useState } from "preact/hooks";
import { post } from "../api";
import { bytes, count, rate } from "../format";
import { LongList, useSort, type Column } from "../list";
import { go, href, place } from "../router";
import { Action, Bar, Dialog, Field, Lag, note, retention, Topic, useFields } from "../ui";

interface Row {
  name: string;
  partitions: number;
  durability: string;
  retention_us: number;
  retention_bytes: number;
  compact: boolean;
  records: number;
  bytes: number;
  rate: number;
  groups: number;
  subscriptions: number;
  lag: number;
}

const COLUMNS: Column<Row>[] = [
  { name: "name", title: "Topic", width: "minmax(180px, 3fr)", sort: true, show: (row) => <Topic name={row.name} /> },
  { name: "rate", title: "In/s", width: "80px", number: true, sort: true, show: (row) => rate(row.rate) },
  { name: "records", title: "Messages", width: "110px", number: true, sort: true, show: (row) => count(row.records) },
  { name: "bytes", title: "Size", width: "90px", number: true, sort: true, show: (row) => bytes(row.bytes) },
  { name: "partitions", title: "Parts", width: "70px", number: true, sort: true, show: (row) => row.partitions },
  { name: "readers", title: "Readers", width: "80px", number: true, show: (row) => row.groups + row.subscriptions },
  { name: "lag", title: "Lag", width: "100px", number: true, sort: true, show: (row) => <Lag lag={row.lag} /> },
  { name: "keeps", title: "Keeps", width: "110px", show: (row) => (row.compact ? "compacted" : retention(row.retention_us, row.retention_bytes)) },
  { name: "durability", title: "Durability", width: "90px", show: (row) => row.durability },
];

export function Topics() {
  const { query } = place.value;
  const order = useSort("name");
  const [making, setMaking] = useState(false);
  return (
    <>
      <Bar title="Topics" filter="Part of a name" label="Filter topics">
        <button type="button" onClick={() => setMaking(true)}>
          New topic
        </button>
      </Bar>
      <LongList
        path="/api/topics"
        fields={{ filter: query.filter, sort: order.sort, down: order.down }}
        columns={COLUMNS}
        {...order}
        label="Topics"
        empty={query.filter ? "No topic has that in its name." : "There are no topics yet. The first message makes one."}
      />
      {making ? <Create close={() => setMaking(false)} /> : null}
    </>
  );
}

function Create({ close }: { close: () => void }) {
  const { fields, bind } = useFields({ topic: "", partitions: "", durability: "", hours: "" });
  const { topic, partitions, durability, hours } = fields;
  return (
    <Dialog title="New topic" close={close}>
      <Action
        label="Create"
        run={async () => {
          const made = await post<{ new: boolean }>("/api/topic/create", {
            topic,
            partitions: Number(partitions) || 0,
            durability,
            retention_ms: Math.round((Number(hours) || 0) * 3_600_000),
          });
          note(made.new ? `topic ${topic} was made` : `topic ${topic} was there already`);
          close();
          go(href("/topic", { topic }));
        }}
      >
        <Field label="Name">
          <input required autofocus spellcheck={false} {...bind("topic")} />
        </Field>
        <Field label="Partitions" hint="Empty: as configured">
          <input type="number" min="1" max="1000" {...bind("partitions")} />
        </Field>
        <Field label="Durability">
          <select {...bind("durability")}>
            <option value="">as configured</option>
            <option value="fsync">fsync: acknowledged means on disk</option>
            <option value="interval">interval: synced from time to time</option>
            <option value="os">os: the system writes when it likes</option>
          </select>
        </Field>
        <Field label="Keep for, hours" hint="Empty: as configured">
          <input type="number" min="0" step="any" {...bind("hours")} />
        </Field>
      </Action>
    </Dialog>
  );
}
