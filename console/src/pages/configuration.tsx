// Shows every option with its value and where that comes from.
import { useAsk, useLive } from "../api";
import { safe } from "../format";
import { LongList, type Column } from "../list";
import { href, place, setQuery } from "../router";
import { Bar, Facts, Text } from "../ui";

interface Option {
  key: string;
  value: string;
  default: string;
  source: string;
  kind: string;
  help: string;
  variable: string;
  reloads: boolean;
  waits: boolean;
}

const COLUMNS: Column<Option>[] = [
  { name: "key", title: "Option", width: "minmax(220px, 2fr)", show: (row) => <a href={href("/configuration", { ...place.value.query, key: row.key })}>{safe(row.key)}</a> },
  { name: "value", title: "Value", width: "minmax(160px, 2fr)", show: (row) => <span class={row.waits ? "warn" : ""}><Text of={row.value} /></span> },
  { name: "source", title: "Comes from", width: "minmax(180px, 2fr)", show: (row) => (row.source === "default" ? <span class="quiet">default</span> : <Text of={row.source} />) },
  { name: "taken", title: "A change is taken", width: "150px", show: (row) => (row.waits ? <b class="warn">waits for a restart</b> : row.reloads ? "by SIGHUP" : "by a restart") },
];

export function Configuration() {
  const { query } = place.value;
  const changed = query.changed === "true";
  const { data } = useLive<{ waits: number }>("/api/configuration", { limit: 1 });
  return (
    <>
      <Bar title="Configuration" filter="Part of an option, value or explanation" label="Filter options">
        <label class="check">
          <input type="checkbox" checked={changed} onChange={(event) => setQuery({ changed: event.currentTarget.checked })} /> only those that are set
        </label>
      </Bar>
      {data?.waits ? <p class="warn" role="status">{`${data.waits} options were changed in the files and wait for a restart.`}</p> : null}
      {query.key ? <One name={query.key} /> : null}
      <LongList path="/api/configuration" fields={{ filter: query.filter, changed }} columns={COLUMNS} label="Options" empty="No option has that in it." />
    </>
  );
}

function One({ name }: { name: string }) {
  const { data } = useAsk<{ rows: Option[] }>("/api/configuration", { filter: name, limit: 500 });
  const found = data?.rows.find((row) => row.key === name);
  if (!found) return data ? <p class="quiet">There is no such option.</p> : null;
  return (
    <section class="card" aria-label={safe(found.key)}>
      <div class="row">
        <h2>{safe(found.key)}</h2>
        <a href={href("/configuration", { ...place.value.query, key: "" })}>Close</a>
      </div>
      <p>{safe(found.help)}</p>
      <Facts
        of={[
          ["Value", <Text of={found.value} />],
          ["Comes from", <Text of={found.source} />],
          ["Default", found.default ? safe(found.default) : "none"],
          ["Type", found.kind],
          ["Variable", found.variable ? <span class="mono">{found.variable}</span> : "only in the file"],
        ]}
      />
    </section>
  );
}
