// Shows dead letters, freezes a selection of them on the server, and sends them again with a result for each.
import { useEffect, useState } from "preact/hooks";
import { get, post, useAsk, type Shown, type Whole } from "../api";
import { brief, bytes, count, safe, time } from "../format";
import { LongList, Table, type Column } from "../list";
import { href, place, setQuery } from "../router";
import { Action, Bar, Dialog, Field, Loading, note, Text, TypedName } from "../ui";

interface Letter {
  id: string;
  partition: number;
  offset: number;
  cause: string;
  error: string;
  attempts: number;
  last_us: Whole;
  key: Shown | null;
  value: Shown | null;
  origin: string;
}
interface Counted {
  count: number;
  whole: boolean;
  causes: [string, number][];
  ages: [string, number][];
}
interface Selection extends Counted {
  selection: string;
  bytes: number;
}
interface Result {
  id: string;
  error: string | null;
}

export function Dead() {
  const { topic } = place.value.query;
  return topic ? <OfTopic key={topic} topic={topic} /> : <All />;
}

const TOPICS: Column<{ topic: string; letters: number }>[] = [
  { name: "topic", title: "Topic", width: "minmax(150px, 3fr)", show: (row) => <a href={href("/dead", { topic: row.topic })}><Text of={row.topic} /></a> },
  { name: "letters", title: "Open dead letters", width: "160px", number: true, show: (row) => count(row.letters) },
];

function All() {
  return (
    <>
      <Bar title="Dead letters" filter="Part of a topic's name" label="Filter topics" />
      <LongList path="/api/dead" fields={{ filter: place.value.query.filter }} columns={TOPICS} label="Dead letters" empty="There are none that you may see. A message whose attempts are used up, or that its schema refuses, comes here." />
    </>
  );
}

function OfTopic({ topic }: { topic: string }) {
  const { query } = place.value;
  const [turn, setTurn] = useState(0);
  const [marked, setMarked] = useState<Set<string>>(new Set());
  const [open, setOpen] = useState("");
  const filter = { cause: query.cause ?? "", text: query.text ?? "" };
  const { data, error } = useAsk<{ rows: Letter[]; after: string; total: number }>("/api/dead/letters", { topic, ...filter, after: query.after, limit: 50 }, turn);
  useEffect(() => setMarked(new Set()), [turn, query.after, query.cause, query.text]);
  const done = () => {
    setOpen("");
    setTurn((before) => before + 1);
  };
  return (
    <>
      <div class="bar">
        <h1>
          Dead letters of <Text of={topic} />
        </h1>
        <input type="search" aria-label="Filter dead letters" placeholder="Part of cause, error or publisher" value={filter.text} onInput={(event) => setQuery({ text: event.currentTarget.value, after: "" })} />
        <button type="button" disabled={!data?.rows.length} onClick={() => setOpen("select")}>
          {marked.size ? `Send ${marked.size} again …` : "Send all that match again …"}
        </button>
        <button type="button" class="danger" disabled={!data?.total} onClick={() => setOpen("purge")}>
          Purge
        </button>
      </div>
      {!data ? (
        <Loading error={error} />
      ) : (
        <>
          <p class="quiet">
            {count(data.total)} open in all{query.cause ? `, cause “${safe(query.cause)}” only ` : " "}
            {query.cause ? <a href={href("/dead", { topic })}>Show every cause</a> : null}
          </p>
          <Causes topic={topic} {...filter} turn={turn} />
          {data.rows.length === 0 ? <p>None.</p> : <Letters topic={topic} rows={data.rows} marked={marked} setMarked={setMarked} edit={(id) => setOpen(`edit ${id}`)} />}
          {data.rows.length >= 50 ? <a href={href("/dead", { ...query, after: data.after })}>Further ones →</a> : null}
        </>
      )}
      {open === "select" ? <Replay topic={topic} ask={{ topic, ...filter, ids: [...marked] }} close={done} /> : null}
      {open.startsWith("edit ") ? <Edit topic={topic} id={open.slice(5)} close={done} /> : null}
      {open === "purge" ? (
        <TypedName
          title="Purge dead letters"
          name={topic}
          label="Purge"
          what={`All ${count(data?.total ?? 0)} open dead letters are put aside. They cannot be replayed afterwards.`}
          close={() => setOpen("")}
          run={async (typed) => {
            const answer = await post<{ purged: number }>("/api/dead/purge", { topic, typed });
            note(`${answer.purged} dead letters were put aside`);
            done();
          }}
        />
      ) : null}
    </>
  );
}

