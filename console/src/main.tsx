// Starts the page: who is logged in, the frame around all pages, and which page an address shows.
import "uplot/dist/uPlot.min.css";
import "./app.css";
import { render, type ComponentType } from "preact";
import { useEffect, useErrorBoundary, useState } from "preact/hooks";
import { get, me, post, toLogin, useLive, type Me } from "./api";
import { rate, safe } from "./format";
import { go, place } from "./router";
import { dark, Failure, note, Notes } from "./ui";
import { PAGES, MENU } from "./pages";
import { Palette } from "./palette";
import { loadViews, SavedViews, SaveView } from "./views";
import { OwnPassword } from "./pages/access";
import { Login } from "./pages/login";

function Head() {
  const { data } = useLive<{ topics: number | null; connections: number; publish_rate: number; deliver_rate: number; low_on_space: string | null }>("/api/overview");
  if (!data || data.topics === null) return <div class="figures" />;
  return (
    <div class="figures" aria-label="The broker now">
      <span>
        <b>{rate(data.publish_rate)}</b> in/s
      </span>
      <span>
        <b>{rate(data.deliver_rate)}</b> out/s
      </span>
      <span>
        <b>{data.topics.toLocaleString("en")}</b> topics
      </span>
      <span>
        <b>{data.connections.toLocaleString("en")}</b> connections
      </span>
      {data.low_on_space ? <span class="bad">{safe(data.low_on_space)}</span> : null}
    </div>
  );
}

function shade(next: boolean): void {
  dark.value = next;
  localStorage.setItem("shade", next ? "dark" : "light");
  document.documentElement.dataset.shade = next ? "dark" : "light";
}

async function logOut() {
  await post("/api/logout").catch(() => note("the session had ended already"));
  me.value = null;
  go("/login");
}

// A fault of one page leaves the frame: the menu leads away from it.
function Guarded({ page: Page }: { page: ComponentType }) {
  const [fault] = useErrorBoundary((error) => console.error(error));
  return fault ? <Failure error={new Error(`this page has a fault: ${fault.message}`)} /> : <Page />;
}

function Frame() {
  const { path } = place.value;
  const who = me.value;
  const [open, setOpen] = useState("");
  useEffect(() => {
    if (who) loadViews();
  }, [who?.name]);
  useEffect(() => {
    if (!who && path !== "/login") get<Me | null>("/api/me").then((found) => (found ? (me.value = found) : toLogin()), () => toLogin());
  }, [who, path]);
  const page = PAGES.get(path);
  useEffect(() => {
    document.title = `${path === "/login" ? "Log in" : (page?.title ?? "Not found")} · Quintet console`;
    // On a narrow screen the menu is one line that scrolls: the entry of this page must be in sight.
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [path, who?.name]);
  if (path === "/login") return <Login />;
  if (!who) return <p class="quiet pad">Loading …</p>;
  const Page = page?.show;
  const menu = MENU.filter((entry) => !entry.admin || who.administers);
  return (
    <div class="frame">
      <a class="skip" href="#main">
        Skip to the page
      </a>
      <header class="top">
        <a class="brand" href="/">
          <img src="/static/icon.svg" alt="" width="22" height="22" /> Quintet
        </a>
        <Head />
        <div class="who">
          <kbd title="Go to a page or topic">Ctrl K</kbd>
          <button type="button" class="plain" onClick={() => setOpen("view")}>
            Save view
          </button>
          <button type="button" class="plain" title={`Change the password of ${safe(who.name)}`} onClick={() => setOpen("password")}>
            {safe(who.name)}
          </button>
          <button type="button" class="plain" onClick={() => shade(!dark.value)} aria-label={dark.value ? "Use light colours" : "Use dark colours"}>
            {dark.value ? "☀" : "☾"}
          </button>
          <button type="button" class="plain" onClick={logOut}>
            Log out
          </button>
        </div>
      </header>
      <nav aria-label="Pages">
        {[...new Set(menu.map((entry) => entry.group))].map((group) => (
          <div key={group} role="group" aria-label={group}>
            <span class="heading">{group}</span>
            {menu
              .filter((entry) => entry.group === group)
              .map((entry) => (
                <a key={entry.path} href={entry.path} aria-current={entry.path === (page?.under ?? path) ? "page" : undefined}>
                  {entry.title}
                </a>
              ))}
          </div>
        ))}
        <SavedViews />
      </nav>
      <main id="main" tabindex={-1}>
        {Page ? <Guarded key={path} page={Page} /> : <h1>There is no such page</h1>}
      </main>
      {open === "view" ? <SaveView title={page?.title ?? ""} close={() => setOpen("")} /> : null}
      {open === "password" ? <OwnPassword close={() => setOpen("")} /> : null}
      <Notes />
      <Palette />
    </div>
  );
}

const kept = localStorage.getItem("shade");
if (kept) shade(kept === "dark");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  if (!localStorage.getItem("shade")) dark.value = event.matches;
});
render(<Frame />, document.getElementById("app")!);
