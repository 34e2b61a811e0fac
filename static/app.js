// What HTML, CSS and htmx cannot do: keys, copying, pictures, and saying when there is more below.

const byId = (id) => document.getElementById(id);
// The server puts the words on the page, in the reader's language.
const say = (key, name = "") => byId("words").dataset[key].replace("{name}", () => name);

// Keys. Enter sends, unless an input method is composing; while a reply is written it queues.
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && byId("stop") && !document.querySelector(":popover-open:not(#settings)")) {
    byId("stop").click();
    return;
  }
  if (event.target.id !== "prompt" || event.key !== "Enter") return;
  if (event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  if (event.target.value.trim() || byId("chips")?.children.length) event.target.form.requestSubmit();
});

// Tokens: the arrow keys walk along them.
document.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const tokens = step && event.target.closest?.(".likely")?.querySelectorAll("button");
  if (tokens) tokens[[...tokens].indexOf(event.target) + step]?.focus();
});

// Shortcuts, which a page lists and turns off. The arrow keys go from turn to turn, then to the box.
function step(by) {
  const turns = [...document.querySelectorAll(".turn")];
  const at = turns.indexOf(document.activeElement.closest(".turn"));
  const next = turns[at < 0 && by < 0 ? turns.length - 1 : at < 0 ? turns.length : at + by];
  if (next) next.tabIndex = -1;
  (next ?? (by > 0 ? byId("prompt") : null))?.focus();
}
function find() {
  if (!byId("find").checkVisibility()) byId("rail").showPopover();
  byId("find").focus();
}
document.addEventListener("keydown", (event) => {
  const { target, key, isComposing, keyCode, altKey, shiftKey, ctrlKey, metaKey } = event;
  const list = byId("words").dataset.shortcuts;
  if (!list || isComposing || keyCode === 229) return;
  const held = [(ctrlKey || metaKey) && "Ctrl", altKey && "Alt", shiftKey && key !== "/" && "Shift"];
  const act = {
    "Ctrl Shift o": () => document.querySelector("a.new").click(),
    "Ctrl /": () => (byId("shortcuts") ? byId("shortcuts").togglePopover() : location.assign(list)),
    "Alt arrowup": !target.matches("select") && (() => step(-1)),
    "Alt arrowdown": !target.matches("select") && (() => step(1)),
    "/": !target.matches("input, textarea, select") && find,
    "c": target.matches(".turn") && (() => target.querySelector(".copy-turn")?.click()),
    "arrowup": target.id === "prompt" && !target.value && (() =>
      [...document.querySelectorAll(".turn.user .act[href$='/edit']")].at(-1)?.click()),
  }[[...held, key.toLowerCase()].filter(Boolean).join(" ")];
  if (!act) return;
  event.preventDefault();
  act();
});

// Documents: Ctrl+Enter has the model go on.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.target.form?.querySelector(".on-enter")?.click();
});

// What was typed last, in a document or a message, is kept when the page goes.
let isTyped = false;
document.addEventListener("input", ({ target }) => (isTyped ||= target.id === "prompt"));
document.addEventListener("htmx:before:request", ({ target }) => {
  if (target.matches?.("#composer, [hx-post$='/drafts']")) isTyped = false;
});
function keep() {
  const form = document.querySelector("form[data-save]");
  if (form) navigator.sendBeacon(form.dataset.save, new FormData(form));
  if (!isTyped) return;
  const draft = new FormData();
  for (const id of ["prompt", "place", "draft"]) draft.set(byId(id).name, byId(id).value);
  isTyped = !navigator.sendBeacon(byId("place").dataset.drafts, draft);
}
// The first comes before the next page is asked for, where browsers tell.
for (const leaving of ["beforeunload", "pagehide"]) addEventListener(leaving, keep);

// Copying. Over plain HTTP to another machine there is no clipboard object: select and copy.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("readonly", "");
  area.className = "vh";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy, .copy-turn");
  if (!button) return;
  const text = button.matches(".copy")
    ? button.closest(".code").querySelector("code").textContent
    : button.nextElementSibling.content.textContent;
  const done = await copy(text).then(() => true, () => false);
  button.textContent = say(done ? "copied" : "uncopied");
  setTimeout(() => (button.textContent = say("copy")), 2000);
});

