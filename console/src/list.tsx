// Shows lists: short ones as tables, those of any length by the rows in sight. Each can be saved as CSV or JSON lines.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import { get, type Fields, type Refusal } from "./api";
import { href, place, setQuery } from "./router";
import { save, saveList, type Kind } from "./export";
import { count } from "./format";
import { Failure, note } from "./ui";

export interface Column<T> {
  name: string;
  title: ComponentChildren;
  width?: string; // of a long list, as a track of a grid
  number?: boolean;
  sort?: boolean;
  class?: string; // of the cells of a table
  show: (row: T) => ComponentChildren;
}

const ROW = 34;
const PAGE = 100;
const GAP = 10; // between columns, as app.css has it
const NARROW = 90; // a column that names no width

interface LongListOf<T> {
  path: string;
  fields: Fields;
  columns: Column<T>[];
  sort?: string;
  down?: boolean;
  onSort?: (name: string) => void;
  label: string;
  empty: ComponentChildren;
  turn?: number; // another one: ask again now
}

// A list of any length. Another question is another list: rows of the one do not fit the columns of the other.
export function LongList<T>(list: LongListOf<T>) {
  return <RowsInSight key={list.path} {...list} />;
}

// The rows in sight are in the page, the pages they are on are asked for, and asked for again while they are seen.
function RowsInSight<T>({ path, fields, columns, sort, down, onSort, label, empty, turn }: LongListOf<T>) {
  const scroller = useRef<HTMLDivElement>(null);
  const [, redraw] = useState(0);
  const [total, setTotal] = useState<number | null>(null);
  const [error, setError] = useState<Refusal | null>(null);
  const pages = useRef(new Map<number, T[]>());
  const virtual = useRef<Virtualizer<HTMLDivElement, Element> | null>(null);
  const of = href(path, fields);
  const asked = useRef(of);

  if (virtual.current === null) {
    virtual.current = new Virtualizer<HTMLDivElement, Element>({
      count: 0,
      getScrollElement: () => scroller.current,
      estimateSize: () => ROW,
      overscan: 12,
      scrollToFn: elementScroll,
      observeElementRect,
      observeElementOffset,
      onChange: () => redraw((before) => before + 1),
      useAnimationFrameWithResizeObserver: true,
    });
  }
  const list = virtual.current;
  list.setOptions({ ...list.options, count: total ?? 0 });
  useLayoutEffect(() => list._didMount(), []);
  useLayoutEffect(() => list._willUpdate());

  const load = (page: number) =>
    get<{ total: number; rows: T[] }>(path, { ...fields, skip: page * PAGE, limit: PAGE })
      .then((answer) => {
        if (asked.current !== of) return;
        pages.current.set(page, answer.rows);
        setTotal(answer.total);
        setError(null);
        redraw((before) => before + 1);
      })
      .catch((failure) => asked.current === of && setError(failure));
  const seen = () => new Set(list.getVirtualItems().map((item) => Math.floor(item.index / PAGE)));
  useEffect(() => {
    asked.current = of;
    pages.current.clear();
    scroller.current?.scrollTo({ top: 0 });
    load(0);
    const timer = setInterval(() => {
      if (!document.hidden) for (const page of new Set([0, ...seen()])) load(page);
    }, 3000);
    return () => clearInterval(timer);
  }, [of, turn]);
  const items = list.getVirtualItems();
  const missing = [...seen()].filter((page) => !pages.current.has(page)).join();
  useEffect(() => {
    const wait = setTimeout(() => missing && missing.split(",").forEach((page) => load(Number(page))), 60);
    return () => clearTimeout(wait);
  }, [missing, of]);

  // On a narrow screen head and rows move sideways together: no column becomes narrower than it says.
  const minWidth = `${columns.reduce((sum, column) => sum + GAP + Number(/(\d+)px/.exec(column.width ?? "")?.[1] ?? NARROW), 2 * GAP)}px`;
  const grid = { gridTemplateColumns: columns.map((column) => column.width ?? `minmax(${NARROW}px, 1fr)`).join(" "), minWidth };
  if (error) return <Failure error={error} />;
  return (
    <div class="list">
      <div class="table" role="table" aria-label={label} aria-rowcount={(total ?? 0) + 1}>
      <div role="rowgroup">
        <div role="row" class="head" style={grid}>
          {columns.map((column) => (
            <div role="columnheader" key={column.name} class={column.number ? "number" : ""} aria-sort={sort === column.name ? (down ? "descending" : "ascending") : undefined}>
              {column.sort && onSort ? (
                <button type="button" class="plain" onClick={() => onSort(column.name)}>
                  {column.title}
                  {sort === column.name ? <span aria-hidden="true">{down ? " ▾" : " ▴"}</span> : null}
                </button>
              ) : (
                column.title
              )}
            </div>
          ))}
        </div>
      </div>
      {total === 0 ? (
        <div role="rowgroup">
          <div role="row">
            <div role="cell" class="empty">
              {empty}
            </div>
          </div>
        </div>
      ) : null}
      <div ref={scroller} onMouseOver={tellWhole} class="rows" role="rowgroup" tabindex={0} aria-label={`${label}, rows`} hidden={total === 0} style={{ minWidth }}>
        <div style={{ height: `${list.getTotalSize()}px` }} role="presentation">
          {items.map((item) => {
            const row = pages.current.get(Math.floor(item.index / PAGE))?.[item.index % PAGE];
            return (
              <div role="row" key={item.index} aria-rowindex={item.index + 2} class="line" style={{ ...grid, transform: `translateY(${item.start}px)` }}>
                {columns.map((column) => (
                  <div role="cell" key={column.name} class={column.number ? "number" : ""}>
                    {row === undefined ? "…" : column.show(row)}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
      </div>
      <div class="foot quiet">
        <span>{total === null ? "Loading …" : `${count(total)} in all`}</span>
        <Save run={(kind) => saveList(fileName(label), path, fields, kind)} />
      </div>
    </div>
  );
}

// What does not fit into its cell is told whole to who points at it.
function tellWhole(event: MouseEvent): void {
  const cell = (event.target as Element).closest<HTMLElement>("[role=cell], td.clip");
  if (cell) cell.title = cell.scrollWidth > cell.clientWidth ? cell.innerText : "";
}

function fileName(label: string): string {
  return label.toLowerCase().replace(/[^a-z0-9]+/g, "-");
}

function Save({ run }: { run: (kind: Kind) => Promise<number> }) {
  return (
    <>
      {(["csv", "jsonl"] as const).map((kind) => (
        <button
          key={kind}
          type="button"
          class="plain"
          onClick={() =>
            run(kind).then(
              (rows) => note(`${count(rows)} rows were saved`),
              (failure) => note(failure.message),
            )
          }
        >
          {kind === "csv" ? "Save as CSV" : "Save as JSON lines"}
        </button>
      ))}
    </>
  );
}

// Rows that are all in the page.
export function Table<T extends object>({ label, rows, columns, id, empty, name }: { label: string; rows: T[]; columns: Column<T>[]; id: (row: T) => string | number; empty?: ComponentChildren; name?: string }) {
  if (rows.length === 0) return <p class="quiet">{empty ?? "None."}</p>;
  return (
    <>
      <div class="scroll" onMouseOver={tellWhole} tabindex={0} role="group" aria-label={label}>
        <table class={name}>
          <thead>
            <tr>
              {columns.map((column) => (
                <th key={column.name} class={column.number ? "number" : ""}>
                  {column.title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={id(row)}>
                {columns.map((column) => (
                  <td key={column.name} class={[column.number ? "number" : "", column.class ?? ""].join(" ").trim()}>
                    {column.show(row)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="row save">
        <Save run={(kind) => save(fileName(label), rows as Record<string, unknown>[], kind)} />
      </div>
    </>
  );
}

// What a list is sorted by, from the address.
export function useSort(first: string): { sort: string; down: boolean; onSort: (name: string) => void } {
  const { query } = place.value;
  const sort = query.sort ?? first;
  const down = query.down === "true";
  return { sort, down, onSort: (name) => setQuery({ sort: name, down: sort === name ? !down : false }) };
}
