// Draws who publishes what to where and who reads it, live: width is rate, colour is lag or dead letters.
import { useMemo, useRef, useState } from "preact/hooks";
import dagre from "@dagrejs/dagre";
import { useLive } from "../api";
import { ago, count, rate, safe } from "../format";
import { href, place, setQuery } from "../router";
import { Facts, Lag, Loading, Text } from "../ui";

interface Node {
  kind: "producer" | "topic" | "dead" | "group" | "subscription" | "pipeline";
  label: string;
  door?: string;
  rate?: number;
  lag?: number;
  trend?: number;
  dead?: number;
  state?: string;
  topic?: string;
  more?: number;
}
interface Edge {
  from: string;
  to: string;
  rate: number;
  lag: number;
  dead?: number;
  seen?: number;
}
interface Answer {
  nodes: Record<string, Node>;
  edges: Edge[];
  total: number;
  shown: number;
}

const WIDTH = 190;
const HEIGHT = 44;
const LABEL_PX = WIDTH - 30; // beside both round ends
const LABEL_FONT = "500 13px system-ui, sans-serif"; // as app.css has it

const pencil = document.createElement("canvas").getContext("2d");

// What fits into a node. The end of a name says more than its middle: `cache/default/default/sessions` and `.../shown`.
function shorten(label: string): string {
  if (!pencil) return label.slice(0, 20);
  pencil.font = LABEL_FONT;
  const fits = (text: string) => pencil.measureText(text).width <= LABEL_PX;
  if (fits(label)) return label;
  const letters = [...label].slice(0, 40);
  const last = [...label].slice(-40);
  for (let keep = 40; keep > 2; keep--) {
    const tail = Math.floor(keep / 2);
    const text = `${letters.slice(0, keep - tail).join("")}…${last.slice(-tail).join("")}`;
    if (fits(text)) return text;
  }
  return "…";
}

interface Drawn {
  width: number;
  height: number;
  nodes: Map<string, { x: number; y: number }>;
  edges: Map<string, string>;
}

function key(edge: Edge): string {
  return `${edge.from}\u0001${edge.to}`;
}

function layout(nodes: string[], edges: Edge[]): Drawn {
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 110, marginx: 12, marginy: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of nodes) graph.setNode(id, { width: WIDTH, height: HEIGHT });
  for (const edge of edges) graph.setEdge(edge.from, edge.to);
  dagre.layout(graph);
  const made: Drawn = { width: graph.graph().width ?? 0, height: graph.graph().height ?? 0, nodes: new Map(), edges: new Map() };
  for (const id of nodes) {
    const { x, y } = graph.node(id) as { x: number; y: number };
    made.nodes.set(id, { x, y });
  }
  for (const edge of edges) {
    const a = made.nodes.get(edge.from);
    const b = made.nodes.get(edge.to);
    if (!a || !b) continue;
    const [x1, x2] = a.x <= b.x ? [a.x + WIDTH / 2, b.x - WIDTH / 2] : [a.x - WIDTH / 2, b.x + WIDTH / 2];
    const middle = (x1 + x2) / 2;
    made.edges.set(key(edge), `M${x1},${a.y}C${middle},${a.y} ${middle},${b.y} ${x2},${b.y}`);
  }
  return made;
}

// What is connected with a node, along the flow and against it.
function near(focus: string, edges: Edge[]): Set<string> {
  const found = new Set([focus]);
  for (const [from, to] of [["from", "to"], ["to", "from"]] as const) {
    const todo = [focus];
    while (todo.length) {
      const at = todo.pop();
      for (const edge of edges)
        if (edge[from] === at && !found.has(edge[to])) {
          found.add(edge[to]);
          todo.push(edge[to]);
        }
    }
  }
  return found;
}

function level(edge: Edge): string {
  if (edge.dead) return "bad";
  if (edge.lag > 10_000) return "bad";
  if (edge.lag > 100) return "warn";
  return edge.rate > 0 ? "busy" : "still";
}

// By its rate; one that is behind is seen also while nothing moves.
function width(edge: Edge): number {
  const still = level(edge) === "bad" || level(edge) === "warn" ? 2.6 : 1.2;
  return Math.max(still, 1.2 + Math.min(Math.log2(edge.rate + 1), 14) * 0.7);
}

function kindWords(node: Node): string {
  switch (node.kind) {
    case "producer":
      return `publisher by ${node.door || "an unknown door"}`;
    case "dead":
      return "dead letters";
    case "subscription":
      return `subscription by ${node.door}`;
    case "group":
      return `group, ${node.state}`;
    case "pipeline":
      return `pipeline, ${node.state}`;
    default:
      return "topic";
  }
}

function figure(node: Node): string {
  if (node.kind === "topic" || node.kind === "dead") return `${rate(node.rate ?? 0)}/s${node.dead ? ` · ${count(node.dead)} dead` : ""}`;
  if (node.lag !== undefined) return node.lag ? `${count(node.lag)} behind` : "up to date";
  return node.door ?? "";
}