// Formulas in a selection are copied as their TeX.
document.addEventListener("copy", (event) => {
  const box = Object.assign(document.createElement("div"), { className: "vh" });
  for (let n = 0; n < getSelection().rangeCount; n++) box.append(getSelection().getRangeAt(n).cloneContents());
  const formulas = box.querySelectorAll("math[data-tex]");
  if (!formulas.length || event.defaultPrevented) return;
  for (const formula of formulas) {
    const mark = formula.getAttribute("display") ? "$$" : "$";
    formula.replaceWith(mark + formula.dataset.tex + mark);
  }
  document.body.append(box);
  event.clipboardData.setData("text/plain", box.innerText);
  box.remove();
  event.preventDefault();
});

// Pictures. The file input holds what will be sent, and the list shows it: each line knows its file.
// The server looks at every one of them and says what it is, or why it cannot be sent.
function hold() {
  const all = new DataTransfer();
  for (const line of byId("chips").children) all.items.add(line.file);
  byId("pictures").files = all.files;
}
async function look(line, url) {
  const body = new FormData();
  body.append("pictures", line.file);
  const response = await fetch(url, { method: "POST", body }).catch(() => null);
  const html = response && (await response.text());
  if (!line.isConnected) return; // sent or removed meanwhile
  if (response?.ok) {
    line.innerHTML = html;
    byId("announce").textContent = say("attached", line.querySelector(".what").innerText);
    return;
  }
  line.remove();
  hold();
  if (response?.status === 401) notice(say("loggedOut"));
  else if (response) byId("notice").insertAdjacentHTML("beforeend", html);
  else lost();
}
async function attach(files) {
  const list = byId("chips");
  byId("notice").replaceChildren();
  const lines = [...files].map((file) => {
    const line = Object.assign(document.createElement("li"), { file });
    line.textContent = say("reading", file.name);
    return line;
  });
  list.append(...lines);
  hold();
  for (const line of lines) if (line.isConnected) await look(line, list.dataset.look);
}
document.addEventListener("change", ({ target }) => {
  if (!target.matches(".pick")) return;
  const files = [...target.files];
  target.value = "";
  attach(files);
});
document.addEventListener("click", async (event) => {
  const line = event.target.closest(".unpick")?.parentElement;
  if (!line) return;
  const isText = event.target.matches(".unfold");
  if (isText) put(await line.file.text());
  line.remove();
  hold();
  byId("announce").textContent = say("removed", line.file.name);
  byId(isText ? "prompt" : "pictures").focus();
});
function put(text) {
  const box = byId("prompt");
  box.setRangeText(text, box.selectionStart, box.selectionEnd, "end");
  box.dispatchEvent(new Event("input", { bubbles: true }));
}
const LONG = 2000; // A longer paste is attached as a file, which its line can put into the box after all.
function take(event, data) {
  const { files, types } = data;
  // Office programs put a picture of copied text beside it: then the text is meant.
  if (event.type === "paste" && types.includes("text/plain")) {
    const text = data.getData("text/plain");
    if (event.target.id !== "prompt" || text.length <= LONG) return;
    event.preventDefault();
    return attach([new File([text], byId("chips").dataset.pasted, { type: "text/plain" })]);
  }
  if (!types.includes("Files") || !byId("composer")) return;
  event.preventDefault();
  if (files.length && event.type !== "dragover") attach(files);
  byId("composer").classList.toggle("over", event.type === "dragover");
}
document.addEventListener("paste", (event) => take(event, event.clipboardData));
document.addEventListener("dragover", (event) => take(event, event.dataTransfer));
document.addEventListener("drop", (event) => take(event, event.dataTransfer));
document.addEventListener("dragleave", () => byId("composer")?.classList.remove("over"));