function Letters({ topic, rows, marked, setMarked, edit }: { topic: string; rows: Letter[]; marked: Set<string>; setMarked: (next: Set<string>) => void; edit: (id: string) => void }) {
  const mark = (id: string, on: boolean) => {
    const next = new Set(marked);
    if (on) next.add(id);
    else next.delete(id);
    setMarked(next);
  };
  const columns: Column<Letter>[] = [
    { name: "mark", title: <input type="checkbox" aria-label="Mark all on this page" checked={marked.size === rows.length} onChange={(event) => setMarked(new Set(event.currentTarget.checked ? rows.map((row) => row.id) : []))} />, show: (row) => <input type="checkbox" aria-label={`Mark ${row.id}`} checked={marked.has(row.id)} onChange={(event) => mark(row.id, event.currentTarget.checked)} /> },
    { name: "id", title: "Letter", class: "nowrap", show: (row) => (row.offset >= 0 ? <a href={href("/message", { topic, partition: row.partition, offset: row.offset })}>{row.id}</a> : row.id) },
    { name: "died", title: "Died", class: "nowrap", show: (row) => (Number(row.last_us) ? time(row.last_us) : "") },
    { name: "cause", title: "Cause", class: "words", show: (row) => <><a href={href("/dead", { topic, cause: row.cause })}><Text of={row.cause || "(none)"} /></a>{row.error ? <div class="quiet break">{safe(row.error)}</div> : null}</> },
    { name: "attempts", title: "Attempts", number: true, show: (row) => row.attempts },
    { name: "value", title: "Value", class: "mono clip", show: (row) => (row.value ? <bdi>{brief(row.value)}</bdi> : "null") },
    { name: "origin", title: "From", show: (row) => safe(row.origin) },
    { name: "edit", title: "Change", show: (row) => <button type="button" aria-label={`Edit ${row.id}`} onClick={() => edit(row.id)}>Edit …</button> },
  ];
  return <Table label="Dead letters" rows={rows} columns={columns} id={(row) => row.id} />;
}

// Causes and ages of all that match: what to look at first.
function Causes({ topic, cause, text, turn }: { topic: string; cause: string; text: string; turn: number }) {
  const { data } = useAsk<Counted>("/api/dead/figures", { topic, cause, text }, turn);
  if (!data?.count) return null;
  return (
    <div class="columns bars-row">
      <Bars title="By cause" rows={data.causes} link={(name) => href("/dead", { topic, cause: name === "(no cause)" ? "" : name })} />
      <Bars title="By age" rows={data.ages} />
      {data.whole ? null : <p class="quiet">{`Of the first ${count(data.count)}.`}</p>}
    </div>
  );
}

