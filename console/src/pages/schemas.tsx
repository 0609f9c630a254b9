// Shows schemas with the difference between versions and what a mode says of it; registers a new version after a check.
import { useEffect, useState } from "preact/hooks";
import { post, useAsk } from "../api";
import { pretty, safe } from "../format";
import { LongList, type Column } from "../list";
import { go, href, place, setQuery } from "../router";
import { Action, Bar, Dialog, Failure, Field, Loading, note, Text, useFields } from "../ui";

interface Row {
  name: string;
  version: number;
  type: string;
  compatibility: string;
}

const COLUMNS: Column<Row>[] = [
  { name: "name", title: "Subject", width: "minmax(180px, 3fr)", show: (row) => <a href={href("/schemas", { topic: row.name })}><Text of={row.name} /></a> },
  { name: "version", title: "Newest", width: "90px", number: true, show: (row) => row.version },
  { name: "type", title: "Type", width: "120px", show: (row) => row.type },
  { name: "compatibility", title: "Compatibility", width: "140px", show: (row) => row.compatibility },
];

export function Schemas() {
  const { query } = place.value;
  const [making, setMaking] = useState(false);
  if (query.topic) return <Versions key={query.topic} name={query.topic} />;
  return (
    <>
      <Bar title="Schemas" filter="Part of a name" label="Filter schemas">
        <button type="button" onClick={() => setMaking(true)}>
          New schema …
        </button>
      </Bar>
      <LongList path="/api/schemas" fields={{ filter: query.filter }} columns={COLUMNS} label="Schemas" empty="No schema is registered, as far as you may see." />
      {making ? <NewVersion close={() => setMaking(false)} /> : null}
    </>
  );
}

// Lines of two texts: kept, only in the first (-), only in the second (+). The longest common subsequence, of at most LINES lines.
const LINES = 2000;
export function difference(before: string, after: string): [string, string][] {
  const a = before.split("\n").slice(0, LINES);
  const b = after.split("\n").slice(0, LINES);
  const width = b.length + 1;
  const table = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--) table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1]! + 1 : Math.max(table[(i + 1) * width + j]!, table[i * width + j + 1]!);
  const found: [string, string][] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push([" ", a[i]!]);
      i++;
      j++;
    } else if (j >= b.length || (i < a.length && table[(i + 1) * width + j]! >= table[i * width + j + 1]!)) found.push(["-", a[i++]!]);
    else found.push(["+", b[j++]!]);
  }
  return found;
}

interface Version {
  version: number;
  type: string;
  definition: string;
}

function Versions({ name }: { name: string }) {
  const { query } = place.value;
  const { data, error, again } = useAsk<{ compatibility: string; versions: Version[] }>("/api/schema", { topic: name });
  const [making, setMaking] = useState(false);
  if (!data) return <Loading error={error} />;
  const chosen = data.versions.find((one) => String(one.version) === query.version) ?? data.versions.at(-1)!;
  const older = data.versions.filter((one) => one.version < chosen.version);
  const base = older.find((one) => String(one.version) === query.since) ?? older.at(-1) ?? null;
  const text = (definition: string) => pretty(definition) ?? definition;
  const pick = (name: string, now: Version | null, from: Version[]) => (
    <select value={String(now?.version ?? "")} onChange={(event) => setQuery({ [name]: event.currentTarget.value })}>
      {from.map((one) => (
        <option key={one.version} value={String(one.version)}>
          {one.version}
        </option>
      ))}
    </select>
  );
  return (
    <>
      <Bar title={<>Schema <Text of={name} /></>}>
        <label>Version {pick("version", chosen, data.versions)}</label>
        {base ? <label>compared with {pick("since", base, older)}</label> : null}
        <span class="quiet">{`${chosen.type}, ${data.compatibility}`}</span>
        <button type="button" onClick={() => setMaking(true)}>
          New version …
        </button>
      </Bar>
      {base ? <Verdict key={`${base.version} ${chosen.version}`} topic={name} mode={data.compatibility} base={base} chosen={chosen} /> : null}
      <pre class="value diff" tabindex={0} aria-label="Definition">
        {difference(text((base ?? chosen).definition), text(chosen.definition)).map(([sign, line], number) => (
          <span key={number} class={sign === "+" ? "good" : sign === "-" ? "bad" : ""}>{`${sign} ${safe(line)}\n`}</span>
        ))}
      </pre>
      {making ? (
        <NewVersion
          topic={name}
          start={data.versions.at(-1)!}
          close={() => {
            setMaking(false);
            again();
          }}
        />
      ) : null}
    </>
  );
}