// Drafts. A new chat has one for each browser, under a name that is drawn once and kept here.
function restore() {
  const place = byId("place");
  if (!place || place.value) return;
  try {
    place.value = localStorage.place ??= `new-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
  } catch { return; } // a browser that keeps nothing
  fetch(`${place.dataset.drafts}/${place.value}`).then(async (response) => {
    const text = response.ok && (await response.text());
    if (!text || !place.isConnected || byId("prompt").value) return;
    byId("prompt").value = text;
    byId("draft").value += `.${response.headers.get("draft-mark")}`; // what it may empty
  }, () => {});
}
restore();
byId("prompt")?.setSelectionRange(1e9, 1e9); // behind a draft, not before it
document.addEventListener("htmx:after:swap", restore);

// The window is called as the page is, which may have another title now.
document.addEventListener("htmx:after:swap", () => {
  const heading = document.querySelector("#title h1");
  if (heading) document.title = `${heading.textContent} · Corral`;
});

// Nobody looks at a hidden page: it asks for no figures until it is seen again.
document.addEventListener("htmx:before:request", (event) => {
  if (document.hidden && event.target.matches?.('[hx-trigger^="every"]')) event.preventDefault();
});

// Reasoning that somebody opened stays open when its turn is drawn anew.
const opened = new Set();
document.addEventListener("toggle", ({ target }) => {
  if (target.matches(".reasoning")) opened[target.open ? "add" : "delete"](target.id);
}, true);
document.addEventListener("htmx:after:swap", () => {
  for (const id of opened) byId(id)?.setAttribute("open", "");
});

// The transcript is laid out from its end, so 0 is the newest line and older ones are negative.
const scroll = byId("scroll");
scroll?.addEventListener("scroll", () => (byId("latest").hidden = scroll.scrollTop > -120));
byId("latest")?.addEventListener("click", () => (scroll.scrollTop = 0));
document.addEventListener("htmx:after:swap", (event) => {
  if (event.target.id === "composer") scroll.scrollTop = 0;
});

// The settings stay open from page to page, where there is room for them beside the chat.
const settings = document.querySelector("#settings[popover]");
if (localStorage.settings === "open" && innerWidth >= 1100) settings?.showPopover();
settings?.addEventListener("toggle", ({ newState }) => (localStorage.settings = newState));
settings?.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    event.stopPropagation();
    settings.hidePopover();
    byId("tuned").focus();
  }
  // In a new chat the fields belong to the form of the message, which Enter does not send here.
  if (event.key !== "Enter" || event.target.form?.id !== "composer" || event.target.type !== "text") return;
  event.preventDefault();
  event.target.blur();
});
settings?.addEventListener("click", ({ target }) => {
  if (target.matches(".reset")) target.closest(".set").querySelector("[name]").value = "";
});
// Changes wait for one another: each is made from what the one before it came to. A message waits
// for the change that is on its way.
let saving = Promise.resolve();
document.addEventListener("htmx:before:request", ({ target, detail: { ctx } }) => {
  const version = target.closest?.("#tune")?.querySelector("[name=version]");
  if (version) ctx.request.body.set("version", version.value);
  if (version) ctx.fetch = (...request) => (saving = fetch(...request));
  if (target.id === "composer") ctx.fetch = (...request) => saving.catch(() => {}).then(() => fetch(...request));
});

// What the server cannot say itself. The text in the box stays where it is.
function notice(words) {
  const p = document.createElement("p");
  p.className = "error";
  p.setAttribute("role", "alert");
  p.textContent = words;
  byId("notice").replaceChildren(p);
}

let isLost = false;
function lost() {
  if (!isLost) notice(say("lost"));
  isLost = true;
}
function found() {
  if (isLost) byId("notice").replaceChildren();
  isLost = false;
}
document.addEventListener("htmx:error", (event) => event.detail.ctx && lost());
document.addEventListener("htmx:sse:error", lost);
document.addEventListener("htmx:sse:after:connection", found);
document.addEventListener("htmx:after:request", (event) => {
  if (event.detail.ctx.response.status === 401) notice(say("loggedOut"));
  else found();
});

// The server groups conversations by the reader's days.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
document.cookie = `zone=${zone}; path=/; max-age=31536000; samesite=lax`;
