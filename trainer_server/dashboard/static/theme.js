// Before the first paint: the theme that the reader chose, or else that of the system.
const chosen = localStorage.getItem("theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const dark = () => {
    const theme = document.documentElement.dataset.theme;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const tell = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"}`); };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("theme", document.documentElement.dataset.theme);
    tell();
    dispatchEvent(new Event("theme"));
  });
  tell();
});
