// Where a browser was started without a locale, the name of its language can be one that Intl refuses ("en-US@posix").
// Nothing that formats numbers would run then, charts first of all.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: document.documentElement.lang });
}
