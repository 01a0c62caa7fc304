// Of each text that is seen its contrast with what is behind it, where that is below what WCAG asks for (AA).
() => {
  const square = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
  const canvas = square.getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((v, i) => v * a + below[i] * (1 - a));
  const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const layer = (element) => {
    const style = getComputedStyle(element);
    if (!(element instanceof SVGElement) || element.tagName === "svg") return rgba(style.backgroundColor);
    if (!["rect", "path", "circle"].includes(element.tagName) || style.fill === "none") return [0, 0, 0, 0];
    const [r, g, b, a] = rgba(style.fill);
    return [r, g, b, a * style.fillOpacity * style.opacity];
  };
  const behind = (element, box) => {
    const chain = [];
    for (let one = element; one; one = one.parentElement) chain.push(one);
    if (element instanceof SVGElement) {
      const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
      const holds = (b) => b.left <= x && b.right >= x && b.top <= y && b.bottom >= y;
      // What is drawn before the text, the last first.
      const drawn = [...element.ownerSVGElement.querySelectorAll("rect")].filter((one) =>
        one.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING && holds(one.getBoundingClientRect()));
      chain.unshift(...drawn.reverse());
    }
    let ground = rgba(getComputedStyle(document.documentElement).backgroundColor);
    for (const one of chain.reverse()) ground = over(layer(one), ground);
    return ground;
  };
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
    if (!text || element.closest("script, style, noscript, title, option") || !element.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    const box = range.getBoundingClientRect();
    if (box.width < 2 || element.closest(".hidden, .skip")) continue;
    const style = getComputedStyle(element), ground = behind(element, box);
    const [a, b] = [light(over(rgba(element instanceof SVGElement ? style.fill : style.color), ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)}: ${text.slice(0, 60)}`);
  }
  return found;
}