function Reasons({ of, mode }: { of: string[]; mode: string }) {
  if (of.length === 0) return <p class="good">{mode === "none" ? "Nothing is compared: the mode is none." : `It may follow: ${mode} compatible.`}</p>;
  return (
    <>
      <p class="bad">{`It may not follow: not ${mode} compatible.`}</p>
      <ul>
        {of.map((reason) => (
          <li key={reason}>{safe(reason)}</li>
        ))}
      </ul>
    </>
  );
}

// Whether one version could follow another by the mode of the subject.
function Verdict({ topic, mode, base, chosen }: { topic: string; mode: string; base: Version; chosen: Version }) {
  const [reasons, setReasons] = useState<string[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    post<{ reasons: string[] }>("/api/schema/compare", { topic, type: chosen.type, definition: chosen.definition, version: base.version }).then((answer) => setReasons(answer.reasons), setError);
  }, []);
  return (
    <div role="status">
      <Failure error={error} />
      {reasons ? <Reasons of={reasons} mode={mode} /> : null}
    </div>
  );
}

function NewVersion({ topic, start, close }: { topic?: string; start?: Version; close: () => void }) {
  const { fields, bind } = useFields({ name: topic ?? "", type: start?.type ?? "json", mode: "", definition: start ? (pretty(start.definition) ?? start.definition) : "" });
  const [checked, setChecked] = useState<{ sign: string; reasons: string[] } | null>(null);
  const ask = { topic: fields.name, type: fields.type, definition: fields.definition, compatibility: fields.mode };
  const sign = JSON.stringify(ask);
  const known = checked?.sign === sign ? checked : null;
  const ready = !topic || known?.reasons.length === 0;
  return (
    <Dialog title={topic ? `New version of ${safe(topic)}` : "New schema"} close={close}>
      <Action
        label={ready ? "Register" : "Check"}
        run={async () => {
          if (!ready) {
            setChecked({ sign, reasons: (await post<{ reasons: string[] }>("/api/schema/compare", ask)).reasons });
            return;
          }
          const made = await post<{ version: number }>("/api/schema/register", ask);
          note(`version ${made.version} of ${fields.name} was registered`);
          close();
          go(href("/schemas", { topic: fields.name }));
        }}
      >
        {topic ? null : (
          <Field label="Subject" hint="Usually the name of a topic">
            <input required autofocus spellcheck={false} {...bind("name")} />
          </Field>
        )}
        <Field label="Type">
          <select {...bind("type")}>
            <option value="json">JSON Schema</option>
            <option value="avro">Avro</option>
            <option value="protobuf">Protobuf</option>
          </select>
        </Field>
        <Field label="Compatibility">
          <select {...bind("mode")}>
            <option value="">{topic ? "as it is" : "backward"}</option>
            <option value="backward">backward: the new one reads what the old one wrote</option>
            <option value="forward">forward: the old one reads what the new one writes</option>
            <option value="full">full: both</option>
            <option value="none">none</option>
          </select>
        </Field>
        <Field label="Definition">
          <textarea required rows={12} spellcheck={false} {...bind("definition")} />
        </Field>
        <div role="status">{known ? <Reasons of={known.reasons} mode={fields.mode || "the subject's mode"} /> : null}</div>
      </Action>
    </Dialog>
  );
}
