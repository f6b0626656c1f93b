// The place in a page (`#` and an id) stays in the browser: the form takes it along.
const form = document.querySelector(".login"), next = form.elements.next;
if (!next.value.includes("#")) next.value += location.hash;
// A browser sends no cookie when it follows a link of another site. It does when this page asks again.
if (form.dataset.again !== undefined) location.replace(`/ui/login?next=${encodeURIComponent(next.value)}`);
