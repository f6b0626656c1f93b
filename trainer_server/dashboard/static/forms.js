const say = () => document.getElementById("said");

// A form of the class `api` sends its fields as JSON. `data-kind` of a field says what its value is; a dot in its name
// leads into an object.
function bodyOf(form, button) {
  const body = {};
  const fields = [...form.elements].filter(field => field.name && field.tagName !== "BUTTON");
  if (button?.name) fields.push(button);
  for (const field of fields) {
    const kind = field.dataset.kind || "text";
    if (kind.endsWith("optional") && field.value === "") continue;
    if (kind.endsWith("optional") && button?.name === field.name) continue;
    const value = kind === "null" ? null : kind.startsWith("number") ? Number(field.value) : field.value;
    const [outer, inner] = field.name.split(".");
    if (inner) (body[outer] ||= {})[inner] = value; else body[outer] = value;
  }
  return body;
}

async function send(form, button) {
  if (form.dataset.confirm && !confirm(form.dataset.confirm)) return;
  const body = bodyOf(form, button);
  if (form.classList.contains("feedback") && !Number.isFinite(body.reward)) {
    say().textContent = "A reward is a number.";
    return;
  }
  const buttons = form.querySelectorAll("button");
  buttons.forEach(each => { each.disabled = true; });
  say().textContent = "Working …";
  try {
    const answer = await fetch(form.dataset.action, {
      method: form.dataset.method,
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    if (!answer.ok) {
      const problem = await answer.json().catch(() => null);
      say().textContent = problem?.error?.message || `The server refused it: ${answer.status}`;
      return;
    }
    if (form.dataset.done) location.assign(form.dataset.done.replace("{name}", encodeURIComponent(body.name)));
    else location.reload();
  } catch (error) {
    say().textContent = `The server does not answer: ${error.message}`;
  } finally {
    buttons.forEach(each => { each.disabled = false; });
  }
}

document.addEventListener("submit", event => {
  const form = event.target.closest("form.api");
  if (!form) return;
  event.preventDefault();
  send(form, event.submitter);
});
