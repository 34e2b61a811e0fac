// What HTML, CSS and htmx cannot do: keys, copying, and saying when there is more below.

const byId = (id) => document.getElementById(id);

// Keys. Enter sends, unless an input method is composing or a reply is still being written.
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && byId("stop") && !document.querySelector(":popover-open")) {
    byId("stop").click();
    return;
  }
  if (event.target.id !== "prompt" || event.key !== "Enter") return;
  if (event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  if (!byId("stop") && event.target.value.trim()) event.target.form.requestSubmit();
});

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
  button.textContent = done ? "Copied" : "Copying failed";
  setTimeout(() => (button.textContent = "Copy"), 2000);
});

// The transcript is laid out from its end, so 0 is the newest line and older ones are negative.
const scroll = byId("scroll");
scroll?.addEventListener("scroll", () => (byId("latest").hidden = scroll.scrollTop > -120));
byId("latest")?.addEventListener("click", () => (scroll.scrollTop = 0));
document.addEventListener("htmx:after:swap", (event) => {
  if (event.target.id === "composer") scroll.scrollTop = 0;
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
  if (!isLost) notice("The server cannot be reached. This page goes on when it is back.");
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
  if (event.detail.ctx.response.status === 401) {
    notice("You are logged out. Log in on another page, then go on here.");
  } else found();
});