function Bars({ title, rows, link }: { title: string; rows: [string, number][]; link?: (name: string) => string }) {
  const most = Math.max(1, ...rows.map(([, number]) => number));
  return (
    <table class="bars">
      <caption>{title}</caption>
      <tbody>
        {rows.map(([name, number]) => (
          <tr key={name}>
            <th scope="row">{link ? <a href={link(name)}>{safe(name)}</a> : safe(name)}</th>
            <td>
              <span class="measure" style={{ width: `${(number / most) * 150}px` }} aria-hidden="true" /> {count(number)}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

const RESULTS: Column<Result>[] = [
  { name: "id", title: "Letter", class: "nowrap", show: (result) => result.id },
  { name: "result", title: "Result", class: "break", show: (result) => (result.error === null ? <span class="good">sent</span> : <span class="bad">{safe(result.error)}</span>) },
];

function Replay({ topic, ask, close }: { topic: string; ask: object; close: () => void }) {
  const [chosen, setChosen] = useState<Selection | null>(null);
  const [error, setError] = useState<any>(null);
  const [to, setTo] = useState("");
  const [perSecond, setPerSecond] = useState("100");
  const [results, setResults] = useState<Result[] | null>(null);
  useEffect(() => {
    post<Selection>("/api/dead/select", ask).then(setChosen, setError);
  }, []);
  const refused = (results ?? []).filter((result) => result.error !== null);
  return (
    <Dialog title="Send dead letters again" close={close}>
      {!chosen ? (
        <Loading error={error} />
      ) : (
        <Action
          label={results ? "Done" : `Send ${count(chosen.count)} again`}
          run={async () => {
            if (results) return close();
            const all: Result[] = [];
            setResults([]);
            const step = Math.max(1, Math.min(100, Number(perSecond) || 100));
            for (let skip = 0; skip < chosen.count; skip += step) {
              const answer = await post<{ results: Result[] }>("/api/dead/replay", { topic, selection: chosen.selection, skip, limit: step, to });
              all.push(...answer.results);
              setResults([...all]);
              if (skip + step < chosen.count) await new Promise((wake) => setTimeout(wake, 1000));
            }
          }}
        >
          <p role="status">
            {`The selection is frozen: ${count(chosen.count)} letters, ${bytes(chosen.bytes)}.`}
            {chosen.whole ? "" : " There are more than one selection holds."}
          </p>
          <div class="columns">
            <Bars title="By cause" rows={chosen.causes} />
            <Bars title="By age" rows={chosen.ages} />
          </div>
          <Field label="To" hint="Empty: back to the topic they died in, each exactly once. Another topic gets copies; the letters stay open.">
            <input value={to} spellcheck={false} placeholder={safe(topic)} onInput={(event) => setTo(event.currentTarget.value)} />
          </Field>
          <Field label="Letters a second">
            <input type="number" min="1" max="100" value={perSecond} onInput={(event) => setPerSecond(event.currentTarget.value)} />
          </Field>
          {results ? (
            <div role="status">
              <p>{`${count(results.length - refused.length)} of ${count(chosen.count)} were sent, ${count(refused.length)} refused.`}</p>
              <Table label="Results" rows={[...refused, ...(results.length <= 1000 ? results.filter((result) => result.error === null) : [])]} columns={RESULTS} id={(result) => result.id} />
            </div>
          ) : null}
        </Action>
      )}
    </Dialog>
  );
}

function Edit({ topic, id, close }: { topic: string; id: string; close: () => void }) {
  const [letter, setLetter] = useState<Letter | null>(null);
  const [error, setError] = useState<any>(null);
  const [value, setValue] = useState("");
  useEffect(() => {
    get<Letter>("/api/dead/letter", { topic, id }).then((found) => {
      setLetter(found);
      setValue(found.value?.text ?? found.value?.base64 ?? "");
    }, setError);
  }, []);
  const binary = letter?.value?.text === undefined && letter?.value !== null;
  return (
    <Dialog title={`Dead letter ${id}`} close={close}>
      {!letter ? (
        <Loading error={error} />
      ) : (
        <Action
          label="Send again with this value"
          disabled={letter.value?.cut}
          run={async () => {
            await post("/api/dead/edit", { topic, id, ...(binary ? { value_base64: value } : { value }) });
            note(`letter ${id} was published again`);
            close();
          }}
        >
          <p>
            <Text of={letter.cause} /> <span class="quiet">{safe(letter.error)}</span>
          </p>
          {letter.value?.cut ? <p class="bad">The value is too long to be edited here.</p> : null}
          <Field label={binary ? "Value, base64" : "Value"}>
            <textarea rows={10} spellcheck={false} value={value} onInput={(event) => setValue(event.currentTarget.value)} />
          </Field>
        </Action>
      )}
    </Dialog>
  );
}
