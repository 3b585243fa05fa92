"use strict";
// Draws attention maps from the two data blocks of this page. Names are only ever written as text.
(async () => {
  const $ = (id) => document.getElementById(id);
  const MODES = ["row", "column", "rollout"], SCALES = ["map", "row", "shared", "log"], MEAN = -1, LOWEST = 1e-4;
  const page = JSON.parse($("description").textContent);
  const [rows, columns] = page.grid, patches = rows * columns;
  const rowOf = (patch) => Math.floor(patch / columns), columnOf = (patch) => patch % columns;
  const dark = matchMedia("(prefers-color-scheme: dark)"), phone = matchMedia("(max-width: 36rem)");
  let colours; // 256 times three bytes, from near the page's background to what stands out from it

  if (!("DecompressionStream" in window)) return; // the notice stays, and says what to do
  const packed = Uint8Array.from(atob($("data").textContent), (c) => c.charCodeAt(0));
  const unpacking = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(unpacking).arrayBuffer());
  const photos = await Promise.all(page.images.map(({ photo }) => photo
    && createImageBitmap(new Blob([bytes.subarray(photo[0], photo[0] + photo[1])], { type: "image/jpeg" }))));

  // ---- What is looked at -------------------------------------------------------------------------------------------

  const state = {
    image: 0, moment: page.moments.length - 1, part: "encoder", layer: page.start[0], head: page.start[1],
    mode: "row", scale: "map", shown: page.images[0].hidden ? "seen" : "photo", pinned: false, over: true, opacity: 100,
    query: Math.floor(rows / 2) * columns + Math.floor(columns / 2), // a patch; -1, -2, ... are the prefix tokens
  };
  let lastPatch = state.query;
  const part = () => page[state.part], image = () => page.images[state.image];
  const isHidden = (patch, one = image()) => one.hidden !== null && one.hidden[patch] === "1";
  const canRoll = () => state.part === "encoder" && part().layers[state.layer] === state.layer; // no earlier layer is missing

  /** Which version of the image is shown: the chosen one, if this image has it. */
  function pictureNow() {
    const has = { photo: photos[state.image], seen: image().hidden, filled: image().filled };
    return has[state.shown] ? state.shown : "original";
  }

  /** The patches that are tokens of this part, in order: a masked encoder has only the visible ones. */
  function tokenPatches(one = image()) {
    const all = Array.from({ length: patches }, (_, patch) => patch);
    return state.part === "encoder" ? all.filter((patch) => !isHidden(patch, one)) : all;
  }

  /** The masked patches among the decoder's tokens; dots mark them. */
  const dotted = () => (state.part === "decoder" ? tokenPatches().filter((patch) => isHidden(patch)) : []);

  // ---- Weights -----------------------------------------------------------------------------------------------------

  let cache = new Map(), cacheKey = "";

  /** Call `make()` once per key, for as long as image, moment and part stay the same. */
  function kept(key, make) {
    const now = [state.image, state.moment, state.part].join();
    if (now !== cacheKey) [cache, cacheKey] = [new Map(), now];
    if (!cache.has(key)) cache.set(key, make());
    return cache.get(key);
  }

  const size = () => part().prefix + kept("patches", () => tokenPatches()).length;

  /** The weights of one head, size x size. A code is 255 times the square root; one shift of all nonzero codes of a
   *  row makes their squares sum to 255 x 255 again, so that the row sums to 1. */
  function headWeights(layer, head) {
    return kept(`head ${layer} ${head}`, () => {
      const n = size(), from = image()[state.part][state.moment] + (layer * part().heads + head) * n * n;
      const weights = new Float32Array(n * n);
      for (let row = 0; row < n * n; row += n) {
        let count = 0, total = 0, squares = 0;
        for (let key = row; key < row + n; key++) {
          const code = bytes[from + key];
          if (code) { count++; total += code; squares += code * code; }
        }
        const shift = (Math.sqrt(total * total - count * (squares - 255 * 255)) - total) / count;
        for (let key = row; key < row + n; key++) {
          const code = bytes[from + key];
          weights[key] = code ? ((code + shift) / 255) ** 2 : 0;
        }
      }
      return weights;
    });
  }

  function layerWeights(layer, head) {
    if (head !== MEAN) return headWeights(layer, head);
    return kept(`mean ${layer}`, () => {
      const mean = new Float32Array(size() ** 2), heads = part().heads;
      for (let h = 0; h < heads; h++) headWeights(layer, h).forEach((weight, i) => { mean[i] += weight / heads; });
      return mean;
    });
  }

  /** A row of Abnar and Zuidema's rollout: the product of 0.5 (A + I) over all layers up to this one. One row is a vector
   *  that goes down through the layers: no product of whole matrices is needed. */
  function rollout(layer, token) {
    return kept(`rollout ${layer} ${token}`, () => {
      const n = size();
      let row = new Float32Array(n);
      row[token] = 1;
      for (let below = layer; below >= 0; below--) {
        const weights = layerWeights(below, MEAN), next = row.map((share) => share / 2);
        row.forEach((share, i) => {
          const from = weights.subarray(i * n, i * n + n), half = share / 2;
          if (half) for (let key = 0; key < n; key++) next[key] += half * from[key];
        });
        row = next;
      }
      return row;
    });
  }

  /** What the query sees in one map: {grid, prefix}, nan where a patch is no token; null if the query is none. */
  function look(layer, head) {
    const places = kept("patches", () => tokenPatches()), { prefix } = part(), n = size();
    const place = places.indexOf(state.query), token = state.query < 0 ? -1 - state.query : prefix + place;
    if (state.query >= 0 && place < 0) return null;
    const rolled = state.mode === "rollout", weights = rolled ? rollout(layer, token) : layerWeights(layer, head);
    const [start, step] = state.mode === "column" ? [token, n] : [rolled ? 0 : token * n, 1];
    const seen = { grid: new Float64Array(patches).fill(NaN), prefix: [] };
    for (let i = 0; i < n; i++) {
      const weight = weights[start + i * step];
      if (i < prefix) seen.prefix.push(weight); else seen.grid[places[i - prefix]] = weight;
    }
    return seen;
  }

  // ---- Colours -----------------------------------------------------------------------------------------------------

  const largest = (values) => values.reduce((top, value) => (value > top ? value : top), 0); // skips nan

  /** The 99.5% quantile of some shares: a few extreme ones would leave all others dark. `counts[code]` is how often a code
   *  occurs. */
  function quantile(counts) {
    let above = counts.reduce((sum, count) => sum + count, 0) * 0.005, code = 255;
    while (code > 0 && (above -= counts[code]) >= 0) code--;
    return (Math.min(code + 1, 255) / 255) ** 2;
  }

  const sharedTops = new Map();

  /** One top for all images, layers, heads and checkpoints of a part, from the shares between patches. */
  function sharedTop() {
    if (!sharedTops.has(state.part)) {
      const counts = new Uint32Array(256), { prefix, heads, layers } = part();
      for (const one of page.images) {
        const n = prefix + tokenPatches(one).length, rowsOfAll = layers.length * heads * n;
        for (const from of one[state.part]) {
          for (let row = 0; row < rowsOfAll; row++) {
            if (row % n >= prefix) for (let key = prefix; key < n; key++) counts[bytes[from + row * n + key]]++;
          }
        }
      }
      sharedTops.set(state.part, quantile(counts));
    }
    return sharedTops.get(state.part);
  }

  /** The same for the rollout up to one layer, from at most about 64 query patches. */
  function rolloutTop(layer) {
    return kept(`top ${layer}`, () => {
      const n = size(), { prefix } = part(), counts = new Uint32Array(256), step = Math.ceil((n - prefix) / 64);
      for (let token = prefix; token < n; token += step) {
        for (const share of rollout(layer, token).subarray(prefix)) counts[Math.round(255 * Math.sqrt(share))]++;
      }
      return quantile(counts);
    });
  }

  /** The weight that gets the strongest colour: in the maps of this layer, or in one of its maps alone. */
  function topOf(layer, alone = null) {
    const each = alone ? [alone.head] : [...Array(part().heads).keys()];
    if (state.scale === "log") return 1;
    if (state.scale === "shared") return state.mode === "rollout" ? rolloutTop(layer) : sharedTop();
    const looks = state.mode === "rollout" ? [look(layer, MEAN)] : each.map((head) => look(layer, head));
    return Math.max(1e-6, ...looks.map((seen) => (seen ? largest(seen.grid) : 0)));
  }

  /** Where a share lies between the first and the last colour, 0 to 1. */
  function place(share, top) {
    return Math.min(state.scale === "log" ? 1 + Math.log10(Math.max(share, LOWEST)) / 4 : share / top, 1);
  }

  /** One canvas pixel per patch; an absent one stays transparent and shows the hatching behind. Over an image (`opacity` is
   *  given) the opacity rises with the share, and the palest colours are left out: they would look like a veil. */
  function paint(canvas, seen, top, opacity) {
    const pixels = new ImageData(columns, rows);
    if (seen) {
      seen.grid.forEach((share, patch) => {
        if (Number.isNaN(share)) return;
        const at = place(share, top), over = opacity !== undefined;
        const from = 3 * Math.round(255 * (over ? 0.35 + 0.65 * at : at)), alpha = over ? Math.round(230 * opacity * at) : 255;
        pixels.data.set([colours[from], colours[from + 1], colours[from + 2], alpha], 4 * patch);
      });
    }
    canvas.getContext("2d").putImageData(pixels, 0, 0);
  }

  // ---- Words -------------------------------------------------------------------------------------------------------

  const rounded = (share) => `${(100 * share).toFixed(share < 0.00995 ? 2 : 1)}%`;
  const percent = (share) => (share > 0 && share < 5e-5 ? "<0.01%" : rounded(share));
  const prefixName = (i) => (page.classToken && i === 0 ? "class token" : `register ${i - (page.classToken ? 1 : 0)}`);
  const patchName = (patch) => `row ${rowOf(patch)} column ${columnOf(patch)}`;
  const queryName = () => (state.query < 0 ? prefixName(-1 - state.query) : `patch ${patchName(state.query)}`);
  const headName = (head) => (head === MEAN ? "mean of heads" : `head ${head}`);
  const layerName = (layer) => `${state.part === "decoder" ? "decoder " : ""}layer ${part().layers[layer]}`;

  const HEADINGS = {
    row: ["Looks most at", "Outside the image"],
    column: ["Most looked at by", "From outside the image"],
    rollout: ["Draws most from", "Outside the image"],
  };

  function sentence(seen, ranked) {
    const where = state.mode === "rollout" ? `rollout up to layer ${part().layers[state.layer]}`
      : `${layerName(state.layer)}, ${headName(state.head)}`;
    if (!seen) {
      return `${where}, ${queryName()}: masked: the encoder does not see it, so it is neither query nor key`
        + (page.decoder ? "; in the decoder it is a query" : "");
    }
    const registers = seen.prefix.slice(page.classToken ? 1 : 0); // the list beside has them one by one
    const mass = (page.classToken && seen.prefix.length ? `; class token ${percent(seen.prefix[0])}` : "")
      + (registers.length ? `; registers ${percent(registers.reduce((sum, share) => sum + share))}` : "");
    const most = `${patchName(ranked[0])}, ${percent(seen.grid[ranked[0]])}${mass}`;
    if (state.mode === "column") return `${where}, who looks at ${queryName()}: most of all ${most}`;
    return `${where}, ${queryName()}: most on ${most}`;
  }

  // ---- Drawing -----------------------------------------------------------------------------------------------------

  function make(tag, parent, text, className) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    parent.append(element);
    return element;
  }

  /** An SVG over a stage, one unit per patch: outlines stay sharp at any size, and the pixels below untouched. */
  function makeOverlay(stage) {
    const make = (name, parent) => parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
    const svg = make("svg", stage);
    svg.setAttribute("viewBox", `0 0 ${columns} ${rows}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    return ["dots halo", "dots", "keys halo", "keys", "query halo", "query"].map((kind) => {
      const path = make("path", svg);
      path.setAttribute("class", kind);
      return path;
    });
  }

  const square = (patch) => `M${columnOf(patch)} ${rowOf(patch)}h1v1h-1z`;
  const dot = (patch) => `M${columnOf(patch) + 0.5} ${rowOf(patch) + 0.5}h0`;

  function outline(overlay, keys, dots) {
    const shapes = [dots.map(dot), keys.map(square), state.query < 0 ? [] : [square(state.query)]];
    overlay.forEach((path, i) => {
      path.setAttribute("d", shapes[i >> 1].join(""));
      path.classList.toggle("pinned", state.pinned);
    });
  }

  let pictureKey = "";

  /** Paint an image of the stream, pixel by pixel; nothing where `hidden` is 1. */
  function paintImage(canvas, { channels, height, width }, from, hidden) {
    [canvas.width, canvas.height] = [width, height];
    const drawn = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      const row = Math.floor((Math.floor(i / width) * rows) / height);
      const column = Math.floor(((i % width) * columns) / width);
      for (let c = 0; c < 3; c++) drawn.data[4 * i + c] = bytes[from + i * channels + (channels === 3 ? c : 0)];
      drawn.data[4 * i + 3] = hidden && hidden[row * columns + column] === "1" ? 0 : 255;
    }
    canvas.getContext("2d").putImageData(drawn, 0, 0);
  }

  function drawPicture() {
    const shown = pictureNow(), now = [state.image, state.moment, shown].join();
    if (now === pictureKey) return; // a moving pointer changes none of it
    pictureKey = now;
    const { name, height, width, pixels, hidden, filled } = image(), photo = photos[state.image];
    const from = shown === "filled" ? filled[state.moment] : pixels, canvas = $("picture-pixels");
    if (shown === "photo") {
      [canvas.width, canvas.height] = [photo.width, photo.height];
      canvas.getContext("2d").drawImage(photo, 0, 0);
    } else paintImage(canvas, image(), from, shown === "seen" ? hidden : null);
    canvas.classList.toggle("smooth", shown === "photo");
    for (const stage of [$("picture"), $("map")]) {
      stage.style.aspectRatio = `${width} / ${height}`;
      stage.style.maxWidth = `${(75 * width) / height}vh`;
    }
    $("picture-caption").textContent = name;
    $("shown-control").hidden = !hidden && !filled && !photo;
    $("photo-choice").hidden = !photo;
    $("seen-choice").hidden = !hidden;
    $("filled-choice").hidden = !filled;
    [...$("thumbs").children].forEach((canvas, i) => canvas.classList.toggle("chosen", i === state.image));
  }

  function drawBar(top) {
    const canvas = $("bar"), pixels = new ImageData(256, 1);
    for (let i = 0; i < 256; i++) pixels.data.set([...colours.subarray(3 * i, 3 * i + 3), 255], 4 * i);
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    const most = `${state.scale === "shared" ? "≥ " : ""}${percent(top)}`;
    const ticks = state.scale === "log" ? ["≤ 0.01%", "0.1%", "1%", "10%", "100%"] : ["0%", percent(top / 2), most];
    $("ticks").replaceChildren();
    for (const tick of ticks) make("span", $("ticks"), tick);
  }

  function drawNumbers(seen, ranked) {
    $("sentence").textContent = sentence(seen, ranked) + (state.pinned ? "; held" : "");
    const [caption, outside] = HEADINGS[state.mode];
    $("table-caption").textContent = caption;
    $("prefix-heading").textContent = outside;
    $("strongest").replaceChildren();
    const shown = ranked.slice(0, 6), all = seen ? seen.grid.reduce((sum, share) => sum + (share || 0), 0) : 0;
    const line = (patch, share, top) => {
      const row = make("tr", $("strongest")), name = make("td", row), from = $("picture-pixels");
      const thumb = make("canvas", name), [width, height] = [from.width / columns, from.height / rows];
      [thumb.width, thumb.height] = [32, Math.round((32 * height) / width)];
      thumb.setAttribute("aria-hidden", "true");
      const context = thumb.getContext("2d");
      context.imageSmoothingEnabled = width > 32;
      context.drawImage(from, columnOf(patch) * width, rowOf(patch) * height, width, height, 0, 0, 32, thumb.height);
      name.append(`${rowOf(patch)}, ${columnOf(patch)} `);
      make("small", name, [patch === state.query && "itself", isHidden(patch) && "masked"].filter(Boolean).join(", "));
      make("td", row, percent(share), "number");
      const bar = make("div", make("td", row, undefined, "meter"));
      bar.style.width = `${Math.min((100 * share) / top, 100)}%`;
    };
    for (const patch of shown) line(patch, seen.grid[patch], seen.grid[ranked[0]]);
    if (seen && state.mode !== "column" && ranked.length > shown.length) {
      const rest = all - shown.reduce((sum, patch) => sum + seen.grid[patch], 0);
      const row = make("tr", $("strongest"), undefined, "rest");
      make("td", row, `the other ${ranked.length - shown.length}`);
      make("td", row, percent(Math.max(rest, 0)), "number");
      make("td", row);
    }
    [...$("prefix").children].forEach((item, i) => {
      const button = item.firstChild, share = seen && i < seen.prefix.length ? seen.prefix[i] : NaN;
      item.hidden = i >= part().prefix;
      button.setAttribute("aria-pressed", String(state.query === -1 - i));
      button.children[1].textContent = Number.isNaN(share) ? "–" : percent(share);
      button.children[2].firstChild.style.width = Number.isNaN(share) ? "0" : `${100 * share}%`;
    });
    $("prefix-block").hidden = part().prefix === 0;
    $("note").textContent = note(seen, all);
  }

  function note(seen, all) {
    const words = [], column = state.mode === "column";
    if (seen && column) {
      const sum = (all + seen.prefix.reduce((a, b) => a + b, 0)).toFixed(2);
      words.push(`In all it receives ${sum}; uniform attention would give each token 1.00.`);
    } else if (seen && state.mode === "row") words.push(`Uniform attention would give each token ${percent(1 / size())}.`);
    if (seen && state.part === "decoder" && image().hidden) {
      const visible = seen.grid.reduce((sum, share, patch) => sum + (isHidden(patch) ? 0 : share), 0);
      words.push(column ? "Dots mark masked patches."
        : `${percent(visible)} is on visible patches, ${percent(all - visible)} on masked ones (dots).`);
    }
    if (state.pinned) words.push("The patch is held. Click it again or press Escape to release it.");
    if (state.part === "decoder") words.push("Rollout is for the encoder only.");
    else if (!canRoll()) words.push("Rollout needs all layers below, and this page leaves some out.");
    return words.join(" ");
  }

  let tiles = [], gridKey = "", revealed = "";

  /** The small maps: a row per layer, a column per head and one for their mean; a single column of rollouts. Made once per
   *  part, drawn at every change. */
  function drawGrid() {
    const rolled = state.mode === "rollout", heads = rolled ? [MEAN] : [MEAN, ...Array(part().heads).keys()];
    const layers = [...part().layers.keys()].filter((layer) => !rolled || part().layers[layer] === layer);
    if (gridKey !== (gridKey = [state.part, rolled].join())) {
      tiles = [];
      $("grid").replaceChildren();
      const head = make("tr", make("thead", $("grid"))), body = make("tbody", $("grid"));
      make("td", head);
      for (const one of heads) make("th", head, rolled ? "rollout" : one === MEAN ? "mean" : `head ${one}`).scope = "col";
      for (const layer of layers) {
        const row = make("tr", body), name = make("th", row, `layer ${part().layers[layer]}`);
        name.scope = "row";
        make("small", name);
        for (const one of heads) {
          const button = make("button", make("td", row)), canvas = make("canvas", button);
          button.type = "button";
          button.setAttribute("aria-label", `${layerName(layer)}, ${rolled ? "rollout" : headName(one)}`);
          [canvas.width, canvas.height] = [columns, rows];
          canvas.setAttribute("aria-hidden", "true");
          button.addEventListener("click", () => set(rolled ? { layer } : { layer, head: one }));
          tiles.push({ button, canvas, layer, head: one, note: name.lastChild });
        }
      }
    }
    $("grid-heading").textContent = rolled ? "Rollout up to each layer" : `Layers and heads of the ${state.part}`;
    const own = ["map", "row"].includes(state.scale) || (rolled && state.scale === "shared"), query = look(state.layer, state.head);
    if (own && query) $("grid-heading").textContent += " (beside each layer: the weight with the strongest colour)";
    const tops = new Map(layers.map((layer) => [layer, topOf(layer)]));
    for (const { button, canvas, layer, head, note } of tiles) {
      const current = layer === state.layer && (rolled || head === state.head);
      paint(canvas, look(layer, head), tops.get(layer));
      canvas.style.aspectRatio = `${image().width} / ${image().height}`;
      button.setAttribute("aria-pressed", String(current));
      button.tabIndex = current ? 0 : -1; // one stop for the Tab key; arrows go on from there
      note.textContent = own && query ? ` ${percent(tops.get(layer))}` : "";
      if (current && revealed !== (revealed = [gridKey, layer, head].join())) reveal(button);
    }
  }

  /** Scroll the table, but not the page, to a small map; the names of the layers stay over its left. */
  function reveal(button) {
    const box = $("grid").parentElement, seen = box.getBoundingClientRect(), at = button.getBoundingClientRect();
    const left = seen.left + $("grid").querySelector("tbody th").offsetWidth;
    if (at.left < left) box.scrollLeft -= left - at.left;
    else if (at.right > seen.right) box.scrollLeft += at.right - seen.right;
  }

  let shownNow = null; // what `sentence` is about

  function draw() {
    const seen = look(state.layer, state.head), top = topOf(state.layer, state.scale === "map" ? state : null);
    const ranked = seen ? [...seen.grid.keys()].filter((p) => !Number.isNaN(seen.grid[p])) : [];
    ranked.sort((a, b) => seen.grid[b] - seen.grid[a] || a - b);
    paint($("map-pixels"), seen, top);
    $("picture-map").hidden = !state.over;
    $("picture-pixels").classList.toggle("faded", state.over && seen !== null);
    paint($("picture-map"), seen, top, state.opacity / 100);
    drawBar(top);
    document.querySelector(".bar").hidden = !seen; // a masked patch has no query: no map, no scale
    drawNumbers(seen, ranked);
    shownNow = [seen, ranked];
    outline(mapOverlay, [], dotted());
    outline(pictureOverlay, ranked.slice(0, 3), []);

    drawGrid();
    tell();
  }

  let telling = 0, told = null;

  /** Wait half a second after the last change: a moving pointer must flood neither a screen reader nor the history. */
  function tell() {
    clearTimeout(telling);
    telling = setTimeout(() => {
      const chosen = { image: $("image"), moment: $("moment-name"), scale: $("scale") }, words = [];
      for (const [key, control] of Object.entries(chosen)) { // changes that the sentence does not tell
        const text = control.selectedOptions ? control.selectedOptions[0].textContent : control.textContent;
        if (told && state[key] !== told[key]) words.push(key === "scale" ? `colour scale: ${text}` : text);
      }
      told = { image: state.image, moment: state.moment, scale: state.scale };
      $("live").textContent = [...words, $("sentence").textContent].join("; ");
      history.replaceState(null, "", link());
    }, 500);
  }

  /** The URL fragment that brings back what is shown. */
  function link() {
    const { query, head } = state;
    return `#${new URLSearchParams({
      image: state.image, moment: state.moment, part: state.part, layer: part().layers[state.layer],
      head: head === MEAN ? "mean" : head, mode: state.mode, scale: state.scale, shown: state.shown,
      over: Number(state.over), opacity: state.opacity,
      query: query < 0 ? query : `${rowOf(query)},${columnOf(query)}`, held: Number(state.pinned),
    })}`;
  }

  // ---- Saving ------------------------------------------------------------------------------------------------------

  const MARGIN = 24, SIDE = 512, LINE = 20; // of a saved picture, in pixels; SIDE is about the longer side of a pane

  /** The words of a saved picture in lines of up to `room` pixels; checkpoint and image take no more than one. */
  function caption(context, room) {
    const fits = (text) => context.measureText(text).width <= room, lines = [];
    let head = [page.moments[state.moment], image().name].filter(Boolean).join(" · ");
    const letters = [...head];
    while (letters.length && !fits(`${head}:`)) {
      letters.pop();
      head = `${letters.join("")}…`;
    }
    const words = (head ? `${head}: ` : "") + sentence(...shownNow) + (dotted().length ? "; dots mark masked patches" : "");
    for (const word of words.split(" ").filter(Boolean)) {
      const last = lines.length - 1;
      if (lines.length && fits(`${lines[last]} ${word}`)) lines[last] += ` ${word}`; else lines.push(word);
    }
    return lines;
  }

  /** Return a canvas with image and map side by side, bar and words below; each patch is whole pixels. */
  function composed() {
    const { width, height } = image(), longer = Math.max(width, height), style = getComputedStyle(document.body);
    const across = columns * Math.round((SIDE * width) / longer / columns), down = rows * Math.round((SIDE * height) / longer / rows);
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d"), room = 2 * across + MARGIN;
    const font = context.font = `15px ${style.fontFamily}`, lines = caption(context, room);
    const base = down + MARGIN + (shownNow[0] ? 64 : 28); // of the first line; a masked patch has no map, so no bar
    [canvas.width, canvas.height] = [room + 2 * MARGIN, base + LINE * (lines.length - 1) + 32];
    context.fillStyle = style.backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    const lefts = [MARGIN, across + 2 * MARGIN], cell = [across / columns, down / rows];
    const pane = (from, left) => context.drawImage(from, left, MARGIN, across, down);
    context.fillStyle = style.getPropertyValue("--hatch");
    for (const left of lefts) context.fillRect(left, MARGIN, across, down);
    context.imageSmoothingEnabled = pictureNow() === "photo";
    context.filter = getComputedStyle($("picture-pixels")).filter;
    pane($("picture-pixels"), lefts[0]);
    context.filter = "none";
    context.imageSmoothingEnabled = false;
    if (state.over) pane($("picture-map"), lefts[0]);
    pane($("map-pixels"), lefts[1]);
    for (const [colour, radius] of [["#000", 5], ["#fff", 3]]) {
      context.fillStyle = colour;
      for (const patch of dotted()) {
        context.beginPath();
        context.arc(lefts[1] + (columnOf(patch) + 0.5) * cell[0], MARGIN + (rowOf(patch) + 0.5) * cell[1], radius, 0, 2 * Math.PI);
        context.fill();
      }
    }
    for (const [colour, width] of state.query < 0 ? [] : [["#000", 5], ["#fff", 2]]) {
      [context.strokeStyle, context.lineWidth] = [colour, width];
      const corner = [columnOf(state.query) * cell[0], MARGIN + rowOf(state.query) * cell[1]];
      for (const left of lefts) context.strokeRect(left + corner[0], corner[1], ...cell);
    }

    [context.fillStyle, context.font] = [style.color, font];
    if (shownNow[0]) {
      context.drawImage($("bar"), lefts[1], down + MARGIN + 12, across, 10);
      const ticks = [...$("ticks").children].map((tick) => tick.textContent), last = ticks.length - 1;
      const crowded = ticks.some((tick) => context.measureText(tick).width + 8 > across / ticks.length);
      ticks.forEach((tick, i) => {
        if (crowded && i > 0 && i < last) return;
        context.textAlign = i === 0 ? "left" : i === last ? "right" : "center";
        context.fillText(tick, lefts[1] + (across * i) / last, down + MARGIN + 40, across / 2 - 2);
      });
    }
    context.textAlign = "left";
    lines.forEach((line, i) => context.fillText(line, MARGIN, base + i * LINE, room));
    return canvas;
  }

  function save() {
    composed().toBlob((blob) => {
      const anchor = document.createElement("a");
      anchor.href = URL.createObjectURL(blob);
      const words = ["attention", page.moments[state.moment], page.images.length > 1 ? `image ${state.image}` : "",
        layerName(state.layer), state.mode === "rollout" ? "rollout" : headName(state.head),
        state.mode === "column" ? "who looks at" : "", queryName()];
      anchor.download = `${words.filter(Boolean).join(" ").replaceAll(" ", "-")}.png`;
      anchor.click();
      setTimeout(() => URL.revokeObjectURL(anchor.href), 10000);
    });
  }

  async function copy() {
    history.replaceState(null, "", link());
    let said = "Link copied";
    try {
      await navigator.clipboard.writeText(location.href);
    } catch { // the browser does not let a page write there
      said = "The link is in the address bar";
    }
    $("copy").textContent = $("live").textContent = said;
    setTimeout(() => { $("copy").textContent = "Copy link"; }, 3000);
  }

  // ---- Playing -----------------------------------------------------------------------------------------------------

  let playing = "", timer = 0;

  /** Go through the layers or the moments from here, or from the first if this is the last; a second call stops. */
  function play(key) {
    const last = () => (key === "layer" ? part().layers : page.moments).length - 1, before = playing;
    stop();
    if (before === key || last() === 0) return;
    playing = key;
    $(`play-${key}`).textContent = "Stop";
    set({ [key]: state[key] === last() ? 0 : state[key] + 1 });
    timer = setInterval(() => {
      if (state[key] < last()) set({ [key]: state[key] + 1 });
      if (state[key] >= last()) stop();
    }, 900);
  }

  function stop() {
    clearInterval(timer);
    if (playing) $(`play-${playing}`).textContent = "Play";
    playing = "";
  }

  // ---- Changing ----------------------------------------------------------------------------------------------------

  function fillHeads() {
    const select = $("head");
    if (select.children.length === part().heads + 1) return;
    select.replaceChildren();
    for (const head of [MEAN, ...Array(part().heads).keys()]) make("option", select, headName(head)).value = head;
  }

  /** The only way to change what is shown; what no longer fits is adjusted. */
  function set(change) {
    const before = state.part;
    Object.assign(state, change);
    if (!part()) state.part = "encoder";
    const last = part().layers.length - 1;
    if (state.part !== before) state.layer = last;
    state.layer = Math.min(state.layer, last);
    state.head = Math.min(state.head, part().heads - 1);
    if (state.mode === "rollout" && !canRoll()) state.mode = "row";
    if (state.query < -part().prefix) state.query = lastPatch;
    if (state.query >= 0) lastPatch = state.query;

    fillHeads();
    $("image").value = state.image;
    $("moment").value = state.moment;
    $("moment-name").textContent = page.moments[state.moment];
    $("moment").setAttribute("aria-valuetext", page.moments[state.moment]);
    $("layer").max = last;
    $("layer").value = state.layer;
    $("layer-name").textContent = part().layers[state.layer];
    $("layer").setAttribute("aria-valuetext", layerName(state.layer));
    $("head").value = state.mode === "rollout" ? MEAN : state.head;
    $("head").disabled = state.mode === "rollout";
    $("scale").value = state.scale;
    $("over").checked = state.over;
    $("opacity").value = state.opacity;
    $("opacity").disabled = !state.over;
    $("opacity-name").textContent = $("opacity").ariaValueText = `${state.opacity}%`;
    $("fold-name").textContent = [page.moments[state.moment], layerName(state.layer),
      state.mode === "rollout" ? "rollout" : headName(state.head)].filter(Boolean).join(" · ");
    const chosen = { ...state, shown: pictureNow() };
    for (const input of document.querySelectorAll("input[type=radio]")) input.checked = chosen[input.name] === input.value;
    $("rollout-choice").firstChild.disabled = !canRoll();
    drawPicture();
    draw();
  }

  const turn = (value, step, count) => (((value + step) % count) + count) % count;

  function move(down, right) {
    const from = state.query < 0 ? lastPatch : state.query; // from a token without a place, back to the grid
    const [row, column] = [rowOf(from) + (state.query < 0 ? 0 : down), columnOf(from) + (state.query < 0 ? 0 : right)];
    set({ query: Math.min(Math.max(row, 0), rows - 1) * columns + Math.min(Math.max(column, 0), columns - 1) });
  }

  /** Go from one small map to the next. */
  function step(button, down, right) {
    const at = tiles.findIndex((tile) => tile.button === button), across = state.mode === "rollout" ? 1 : part().heads + 1;
    const column = (at % across) + right, next = tiles[(Math.floor(at / across) + down) * across + column];
    if (column < 0 || column >= across || !next) return;
    next.button.click();
    next.button.focus();
  }

  const LETTERS = {
    l: (step) => set({ layer: turn(state.layer, step, part().layers.length) }),
    h: (step) => set({ head: turn(state.head + 1, step, part().heads + 1) - 1 }),
    c: (step) => {
      const now = state.query < 0 ? -state.query : 0, next = turn(now, step, part().prefix + 1);
      set({ query: next ? -next : lastPatch });
    },
    m: (step) => {
      const modes = MODES.filter((mode) => mode !== "rollout" || canRoll());
      set({ mode: modes[turn(modes.indexOf(state.mode), step, modes.length)] });
    },
    d: () => set({ part: state.part === "encoder" ? "decoder" : "encoder" }),
    s: (step) => set({ scale: SCALES[turn(SCALES.indexOf(state.scale), step, SCALES.length)] }),
    i: (step) => set({ image: turn(state.image, step, page.images.length) }),
    o: () => set({ over: !state.over }),
    p: (step) => play(step > 0 ? "layer" : "moment"),
    t: (step) => set({ moment: turn(state.moment, step, page.moments.length) }),
  };
  const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  document.addEventListener("keydown", (event) => {
    // A list handles typed letters itself, and the system its shortcuts.
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const onMap = event.target === $("map");
    const pointed = event.target === document.body && document.querySelector(".stage:hover");
    const letter = LETTERS[event.key.toLowerCase()];
    if (letter) letter(event.shiftKey ? -1 : 1);
    else if (ARROWS[event.key] && (onMap || pointed)) move(...ARROWS[event.key]);
    else if (ARROWS[event.key] && event.target.closest("#grid")) step(event.target, ...ARROWS[event.key]);
    else if (onMap && (event.key === "Enter" || event.key === " ")) set({ pinned: !state.pinned });
    else if (event.key === "Escape") { stop(); set({ pinned: false }); }
    else return;
    event.preventDefault();
  });

  function follow(stage) {
    let last = null; // the patch under the pointer: a jitter within it does not undo what keys did
    const patchAt = (event) => {
      const box = stage.getBoundingClientRect();
      const cell = (at, length, count) => Math.min(Math.max(Math.floor((at / length) * count), 0), count - 1);
      const row = cell(event.clientY - box.top, box.height, rows);
      return row * columns + cell(event.clientX - box.left, box.width, columns);
    };
    stage.addEventListener("pointermove", (event) => {
      const patch = patchAt(event);
      if (patch !== last && !state.pinned && event.pointerType !== "touch") set({ query: patch });
      last = patch;
    });
    stage.addEventListener("pointerleave", () => { last = null; });
    stage.addEventListener("click", (event) => {
      const patch = patchAt(event);
      set({ pinned: !(state.pinned && patch === state.query), query: patch });
    });
  }

  /** Show what a link asks for, as far as this page has it. */
  function fromLink() {
    const link = new URLSearchParams(location.hash.slice(1)), change = {};
    const number = (key, count, from = 0) => {
      const value = link.has(key) && link.get(key) !== "" ? Number(link.get(key)) : NaN;
      if (Number.isInteger(value) && value >= from && value < count) change[key] = value;
    };
    const word = (key, words) => { if (words.includes(link.get(key))) change[key] = link.get(key); };
    number("image", page.images.length);
    number("moment", page.moments.length);
    word("part", page.decoder ? ["encoder", "decoder"] : ["encoder"]);
    word("mode", MODES);
    word("scale", SCALES);
    word("shown", ["photo", "seen", "original", "filled"]);
    number("opacity", 101);
    if (["0", "1"].includes(link.get("over"))) change.over = link.get("over") === "1";
    if (link.get("head") === "mean") change.head = MEAN; else number("head", page[change.part || state.part].heads);
    const place = /^(\d+),(\d+)$/.exec(link.get("query") || "");
    const [row, column] = place ? [Number(place[1]), Number(place[2])] : [rows, columns];
    if (row < rows && column < columns) change.query = row * columns + column;
    else number("query", 0, -page.encoder.prefix);
    set(change); // the part first: layers are counted within it
    const layer = part().layers.indexOf(Number(link.get("layer") || NaN));
    if (layer >= 0) set({ layer, mode: change.mode || state.mode });
    set({ pinned: link.get("held") === "1" });
  }

  // ---- Beginning ---------------------------------------------------------------------------------------------------

  page.images.forEach((one, i) => {
    make("option", $("image"), one.name).value = i;
    const thumb = make("canvas", $("thumbs")); // for the pointer only: the list above serves everybody else
    paintImage(thumb, one, one.pixels, null);
    thumb.addEventListener("click", () => set({ image: i }));
  });
  $("thumbs").hidden = page.images.length === 1;
  for (const [name, offered] of Object.entries({
    image: page.images.length > 1, part: page.decoder, moment: page.moments.length > 1, prefix: page.encoder.prefix,
  })) {
    $(`${name}-key`).hidden = !offered;
    if ($(`${name}-control`)) $(`${name}-control`).hidden = !offered;
  }
  $("moment").max = page.moments.length - 1;
  [$("map-pixels").width, $("map-pixels").height] = [columns, rows];
  $("map").setAttribute("aria-label", `Attention map, ${rows} rows, ${columns} columns; arrow keys move the query patch`);
  for (let i = 0; i < page.encoder.prefix; i++) {
    const button = make("button", make("li", $("prefix")));
    button.type = "button";
    make("span", button, prefixName(i));
    make("span", button, undefined, "number");
    make("div", make("span", button, undefined, "meter"));
    button.addEventListener("click", () => set({ query: -1 - i, pinned: true }));
  }
  if (isHidden(state.query)) { // begin at the visible patch nearest to the centre: a masked one shows nothing
    const away = (patch) => Math.hypot(rowOf(patch) - (rows - 1) / 2, columnOf(patch) - (columns - 1) / 2);
    state.query = lastPatch = tokenPatches().sort((a, b) => away(a) - away(b))[0];
  }
  [$("picture-map").width, $("picture-map").height] = [columns, rows];
  $("play-key").hidden = page.moments.length === 1;
  const mapOverlay = makeOverlay($("map")), pictureOverlay = makeOverlay($("picture"));
  for (const key of ["image", "head"]) $(key).addEventListener("change", () => set({ [key]: Number($(key).value) }));
  for (const key of ["layer", "moment"]) {
    $(key).addEventListener("input", () => { stop(); set({ [key]: Number($(key).value) }); });
    $(`play-${key}`).addEventListener("click", () => play(key));
  }
  $("opacity").addEventListener("input", () => set({ opacity: Number($("opacity").value) }));
  $("over").addEventListener("change", () => set({ over: $("over").checked }));
  $("save").addEventListener("click", save);
  $("copy").addEventListener("click", copy);
  $("scale").addEventListener("change", () => set({ scale: $("scale").value }));
  for (const input of document.querySelectorAll("input[type=radio]")) {
    input.addEventListener("input", () => set({ [input.name]: input.value }));
  }
  follow($("picture"));
  follow($("map"));
  window.addEventListener("hashchange", fromLink);
  const takeColours = () => {
    colours = Uint8Array.from(page.colours[dark.matches ? "dark" : "light"].match(/../g), (pair) => parseInt(pair, 16));
  };
  dark.addEventListener("change", () => { takeColours(); set({}); });
  const fold = () => { $("fold").open = !phone.matches; };
  phone.addEventListener("change", fold);
  takeColours();
  fold();
  $("notice").hidden = true;
  $("explorer").hidden = false;
  fromLink();
})();
