// Parts that pages share: text, states, dialogs, plots, long lists.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import uPlot from "uplot";
import type { Refusal } from "./api";
import { href, place, setQuery } from "./router";
import { count, duration, rate, safe } from "./format";

export function Text({ of }: { of: string }) {
  return <bdi>{safe(of)}</bdi>;
}

export function Topic({ name }: { name: string }) {
  return (
    <a href={href("/topic", { topic: name })}>
      <Text of={name} />
    </a>
  );
}

export function Failure({ error }: { error: Refusal | Error | null }) {
  if (!error) return null;
  return (
    <div class="failure" role="alert">
      <strong>{safe(error.message)}</strong>
      {"hint" in error && error.hint ? <div>{safe(error.hint)}</div> : null}
    </div>
  );
}

export function Loading({ error }: { error: Refusal | null }) {
  return error ? <Failure error={error} /> : <p class="quiet">Loading …</p>;
}

export function Lag({ lag, trend }: { lag: number; trend?: number }) {
  const level = lag === 0 ? "good" : lag > 10_000 || (trend ?? 0) > 100 ? "bad" : lag > 100 ? "warn" : "fine";
  const arrow = !trend || Math.abs(trend) < 0.5 ? "" : trend > 0 ? " ▲" : " ▼";
  const words = arrow ? `${count(lag)} behind, ${trend! > 0 ? "growing" : "shrinking"} by ${rate(Math.abs(trend!))} a second` : undefined;
  return (
    <span class={`lag ${level}`} title={words}>
      {count(lag)}
      {arrow}
    </span>
  );
}

export function Facts({ of }: { of: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function retention(us: number, size: number): string {
  const parts = [us ? duration(us) : "", size ? `${count(size)} B` : ""].filter(Boolean);
  return parts.length ? parts.join(", ") : "all";
}

export function Lines({ of }: { of: string[] }) {
  return <>{safe(of.join(", "))}</>;
}

// The head of a page: its title, a filter that is in the address, and what else belongs there.
export function Bar({ title, filter, label, children }: { title: ComponentChildren; filter?: string; label?: string; children?: ComponentChildren }) {
  return (
    <div class="bar">
      <h1>{title}</h1>
      {filter ? <input type="search" aria-label={label ?? filter} placeholder={filter} maxLength={1000} value={place.value.query.filter ?? ""} onInput={(event) => setQuery({ filter: event.currentTarget.value })} /> : null}
      {children}
    </div>
  );
}

// -- dialogs ---------------------------------------------------------------------------------------------------------

export function Dialog({ title, close, children }: { title: string; close: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => ref.current?.showModal(), []);
  return (
    <dialog ref={ref} aria-label={title} onClose={close} onCancel={close}>
      <header>
        <h2>{title}</h2>
        <button type="button" class="plain" aria-label="Close" onClick={close}>
          ✕
        </button>
      </header>
      {children}
    </dialog>
  );
}

// A form that runs something and says what was refused.
export function Action({ label, run, children, danger, disabled }: { label: string; run: () => Promise<void>; children?: ComponentChildren; danger?: boolean; disabled?: boolean }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  return (
    <form
      class="form"
      onSubmit={async (event) => {
        event.preventDefault();
        setBusy(true);
        setError(null);
        try {
          await run();
        } catch (failure) {
          setError(failure as Error);
        }
        setBusy(false);
      }}
    >
      {children}
      <Failure error={error} />
      <div class="row end">
        <button type="submit" class={danger ? "danger" : "primary"} disabled={busy || disabled}>
          {label}
        </button>
      </div>
    </form>
  );
}

export function Field({ label, children, hint }: { label: string; children: ComponentChildren; hint?: string }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {hint ? <small>{hint}</small> : null}
    </label>
  );
}

// The texts of a form: `bind` joins a field to an input.
export function useFields<T extends Record<string, string>>(start: T) {
  const [fields, set] = useState(start);
  const change = (part: Partial<T>) => set((before) => ({ ...before, ...part }));
  const bind = (name: keyof T & string) => ({
    value: fields[name],
    onInput: (event: { currentTarget: { value: string } }) => change({ [name]: event.currentTarget.value } as Partial<T>),
  });
  return { fields, change, bind };
}

export function words(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}

// A change that is made by a second press: the first one asks.
export function Sure({ label, really, run, done }: { label: string; really: string; run: () => Promise<unknown>; done: string }) {
  const [sure, setSure] = useState(false);
  return (
    <button
      type="button"
      class={sure ? "danger" : "plain"}
      onBlur={() => setSure(false)}
      onClick={() => {
        if (!sure) return setSure(true);
        setSure(false);
        run().then(
          () => note(done),
          (error) => note(error.message),
        );
      }}
    >
      {sure ? really : label}
    </button>
  );
}

// A change that cannot be undone: the name has to be typed.
export function TypedName({ title, name, label, what, run, close }: { title: string; name: string; label: string; what: ComponentChildren; run: (typed: string) => Promise<void>; close: () => void }) {
  const [typed, setTyped] = useState("");
  return (
    <Dialog title={title} close={close}>
      <Action label={label} danger disabled={typed !== name} run={() => run(typed)}>
        <p>{what}</p>
        <Field label="Type the name to confirm" hint={safe(name)}>
          <input value={typed} autocomplete="off" spellcheck={false} onInput={(event) => setTyped(event.currentTarget.value)} autofocus />
        </Field>
      </Action>
    </Dialog>
  );
}

// A short message at the foot of the page.
const notes = signal<{ id: number; text: string }[]>([]);
let lastNote = 0;
export function note(text: string): void {
  const id = ++lastNote;
  notes.value = [...notes.value, { id, text }];
  setTimeout(() => (notes.value = notes.value.filter((one) => one.id !== id)), 6000);
}
export function Notes() {
  return (
    <div class="notes" role="status">
      {notes.value.map((one) => (
        <div key={one.id}>{safe(one.text)}</div>
      ))}
    </div>
  );
}

// -- plots -----------------------------------------------------------------------------------------------------------

export interface Points {
  times: number[];
  values: number[];
}

export const dark = signal(matchMedia("(prefers-color-scheme: dark)").matches);

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function Plot({ title, points, unit, height = 150 }: { title: string; points: Points; unit: string; height?: number }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shade = dark.value;
  useLayoutEffect(() => {
    const at = box.current!;
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const made = new uPlot(
      {
        width: Math.max(at.clientWidth, 200),
        height,
        cursor: { y: false },
        legend: { show: false },
        scales: { y: { range: (_plot, _low, high) => [0, Math.max(high * 1.1, 1)] } },
        axes: [{ ...axis, values: (_plot, ticks) => ticks.map((tick) => new Date(tick * 1000).toTimeString().slice(0, 8)), space: 70 }, { ...axis, size: 48, values: (_plot, ticks) => ticks.map((tick) => rate(tick)) }],
        series: [{}, { stroke: colour("--accent"), fill: colour("--accent-soft"), width: 1.5, points: { show: false } }],
      },
      [points.times, points.values],
      at,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: Math.max(at.clientWidth, 200), height }));
    watch.observe(at);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [shade]);
  useEffect(() => plot.current?.setData([points.times, points.values]), [points]);
  const last = points.values.at(-1) ?? 0;
  const words = `${title}: now ${rate(last)} ${unit}, highest ${rate(Math.max(0, ...points.values))} ${unit}`;
  return (
    <figure class="plot">
      <figcaption>
        {title} <span class="quiet">{`${rate(last)} ${unit}`}</span>
      </figcaption>
      <div ref={box} role="img" aria-label={words} />
    </figure>
  );
}
