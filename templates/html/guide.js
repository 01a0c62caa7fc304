/** Guide: the prose of the Markdown pages. */

import { block, has } from "./block.js";
import { choosing, framed, h, picker, readable, softened } from "./dom.js";
import { href, keep } from "./state.js";

const DEEPEST = 3; // heading level that the contents list

export async function guide(_evidence, params) {
  if (!has("prose"))
    return h("p.empty", "Not in this file: the guide. It is made of the pages beside the results; with them the file is written again.");
  const pages = await block("prose");
  const ofName = (name) => pages.find((one) => one.name === name) ?? pages[0];
  const [first, at] = [ofName(params.get("page")).name, params.get("at")];
  requestAnimationFrame(() => (at ? document.getElementById(`${first}/${at}`)?.scrollIntoView() : null));
  const names = pages.map(({ name, title }) => [name, title]);
  const show = (name) => h("div.guide", contents(ofName(name)), prose(ofName(name)));
  return choosing(picker, "Page", names, first, show, (page) => keep({ page, at: null }));
}

function contents(page) {
  const headings = page.toc.filter(([level]) => level > 1 && level <= DEEPEST);
  const link = ([level, text, at]) => h(`li.level-${level}`, h("a", { href: href("guide", { page: page.name, at }) }, text));
  return h("nav.toc", { "aria-label": "Contents" }, h("ul", headings.map(link)));
}

/** The page's HTML was made of Markdown in which markup is text; the policy of this file runs no script of it. */
function prose(page) {
  const article = h("article.prose");
  article.innerHTML = page.html;
  for (const found of article.querySelectorAll("table")) {
    const place = document.createComment("");
    found.replaceWith(place);
    place.replaceWith(framed(readable(found), "Table"));
  }
  softened(article);
  for (const code of article.querySelectorAll("pre")) code.tabIndex = 0;
  for (const link of article.querySelectorAll('a[href^="http"]')) {
    link.target = "_blank";
    link.rel = "noreferrer noopener";
  }
  return article;
}