export function FlowMap() {
  const { query } = place.value;
  const { data, error } = useLive<Answer>("/api/map", { filter: query.filter, quiet: query.quiet === "true" });
  const [zoom, setZoom] = useState(1);
  const focus = query.focus && data?.nodes[query.focus] ? query.focus : null;
  const kept = useRef<{ sign: string; drawn: Drawn } | null>(null);
  const chosen = useMemo(() => {
    if (!data) return null;
    const within = focus ? near(focus, data.edges) : null;
    const ids = Object.keys(data.nodes).filter((id) => !within || within.has(id));
    const edges = data.edges.filter((edge) => !within || (within.has(edge.from) && within.has(edge.to)));
    const sign = JSON.stringify([ids, edges.map(key)]);
    if (kept.current?.sign !== sign) kept.current = { sign, drawn: layout(ids, edges) };
    return { ids, edges, drawn: kept.current!.drawn };
  }, [data, focus]);
  return (
    <>
      <div class="bar">
        <h1>Map</h1>
        <input type="search" aria-label="Filter the map" placeholder="Part of a topic, publisher or reader" value={query.filter ?? ""} onInput={(event) => setQuery({ filter: event.currentTarget.value, focus: "" })} />
        <label class="check">
          <input type="checkbox" checked={query.quiet === "true"} onChange={(event) => setQuery({ quiet: event.currentTarget.checked })} /> unused topics, too
        </label>
        {focus ? (
          <button type="button" onClick={() => setQuery({ focus: "" })}>
            Show all
          </button>
        ) : null}
        <span class="zoom">
          <button type="button" aria-label="Smaller" onClick={() => setZoom((before) => Math.max(before / 1.25, 0.3))}>
            −
          </button>
          <button type="button" aria-label="Larger" onClick={() => setZoom((before) => Math.min(before * 1.25, 3))}>
            +
          </button>
        </span>
      </div>
      {!data || !chosen ? (
        <Loading error={error} />
      ) : chosen.ids.length === 0 ? (
        <p class="quiet">{query.filter ? "Nothing has that in its name." : "Nobody publishes or reads yet. The map draws itself with the first message."}</p>
      ) : (
        <div class="map">
          <div class="canvas" tabindex={0} role="group" aria-label="Map of the flow of messages">
            <svg role="group" aria-label={`${chosen.ids.length} nodes`} width={chosen.drawn.width * zoom} height={chosen.drawn.height * zoom} viewBox={`0 0 ${chosen.drawn.width} ${chosen.drawn.height}`}>
              <g class="edges" aria-hidden="true">
                {chosen.edges.map((edge) => (
                  <path key={key(edge)} class={level(edge)} d={chosen.drawn.edges.get(key(edge))} stroke-width={width(edge)}>
                    <title>{edge.dead ? `${count(edge.dead)} dead letters` : `${rate(edge.rate)}/s${edge.lag ? `, ${count(edge.lag)} behind` : ""}`}</title>
                  </path>
                ))}
              </g>
              {chosen.ids.map((id) => {
                const node = data.nodes[id]!;
                const at = chosen.drawn.nodes.get(id)!;
                const label = safe(node.label || "(nobody)");
                const short = shorten(label);
                return (
                  <a key={id} href={href("/", { ...query, focus: id === focus ? "" : id })} class={`node ${node.kind}${id === focus ? " focus" : ""}`} aria-description={`${kindWords(node)}${short === label ? "" : `: ${label}`}`}>
                    <g transform={`translate(${at.x - WIDTH / 2},${at.y - HEIGHT / 2})`}>
                    <rect width={WIDTH} height={HEIGHT} rx={node.kind === "topic" || node.kind === "dead" ? 4 : 22} />
                    <text x={14} y={19}>
                      {short}
                    </text>
                    <text x={14} y={35} class={node.lag && node.lag > 100 ? "small behind" : "small"}>
                      {figure(node)}
                    </text>
                    </g>
                  </a>
                );
              })}
            </svg>
          </div>
          {focus ? <Panel id={focus} node={data.nodes[focus]!} edges={data.edges} nodes={data.nodes} /> : null}
        </div>
      )}
      {data && data.total > data.shown ? <p class="quiet">{`The busiest ${data.shown} of ${count(data.total)} topics are drawn. Filter to see others.`}</p> : null}
      <p class="legend" aria-hidden="true">
        <span class="key producer">publisher</span>
        <span class="key topic">topic</span>
        <span class="key group">reader</span>
        <span class="key dead">dead letters</span>
        <span class="line busy" /> moving <span class="line warn" /> behind <span class="line bad" /> far behind, or dead letters
      </p>
    </>
  );
}

function Panel({ id, node, edges, nodes }: { id: string; node: Node; edges: Edge[]; nodes: Record<string, Node> }) {
  const topic = node.kind === "topic" || node.kind === "dead" ? node.label : node.topic;
  return (
    <aside aria-label="The chosen node">
      <h2>
        <Text of={node.label || "(nobody)"} />
      </h2>
      <Facts
        of={[
          ["Kind", kindWords(node)],
          ...(node.rate !== undefined ? ([["Rate", `${rate(node.rate)}/s`]] as [string, string][]) : []),
          ...(node.lag !== undefined ? ([["Lag", <Lag lag={node.lag} trend={node.trend} />]] as [string, any][]) : []),
          ...(node.dead ? ([["Dead letters", count(node.dead)]] as [string, string][]) : []),
          ...(node.more ? ([["Not drawn", `${node.more} more`]] as [string, string][]) : []),
        ]}
      />
      {topic ? (
        <p>
          <a href={href("/topic", { topic })}>Topic</a> · <a href={href("/messages", { topic })}>Messages</a>
        </p>
      ) : null}
      <ul>
        {edges
          .filter((edge) => edge.from === id || edge.to === id)
          .map((edge) => {
            const other = edge.from === id ? edge.to : edge.from;
            return (
              <li key={key(edge)}>
                {edge.from === id ? "→ " : "← "}
                <a href={href("/", { ...place.value.query, focus: other })}>
                  <Text of={nodes[other]?.label || "(nobody)"} />
                </a>{" "}
                <span class="quiet">
                  {edge.dead ? `${count(edge.dead)} dead` : `${rate(edge.rate)}/s`}
                  {edge.seen ? `, ${ago(edge.seen)}` : ""}
                </span>
              </li>
            );
          })}
      </ul>
    </aside>
  );
}
