"use strict";

// The page: a list of studies and one study, from klimb's server (live) or from the data in this file (a report).
// Whatever comes from a study is put in as text (textContent), never as HTML.

(() => {
  const { number } = plots;
  const LOOK = 1000; // milliseconds between two looks at a study
  const LOOK_AROUND = 2000; // at all of them
  const FEW_ROWS = 30; // of the heat map before "all" is asked for
  const LISTED = 500; // rows of a table that stands for a plot
  const RANKED = 15;
  const QUIET = 5000; // milliseconds between two things that a screen reader is told

  // Make an element: el("p", {className: "quiet"}, "text", other)
  function el(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name.includes("-") || name === "role" || name === "for" || name === "list") made.setAttribute(name, value);
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made[name] = value;
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }
  const find = (id) => document.getElementById(id);
  const count = (value) => value.toLocaleString("en");
  const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

  function age(since, now) {
    const seconds = Math.max(0, (Date.parse(now) - Date.parse(since)) / 1000);
    if (!Number.isFinite(seconds)) return since;
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
    return `${Math.round(seconds / 86400)} days`;
  }

  function table(headings, rows, numeric = []) {
    const kind = (place) => (numeric.includes(place) ? "number" : "");
    return el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...headings.map((word, place) => el("th", { scope: "col", className: kind(place) }, word)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, place) => el("td", { className: kind(place) }, cell))))),
    );
  }

  // A plot's numbers as a table, made when it is opened and kept up to date while it is.
  function asTable(words, make) {
    const inside = el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": words });
    const details = el("details", {}, el("summary", {}, "As a table"), inside);
    const refresh = () => details.open && inside.replaceChildren(make());
    details.addEventListener("toggle", refresh);
    return { details, refresh };
  }

  // where data comes from

  const KINDS = { u1: Uint8Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };
  function unpack(text, kind) {
    const letters = atob(text);
    const bytes = new Uint8Array(letters.length);
    for (let k = 0; k < letters.length; k += 1) bytes[k] = letters.charCodeAt(k);
    return Array.from(new KINDS[kind](bytes.buffer));
  }

  class Refusal extends Error {
    constructor(message, status) {
      super(message);
      this.status = status;
    }
  }

  function liveSource() {
    const handed = /[#&]token=([^&]*)/.exec(location.hash);
    if (handed) {
      sessionStorage.setItem("token", decodeURIComponent(handed[1]));
      history.replaceState(null, "", "#/");
    }
    async function ask(path, settings = {}) {
      const token = sessionStorage.getItem("token");
      const headers = { ...settings.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
      const answer = await fetch(path, { ...settings, headers, credentials: "omit", cache: "no-store" });
      if (!answer.ok) {
        const told = await answer.json().catch(() => ({}));
        throw new Refusal(told.error || `the server answers ${answer.status}.`, answer.status);
      }
      return answer;
    }
    const films = new Map();
    return {
      live: true,
      overview: async () => (await ask("api/studies")).json(),
      study: async (key, seen) => (await ask(`api/study?${new URLSearchParams({ study: key, ...seen })}`)).json(),
      async film(key, film) {
        const name = `${key}\n${film.name}\n${film.made}`;
        if (!films.has(name)) {
          const answer = await ask(`api/film?${new URLSearchParams({ study: key, name: film.name })}`);
          films.set(name, URL.createObjectURL(await answer.blob()));
        }
        return films.get(name);
      },
      async tell(key, told) {
        const answer = await ask(`api/tell?${new URLSearchParams({ study: key })}`, {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify(told),
        });
        return answer.json();
      },
    };
  }

  function reportSource(data) {
    return {
      live: false,
      made: data.made,
      overview: async () => data.overview,
      study: async (key) => {
        if (!(key in data.studies)) throw new Refusal("that study is not in this report.", 404);
        return data.studies[key];
      },
      film: async (key, film) => film.source,
    };
  }

  const embedded = find("data");
  const source = embedded ? reportSource(JSON.parse(embedded.textContent)) : liveSource();

  // What is known of a study, grown by what is new.
  function emptyStudy() {
    return { epoch: "", changes: -1, points: { number: [], value: [] }, curve: { number: [] }, columns: { number: [] } };
  }

  const CURVE = ["number", "episodes", "mean_return", "best_return", "kl", "entropy", "effective_sample_size", "n_used", "n_failed"];

  function grow(study, told) {
    study.now = told.now;
    study.films = told.films || [];
    if (!told.summary) return false;
    if (told.epoch !== study.epoch) Object.assign(study, emptyStudy());
    study.epoch = told.epoch;
    study.changes = told.changes;
    if (told.settings) {
      study.settings = told.settings;
      for (const name of ["low", "high"]) study.settings[name] = told.settings[name] && unpack(told.settings[name], "f8");
    }
    for (const name of ["summary", "pending", "failures", "notes"]) study[name] = told[name];
    study.recent = told.recent && unpack(told.recent, "f4");
    const join = (old, from, fresh) => old.slice(0, from).concat(fresh);
    for (const [name, kind] of [["number", "u4"], ["value", "f8"]]) {
      study.points[name] = join(study.points[name], told.points.from, unpack(told.points[name], kind));
    }
    for (const name of CURVE) study.curve[name] = join(study.curve[name] || [], told.curve.from, unpack(told.curve[name], "f8"));
    study.meanPolicy = { episodes: unpack(told.mean_policy.episodes, "f8"), value: unpack(told.mean_policy.value, "f8") };
    const { columns } = told;
    const rows = study.settings.names.length;
    for (const name of ["number", "top", "measured"]) study.columns[name] = join(study.columns[name] || [], columns.from, columns[name]);
    for (const [name, kind] of [["effectiveness", "u1"], ["marked", "u1"], ["mean", "f4"], ["std", "f4"]]) {
      study.columns[name] = join(study.columns[name] || [], columns.from * rows, unpack(columns[name], kind));
    }
    study.columns.width = columns.width;
    return true;
  }

  // views: each is made once, shows what is known, and says when to look again

  let view = { remove() {} };
  let timer = null;
  let turn = 0;

  function say(text, bad = false) {
    const place = find("live");
    if (place.textContent !== text) place.textContent = text;
    place.className = bad ? "bad" : "";
  }

  async function look() {
    clearTimeout(timer);
    const mine = turn;
    const current = view;
    if (!(source.live && document.hidden && current.shown)) {
      try {
        await current.look();
        if (mine !== turn) return;
        current.shown = true;
        say(source.live ? "live" : `report of ${source.made.slice(0, 16).replace("T", " ")} UTC`);
      } catch (error) {
        if (mine !== turn) return;
        if (error instanceof Refusal && error.status === 401) return askForToken(error.message);
        if (error instanceof Refusal) {
          current.refuse(error.message);
          say("");
        } else if (error instanceof TypeError) {
          say("the server does not answer; trying again", true);
        } else {
          throw error;
        }
      }
    }
    if (source.live) timer = setTimeout(look, current.every);
  }

  function askForToken(message) {
    say("");
    const input = el("input", { type: "password", required: true, autocomplete: "off", size: 30 });
    const form = el(
      "form",
      { className: "row", onsubmit: (event) => {
        event.preventDefault();
        sessionStorage.setItem("token", input.value.trim());
        route();
      } },
      el("label", {}, "Token", input),
      el("button", { className: "act" }, "Open"),
    );
    find("main").replaceChildren(
      el("section", { className: "card" }, el("h1", {}, "This page needs its token"), el("p", { role: "alert" }, message), form),
    );
    input.focus();
  }

  function route() {
    turn += 1;
    view.remove();
    const main = find("main");
    main.replaceChildren();
    const key = location.hash.startsWith("#/study/") ? decodeURIComponent(location.hash.slice(8)) : null;
    find("where").textContent = key || "";
    document.title = key ? `${key} – klimb` : "klimb";
    view = key ? studyView(main, key) : overviewView(main);
    look();
  }

  // all studies

  function overviewView(main) {
    const heading = el("h1", {}, "Studies");
    const problem = el("select", { onchange: () => draw() });
    const chooser = el("label", {}, "Problem", problem);
    const compared = el("section", { className: "card" }, el("div", { className: "row spread" }, el("h2", {}, "Learning curves"), chooser));
    const explained = el("p", { className: "quiet small" }, "Mean return of a batch, averaged over studies that differ by their seed alone, with its 95 % confidence interval.");
    const plot = plots.linePlot(compared, { label: "Learning curves of all studies; the table below has the numbers", height: 320, xLabel: "episodes", yLabel: "mean return", bent: true, fromX: 0 });
    const tabled = asTable("Learning curves as a table", () =>
      table(["group", "studies", "episodes", "mean return", "95 % interval"], shown().map((group) => {
        const last = group.mean.length - 1;
        return [group.label, String(group.studies.length), count(group.episodes[last]), number(group.mean[last]),
          group.studies.length > 1 ? `${number(group.low[last])} to ${number(group.high[last])}` : "one seed"];
      }), [1, 2, 3]));
    compared.append(explained, tabled.details);
    const list = el("div", { className: "scroll whole", tabIndex: 0, role: "region", "aria-label": "All studies" });
    const card = el("section", { className: "card" }, list);
    main.append(heading, compared, card);
    let overview = { groups: [], studies: [] };
    let drawn = "";

    const shown = () => overview.groups.filter((group) => group.problem === problem.value);

    function draw() {
      const series = [];
      shown().forEach((group, place) => {
        const colour = `c${place % 8}`;
        const seeds = plural(group.studies.length, group.studies.length === 1 ? "study" : "seed").replace("studys", "studies");
        const name = `${group.label} (${seeds})`;
        const dash = place >= 8 ? [6, 4] : [];
        if (group.studies.length > 1) series.push({ name: `${name} interval`, of: name, kind: "band", x: group.episodes, low: group.low, high: group.high, colour });
        series.push({ name, kind: "line", main: true, x: group.episodes, y: group.mean, colour, dash, say: (k) => {
          const interval = group.studies.length > 1 ? `\n95 % interval ${number(group.low[k])} to ${number(group.high[k])}` : "";
          return `${name}\nafter ${count(group.episodes[k])} episodes: ${number(group.mean[k])}${interval}`;
        } });
      });
      plot.show(series);
      tabled.refresh();
    }

    return {
      every: LOOK_AROUND,
      remove: () => plot.remove(),
      refuse: (message) => list.replaceChildren(el("p", { role: "alert", className: "bad" }, message)),
      async look() {
        overview = await source.overview();
        if (overview.single && overview.studies.length === 1 && !this.shown) {
          find("home").removeAttribute("href");
          location.replace(`#/study/${encodeURIComponent(overview.studies[0].key)}`);
          return;
        }
        const same = JSON.stringify(overview);
        if (same === drawn) return;
        drawn = same;
        heading.textContent = overview.name;
        const problems = [...new Set(overview.groups.map((group) => group.problem))];
        const most = (name) => overview.groups.filter((group) => group.problem === name).flatMap((group) => group.studies).length;
        const before = problem.value;
        problem.replaceChildren(...problems.map((name) => el("option", { value: name }, name)));
        problem.value = problems.includes(before) ? before : problems.toSorted((a, b) => most(b) - most(a))[0] || "";
        chooser.hidden = problems.length < 2;
        compared.hidden = !problems.length;
        draw();
        if (!overview.studies.length) {
          list.replaceChildren(el("p", {}, "There are no studies here yet. One is made with: klimb study create FILE"));
          return;
        }
        const rows = overview.studies.map((one) => {
          const link = el("a", { href: `#/study/${encodeURIComponent(one.key)}` }, one.key);
          if (one.error) return [link, el("span", { className: "bad" }, one.error)];
          const seed = one.seed.length > 12 ? el("span", { title: one.seed }, `${one.seed.slice(0, 8)}…`) : one.seed;
          return [link, one.algorithm, one.task || "robot", seed, count(one.done), count(one.failed), count(one.pending),
            count(one.updates), number(one.mean_return), number(one.best_return)];
        });
        const headings = ["study", "algorithm", "task", "seed", "done", "failed", "pending", "updates", "mean return", "best return"];
        const made = table(headings, rows, [3, 4, 5, 6, 7, 8, 9]);
        for (const row of made.rows) {
          row.cells[0].className = "name";
          for (const place of [1, 2]) row.cells[place]?.classList.add("word");
          if (row.cells.length > 2) for (const place of [2, 3, 5, 6, 7]) row.cells[place].classList.add("spare");
          if (row.cells.length === 2) row.cells[1].colSpan = headings.length - 1;
        }
        // no one who stands on a link is thrown off it
        const focused = document.activeElement && list.contains(document.activeElement) && document.activeElement.getAttribute("href");
        list.replaceChildren(made);
        if (focused) [...list.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
      },
    };
  }

  // one study

  function studyView(main, key) {
    const study = emptyStudy();
    const parts = [];
    let current = null; // place of the parameter looked at
    let follows = true; // it is the one that matters most, until another is chosen

    const refused = el("p", { role: "alert", className: "bad" });
    refused.hidden = true;
    main.append(refused);
    const add = (part, place = main) => {
      parts.push(part);
      place.append(part.card);
      return part;
    };

    function choose(place, focus = false) {
      current = place;
      follows = false;
      update();
      if (focus) find("parameter").focus();
    }

    const left = el("div", { className: "stack left" });
    const right = el("div", { className: "stack right" });
    const trio = el("div", { className: "trio" });
    add(headPart());
    main.append(left, right);
    add(curvePart(), left);
    left.append(trio);
    for (const [field, title, what, unit] of [
      ["kl", "KL divergence", "how far it moved the search", "KL in nats"],
      ["entropy", "Entropy", "how wide the search is", "nats"],
      ["effective_sample_size", "Effective sample size", "how many episodes it rests on", "episodes"],
    ]) add(scalarPart(field, title, what, unit), trio);
    add(matterPart(), left);
    add(gridPart(), left);
    add(parameterPart(), left);
    const waiting = add(pendingPart(), right);
    add(filmPart(), right);
    add(rankPart(), right);
    add(failurePart(), right);
    add(settingsPart(), right);

    function update() {
      if (study.recent && (current === null || follows)) {
        current = study.recent.reduce((best, value, place) => (value > study.recent[best] ? place : best), 0);
      }
      current = current ?? 0;
      for (const part of parts) {
        part.card.hidden = part.needs ? !part.needs() : false;
        if (!part.card.hidden) part.show();
      }
    }

    // effectiveness of a cell of the heat map, in its own unit
    const rows = () => study.settings.names.length;
    const cell = (row, column) => study.columns.top[column] * (study.columns.effectiveness[column * rows() + row] / 255) ** 2;
    const isMarked = (row, column) => study.columns.marked[column * rows() + row] >= 128;
    const span = (column) => {
      const last = study.columns.number[column];
      const first = column ? study.columns.number[column - 1] + 1 : 1;
      return first < last ? `updates ${count(first)} to ${count(last)}` : `update ${count(last)}`;
    };

    function headPart() {
      const facts = el("dl", { className: "facts" });
      const notes = el("ul", { className: "notes small" });
      const about = el("p", { className: "quiet small" });
      const card = el("section", { className: "card" }, el("h1", {}, key), about, facts, notes);
      return {
        card,
        show() {
          const one = study.summary;
          about.textContent = [one.algorithm, one.task ? `task ${one.task}` : "", plural(one.n_parameters, "parameter"), `seed ${one.seed}`].filter(Boolean).join(" · ");
          const told = [
            ["episodes done", count(one.done)],
            ["failed", count(one.failed)],
            ["pending", count(one.pending)],
            ["updates", count(one.updates)],
            ["samples for the next", `${count(one.settled)} of ${count(one.batch)}`],
            ["latest mean return", number(one.mean_return)],
            [one.best_episode === null ? "best return" : `best, episode ${count(one.best_episode)}`, number(one.best_return)],
          ];
          facts.replaceChildren(...told.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
          notes.replaceChildren(...study.notes.map((note) => el("li", {}, note)));
          notes.hidden = !study.notes.length;
        },
      };
    }

    function curvePart() {
      const card = el("section", { className: "card first" }, el("h2", {}, "Learning curve"));
      const plot = plots.linePlot(card, { label: "Learning curve", height: 330, xLabel: "episodes", yLabel: "return", bent: true, fromX: 0 });
      plot.canvas.id = "curve";
      const tabled = asTable("Learning curve as a table", () => {
        const { curve } = study;
        const places = curve.number.map((_, k) => k).reverse().slice(0, LISTED);
        return table(["update", "episodes", "mean return", "best return", "failed"],
          places.map((k) => [count(curve.number[k]), count(curve.episodes[k]), number(curve.mean_return[k]), number(curve.best_return[k]), count(curve.n_failed[k])]), [0, 1, 2, 3, 4]);
      });
      card.append(tabled.details);
      return {
        card,
        remove: () => plot.remove(),
        show() {
          const { curve, meanPolicy, points, summary } = study;
          const good = [[], []];
          const failed = [];
          points.number.forEach((episode, k) => {
            if (Number.isNaN(points.value[k])) failed.push(episode);
            else {
              good[0].push(episode);
              good[1].push(points.value[k]);
            }
          });
          plot.show([
            { name: "episode", kind: "points", x: good[0], y: good[1], colour: "points", say: (k) => `episode ${count(good[0][k])}\nreturn ${number(good[1][k])}` },
            { name: "best so far", kind: "line", x: curve.episodes || [], y: curve.best_return, colour: "best", dash: [6, 3],
              say: (k) => `best so far\nafter ${count(curve.episodes[k])} episodes: ${number(curve.best_return[k])}` },
            { name: "mean of the batch", kind: "line", main: true, x: curve.episodes || [], y: curve.mean_return, colour: "mean",
              say: (k) => `update ${count(curve.number[k])}, after ${count(curve.episodes[k])} episodes\nmean return ${number(curve.mean_return[k])}` },
            ...(meanPolicy.value.length ? [{ name: "mean policy", kind: "line", x: meanPolicy.episodes, y: meanPolicy.value, colour: "policy",
              say: (k) => `mean policy\nafter ${count(meanPolicy.episodes[k])} episodes: ${number(meanPolicy.value[k])}` }] : []),
            { name: "failed episode", kind: "failed", x: failed, colour: "failed", say: (k) => {
              const known = study.failures.find((one) => one.episode === failed[k]);
              return `episode ${count(failed[k])} failed${known ? `\n${known.reason}` : ""}`;
            } },
          ]);
          plot.canvas.dataset.updates = String(summary.updates);
          plot.canvas.dataset.episodes = String(points.number.length);
          plot.canvas.dataset.policies = String(meanPolicy.value.length);
          plot.label(`Learning curve: ${plural(summary.updates, "update")}, ${plural(summary.done, "episode")}, latest mean return ${number(summary.mean_return)}, best ${number(summary.best_return)}. Arrow keys read the points.`);
          tabled.refresh();
        },
      };
    }

    function pendingPart() {
      const list = el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Pending episodes" });
      const card = el("section", { className: "card first" }, el("h2", {}, "Pending episodes"), list);
      const episode = el("input", { type: "number", min: 1, step: 1, required: true, id: "episode", inputMode: "numeric" });
      const value = el("input", { type: "text", inputMode: "decimal", id: "return", placeholder: "such as −3.2", autocomplete: "off" });
      const reason = el("input", { type: "text", id: "reason", placeholder: "such as motor fault", autocomplete: "off" });
      const said = el("p", { className: "said", role: "alert" });
      const told = el("button", { className: "act", type: "submit" }, "Tell");
      const failed = el("button", { className: "act second", type: "button" }, "Mark failed");
      const form = el("form", { className: "tell", noValidate: true },
        el("label", {}, "Episode", episode),
        el("div", { className: "pair" }, el("label", {}, "Its return; larger is better", value), told),
        el("div", { className: "pair" }, el("label", {}, "Or why it failed", reason), failed));
      if (source.live) card.append(form, said);

      async function send(outcome, empty) {
        said.className = "said bad";
        said.textContent = "";
        if (!/^\d+$/.test(episode.value)) {
          said.textContent = "Which episode? Give its number.";
          return episode.focus();
        }
        told.disabled = failed.disabled = true;
        try {
          const answer = await source.tell(key, { episode: Number(episode.value), ...outcome });
          said.className = "said good";
          said.textContent = answer.message;
          empty.value = "";
          episode.value = "";
          look();
        } catch (error) {
          said.textContent = error instanceof Refusal ? error.message : "The server does not answer; nothing is known to be stored. Try again.";
        } finally {
          told.disabled = failed.disabled = false;
        }
      }
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        const text = value.value.trim().replace("\u2212", "-").replace(/^(-?\d+),(\d+)$/, "$1.$2");
        if (text === "" || Number.isNaN(Number(text))) {
          said.className = "said bad";
          said.textContent = "What was the return? Give a number, or say why the episode failed.";
          return value.focus();
        }
        return send({ return: Number(text) }, value);
      });
      failed.addEventListener("click", () => send({ failed: reason.value.trim() || "declared failed" }, reason));

      return {
        card,
        show() {
          const { pending, summary, settings } = study;
          form.hidden = settings.simulated;
          const nothing = el("p", { className: "quiet" }, settings.simulated ? "None; the episodes are simulated." : "None. The robot's program asks for the next one with: klimb study ask");
          if (!pending.length) list.replaceChildren(nothing);
          else {
            const body = pending.map((one) => {
              const pick = el("button", { type: "button", className: "link", onclick: () => {
                episode.value = String(one.episode);
                value.focus();
              } }, count(one.episode));
              const since = one.since === null ? "to be handed out" : source.live ? age(one.since, study.now) : one.since.slice(0, 16).replace("T", " ");
              return [settings.simulated || !source.live ? count(one.episode) : pick, since, one.issued > 1 ? `${one.issued} times` : ""];
            });
            if (summary.pending > pending.length) body.push([`and ${count(summary.pending - pending.length)} more`, "", ""]);
            const chosen = list.contains(document.activeElement) ? document.activeElement.textContent : null;
            list.replaceChildren(table(["episode", "waiting", "handed out"], body));
            if (chosen) [...list.querySelectorAll("button")].find((button) => button.textContent === chosen)?.focus();
          }
          if (document.activeElement !== episode && episode.value === "" && pending.length) episode.value = String(pending[0].episode);
        },
      };
    }

    function scalarPart(field, title, what, unit) {
      const card = el("section", { className: "card" }, el("h2", {}, title), el("p", { className: "quiet small" }, `Per update: ${what}.`));
      const plot = plots.linePlot(card, { label: title, height: 190, xLabel: "update", yLabel: unit, fromX: 1, fromZero: field !== "entropy", legend: false });
      const tabled = asTable(`${title} as a table`, () => {
        const places = study.curve.number.map((_, k) => k).reverse().slice(0, LISTED);
        return table(["update", title], places.map((k) => [count(study.curve.number[k]), number(study.curve[field][k])]), [0, 1]);
      });
      card.append(tabled.details);
      return {
        card,
        remove: () => plot.remove(),
        needs: () => (study.curve[field] || []).some(Number.isFinite),
        show() {
          const { curve } = study;
          plot.show([{ name: title, kind: "line", x: curve.number, y: curve[field], colour: "mean", say: (k) => `update ${count(curve.number[k])}\n${title} ${number(curve[field][k])}` }]);
          plot.label(`${title} per update; latest ${number(curve[field].at(-1))}. Arrow keys read the points.`);
          tabled.refresh();
        },
      };
    }

    function ramps() {
      return el("p", { className: "small quiet" }, "0 ", el("span", { className: "ramp selected" }), " most, selected · 0 ", el("span", { className: "ramp other" }), " most, not selected");
    }

    function matterPart() {
      const which = el("select", { id: "rows", onchange: () => show() }, el("option", { value: "few" }, `the ${FEW_ROWS} that matter most`), el("option", { value: "all" }, "all, in their own order"));
      const chooser = el("label", {}, "Parameters", which);
      const card = el("section", { className: "card" },
        el("div", { className: "row spread" }, el("div", {}, el("h2", {}, "Which parameters matter"), el("p", { className: "quiet small" }, "Effectiveness of every parameter, update by update. Choose one to look at it.")), chooser), ramps());
      const box = el("div", { className: "tall" });
      card.append(box);
      let order = [];
      const plot = plots.heatMap(box, { label: "Effectiveness of parameters over updates; the ranking has the numbers", choose: (row) => choose(order[row]) });
      plot.canvas.id = "heat";
      const tabled = asTable("Which parameters matter, as a table", () => {
        const { columns, settings, recent } = study;
        const measured = columns.measured.filter(Boolean).length || 1;
        const share = (place) => columns.number.reduce((sum, _, column) => sum + columns.marked[column * rows() + place], 0) / 255 / measured;
        const ranked = settings.names.map((_, place) => place).toSorted((a, b) => recent[b] - recent[a]);
        return table(["parameter", "matters", "selected"],
          ranked.map((place) => [settings.names[place], number(recent[place], 3), `${Math.round(100 * share(place))} % of the time`]), [1, 2]);
      });
      card.append(tabled.details);

      function show() {
        const { columns, settings, recent } = study;
        const many = settings.names.length > FEW_ROWS;
        chooser.hidden = !many;
        order = settings.names.map((_, place) => place);
        if (many && which.value === "few") order = order.toSorted((a, b) => recent[b] - recent[a]).slice(0, FEW_ROWS);
        const most = Math.max(...columns.top) || 1;
        plot.show({
          rows: order.length,
          columns: columns.number.length,
          current: order.indexOf(current),
          name: (row) => settings.names[order[row]],
          value: (row, column) => (columns.measured[column] ? cell(order[row], column) / most : NaN),
          marked: (row, column) => isMarked(order[row], column),
          columnName: (column) => count(columns.number[column]),
          xLabel: "update",
          say: (row, column) => `${settings.names[order[row]]}\n${span(column)}\neffectiveness ${number(cell(order[row], column), 3)}${isMarked(order[row], column) ? ", selected" : ""}`,
        });
        tabled.refresh();
      }
      return { card, show, remove: () => plot.remove(), needs: () => study.recent !== null && study.columns.number.length > 0 };
    }

    function rankPart() {
      const list = el("div", { className: "scroll tall", tabIndex: 0, role: "region", "aria-label": "Ranking of parameters" });
      const card = el("section", { className: "card" }, el("h2", {}, "Ranking"), el("p", { className: "quiet small" }, "Average over the last 20 updates, and where the search stands now."), list);
      let drawn = "";
      return {
        card,
        needs: () => study.recent !== null && study.columns.number.length > 0,
        show() {
          const { recent, columns, settings } = study;
          const order = settings.names.map((_, place) => place).toSorted((a, b) => recent[b] - recent[a]).slice(0, RANKED);
          const most = Math.max(recent[order[0]], 1e-300);
          const last = (columns.number.length - 1) * rows();
          const body = order.map((place) => [settings.names[place], recent[place], columns.mean[last + place], columns.std[last + place], place]);
          const same = JSON.stringify(body);
          if (same === drawn) return;
          drawn = same;
          const focused = list.contains(document.activeElement) ? document.activeElement.textContent : null;
          list.replaceChildren(table(["parameter", "matters", "now"], body.map(([name, value, mean, std, place]) => [
            el("button", { type: "button", className: "link", onclick: () => choose(place, true) }, name),
            el("meter", { min: 0, max: most, value, title: number(value, 3), "aria-label": `effectiveness ${number(value, 3)}` }),
            `${number(mean, 3)} ± ${number(std, 2)}`,
          ]), [2]));
          if (focused) [...list.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
        },
      };
    }

    function gridPart() {
      const when = el("input", { type: "range", min: 0, step: 1, id: "when" });
      const told = el("output", { htmlFor: "when" });
      const card = el("section", { className: "card" },
        el("div", { className: "row spread" },
          el("div", {}, el("h2", {}, "Joints and time"), el("p", { className: "quiet small" }, "When in the movement each joint matters. Choose a cell to look at its weight.")),
          el("label", {}, el("span", {}, "When in the study: ", told), when)), ramps());
      const plot = plots.heatMap(card, { label: "Effectiveness by joint and time of the movement", rowHeight: 26, choose: (row, column) => choose(row * study.settings.grid.bases + column) });
      plot.canvas.id = "grid";
      const percent = (base) => `${Math.round((100 * base) / Math.max(1, study.settings.grid.bases - 1))} %`;
      let value = () => NaN;
      const tabled = asTable("Joints and time as a table", () => {
        const { joints, bases } = study.settings.grid;
        const times = Array.from({ length: bases }, (_, base) => base);
        return table(["joint", ...times.map(percent)], joints.map((joint, row) => [joint, ...times.map((base) => number(value(row * bases + base), 3))]), times.map((base) => base + 1));
      });
      card.append(tabled.details);
      let latest = true;
      when.addEventListener("input", () => {
        latest = when.value === when.max;
        show();
      });
      function show() {
        const { columns, settings, recent } = study;
        when.max = String(columns.number.length);
        if (latest) when.value = when.max;
        const column = Number(when.value);
        const averaged = column >= columns.number.length;
        told.textContent = averaged ? "average of the last 20 updates" : span(column);
        const { joints, bases } = settings.grid;
        value = (place) => (averaged ? recent[place] : cell(place, column));
        const marked = (place) => isMarked(place, averaged ? columns.number.length - 1 : column);
        const most = Math.max(...recent.map((_, place) => value(place))) || 1;
        plot.show({
          rows: joints.length,
          columns: bases,
          current: Math.floor(current / bases),
          name: (row) => joints[row],
          value: (row, base) => Math.max(0, value(row * bases + base)) / most,
          marked: (row, base) => marked(row * bases + base),
          columnName: (base) => percent(base),
          xLabel: "time in the movement",
          say: (row, base) => `${joints[row]} at ${percent(base)} of the movement\n${settings.names[row * bases + base]}\neffectiveness ${number(value(row * bases + base), 3)}${marked(row * bases + base) ? ", selected" : ""}`,
        });
        tabled.refresh();
      }
      return { card, show, remove: () => plot.remove(), needs: () => Boolean(study.settings.grid && study.settings.names.length === study.settings.grid.joints.length * study.settings.grid.bases && study.recent && study.columns.number.length) };
    }

    function parameterPart() {
      const select = el("select", { id: "parameter", onchange: () => choose(Number(select.value)) });
      const card = el("section", { className: "card" }, el("div", { className: "row spread" }, el("div", {}, el("h2", {}, "One parameter"), el("p", { className: "quiet small" }, "Mean of the search distribution, and one standard deviation to either side.")), el("label", {}, "Parameter", select)));
      const plot = plots.linePlot(card, { label: "Mean and standard deviation of a parameter", height: 220, xLabel: "update", yLabel: "value", fromX: 1, legend: false });
      plot.canvas.id = "detail";
      const series = () => {
        const { columns } = study;
        const at = (name) => columns.number.map((_, column) => columns[name][column * rows() + current]);
        const [mean, std] = [at("mean"), at("std")];
        return { x: columns.number, mean, std, low: mean.map((value, k) => value - std[k]), high: mean.map((value, k) => value + std[k]) };
      };
      const tabled = asTable("The parameter as a table", () => {
        const { x, mean, std } = series();
        const places = x.map((_, k) => k).reverse();
        return table(["update", "mean", "standard deviation"], places.map((k) => [count(x[k]), number(mean[k]), number(std[k])]), [0, 1, 2]);
      });
      card.append(tabled.details);
      let names = null;
      return {
        card,
        remove: () => plot.remove(),
        needs: () => study.columns.number.length > 0,
        show() {
          const { settings } = study;
          if (names !== settings.names) {
            names = settings.names;
            select.replaceChildren(...names.map((name, place) => el("option", { value: String(place) }, name)));
          }
          if (document.activeElement !== select || !follows) select.value = String(current);
          const { x, mean, std, low, high } = series();
          const lines = [
            { name: "spread", kind: "band", x, low, high, colour: "mean" },
            { name: "mean", kind: "line", x, y: mean, colour: "mean", say: (k) => `${names[current]}\nupdate ${count(x[k])}\n${number(mean[k])} ± ${number(std[k], 3)}` },
          ];
          for (const bound of ["low", "high"]) {
            const value = settings[bound] && settings[bound][current];
            // a bound that the search is far from would only flatten the curve
            if (Number.isFinite(value) && value >= Math.min(...low) - 2 * Math.max(...std) && value <= Math.max(...high) + 2 * Math.max(...std)) {
              lines.push({ name: `${bound} bound`, kind: "level", x: [1, x.at(-1)], y: [value, value], colour: "quiet", dash: [4, 4] });
            }
          }
          plot.show(lines);
          plot.canvas.dataset.parameter = names[current];
          plot.label(`${names[current]}: mean ${number(mean.at(-1))}, standard deviation ${number(std.at(-1))} after update ${count(x.at(-1))}. Arrow keys read the points.`);
          tabled.refresh();
        },
      };
    }

    function filmPart() {
      const place = el("div", { className: "films" });
      const card = el("section", { className: "card first" }, el("h2", {}, "Replays"), place);
      let drawn = "";
      async function draw(film) {
        const figure = el("figure", {}, el("figcaption", { className: "small quiet" }, film.name));
        place.append(figure);
        try {
          const address = await source.film(key, film);
          if (!address) figure.append(el("p", { className: "small" }, "too large for a report"));
          else if (film.kind.startsWith("video/")) figure.append(el("video", { src: address, controls: true, muted: true, loop: true, preload: "metadata", "aria-label": film.name }));
          else figure.append(el("img", { src: address, alt: `replay ${film.name}` }));
        } catch (error) {
          figure.append(el("p", { className: "bad" }, error.message));
        }
      }
      return {
        card,
        needs: () => study.films.length > 0,
        show() {
          const names = JSON.stringify(study.films.map((film) => [film.name, film.made]));
          if (names === drawn) return;
          drawn = names;
          place.replaceChildren();
          study.films.forEach(draw);
        },
      };
    }

    function failurePart() {
      const list = el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Latest failures" });
      const card = el("section", { className: "card" }, el("h2", {}, "Latest failures"), list);
      return {
        card,
        needs: () => study.failures.length > 0,
        show: () => list.replaceChildren(table(["episode", "reason"], study.failures.map((one) => [count(one.episode), one.reason]))),
      };
    }

    function settingsPart() {
      const told = el("dl", { className: "settings" });
      const card = el("section", { className: "card" }, el("h2", {}, "Settings"), told);
      return {
        card,
        show() {
          const shown = [...study.settings.list, ["created", study.settings.created.slice(0, 16).replace("T", " ")], ["study", study.settings.uid]];
          told.replaceChildren(...shown.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
        },
      };
    }

    for (const part of parts) part.card.hidden = true;
    // for those who listen: the news, but not every second
    let spoken = null;
    let last = 0;
    function speak() {
      const { updates, mean_return: mean, best_return: best } = study.summary;
      if (spoken === null) spoken = updates;
      if (updates === spoken || Date.now() - last < QUIET) return;
      last = Date.now();
      spoken = updates;
      find("news").textContent = `Update ${count(updates)}: mean return ${number(mean)}, best ${number(best)}.`;
    }

    return {
      every: LOOK,
      remove: () => parts.forEach((part) => part.remove && part.remove()),
      refuse(message) {
        refused.textContent = message;
        refused.hidden = false;
      },
      async look() {
        const filmed = JSON.stringify(study.films || []);
        const told = await source.study(key, { epoch: study.epoch, points: study.points.number.length, updates: study.summary ? study.summary.updates : 0, changes: study.changes });
        refused.hidden = true;
        const grown = grow(study, told);
        if (grown || filmed !== JSON.stringify(study.films)) {
          update();
        } else if (study.pending.length) {
          waiting.show(); // they have been waiting longer
        }
        speak();
      },
    };
  }

  addEventListener("hashchange", route);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && source.live) look();
  });
  route();
})();
