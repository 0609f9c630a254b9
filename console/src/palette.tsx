// Goes anywhere by typing: Ctrl+K or / opens it; pages first, then saved views, then topics.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, me } from "./api";
import { safe } from "./format";
import { go, href } from "./router";
import { MENU } from "./pages";
import { views } from "./views";

interface Found {
  title: string;
  kind: string;
  to: string;
}

export function Palette() {
  const [open, setOpen] = useState(false);
  const [text, setText] = useState("");
  const [topics, setTopics] = useState<string[]>([]);
  const [at, setAt] = useState(0);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const key = (event: KeyboardEvent) => {
      const typing = (event.target as Element).matches("input, textarea, select");
      if ((event.key === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !typing && !event.ctrlKey)) {
        event.preventDefault();
        setText("");
        setAt(0);
        setOpen(true);
      }
    };
    document.addEventListener("keydown", key);
    return () => document.removeEventListener("keydown", key);
  }, []);
  useEffect(() => {
    if (open) dialog.current?.showModal();
  }, [open]);
  useEffect(() => {
    if (!open) return;
    const wait = setTimeout(() => get<{ rows: { name: string }[] }>("/api/topics", { filter: text, limit: 8 }).then((found) => setTopics(found.rows.map((row) => row.name)), () => setTopics([])), 120);
    return () => clearTimeout(wait);
  }, [open, text]);
  if (!open) return null;
  const wanted = text.toLowerCase();
  const found: Found[] = [
    ...MENU.filter((entry) => (!entry.admin || me.value?.administers) && entry.title.toLowerCase().includes(wanted)).map((entry) => ({ title: entry.title, kind: "page", to: entry.path })),
    ...views.value.filter((view) => view.name.toLowerCase().includes(wanted)).map((view) => ({ title: view.name, kind: "saved view", to: view.to })),
    ...topics.flatMap((topic) => [
      { title: topic, kind: "topic", to: href("/topic", { topic }) },
      { title: topic, kind: "messages", to: href("/messages", { topic }) },
    ]),
  ];
  const chosen = Math.min(at, found.length - 1);
  const choose = (one?: Found) => {
    setOpen(false);
    if (one) go(one.to);
  };
  return (
    <dialog ref={dialog} class="palette" aria-label="Go to" onClose={() => setOpen(false)} onCancel={() => setOpen(false)}>
      <input
        type="text"
        role="combobox"
        aria-label="Go to a page or topic"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={found.length ? `palette-${chosen}` : undefined}
        placeholder="A page or a topic"
        autofocus
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, found.length - 1));
          else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
          else if (event.key === "Enter") choose(found[chosen]);
          else return;
          event.preventDefault();
        }}
      />
      <div role="listbox" id="palette-list" aria-label="Found">
        {found.map((one, number) => (
          <div key={`${one.kind} ${one.to}`} id={`palette-${number}`} role="option" aria-selected={number === chosen} onClick={() => choose(one)}>
            <bdi>{safe(one.title)}</bdi> <span class="quiet">{one.kind}</span>
          </div>
        ))}
      </div>
    </dialog>
  );
}
