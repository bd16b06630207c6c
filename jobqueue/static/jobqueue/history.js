// Draws the charts of the page of metrics with uPlot, so that one can zoom in; the SVG stays for those who do not see.
"use strict";
(function () {
    const source = document.getElementById("jobqueue-history");
    const bar = document.querySelector("[data-jobqueue-zoom]");
    if (!source || !bar || typeof uPlot !== "function") {
        return;
    }
    const history = JSON.parse(source.textContent);
    const PART = history.seconds;
    const FIRST = history.times[0];
    const CENTRES = history.times.map((time) => time + PART / 2);
    const HEIGHT = 202;
    const AXIS = 48;
    const DAY = 86400;
    const COLOURS = {
        ok: "--jobqueue-ok", p50: "--jobqueue-ok",
        retried: "--jobqueue-warn", p95: "--jobqueue-warn",
        dead: "--jobqueue-bad",
    };
    const DASHES = {p95: [5, 3], dead: [2, 2]};
    // The distance of the lines of a hatching, and whether they fall: those of the SVG.
    const HATCHES = {retried: [6, false], dead: [4, true]};
    const zoomed = bar.querySelector("[data-jobqueue-zoomed]");
    const charts = [];
    let zooming = false;

    function colour(name) {
        return window.getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    }

    function colourOf(kind) {
        return colour(COLOURS[kind]);
    }

    function atZone(time) {
        return uPlot.tzDate(new Date(time * 1000), history.zone);
    }

    function two(number) {
        return String(number).padStart(2, "0");
    }

    function clock(date) {
        return two(date.getHours()) + ":" + two(date.getMinutes());
    }

    function day(date) {
        return two(date.getMonth() + 1) + "-" + two(date.getDate());
    }

    function instant(time) {
        const date = atZone(time);
        return date.getFullYear() + "-" + day(date) + " " + clock(date);
    }

    function duration(seconds) {
        if (seconds < 1) {
            return Math.round(seconds * 1000) + "ms";
        }
        if (seconds < 60) {
            return (seconds < 10 ? seconds.toFixed(1).replace(".0", "") : Math.round(seconds)) + "s";
        }
        for (const [big, small, unit, sub] of [[DAY, 3600, "d", "h"], [3600, 60, "h", "m"], [60, 1, "m", "s"]]) {
            if (seconds >= big) {
                return Math.floor(seconds / big) + unit + " " + Math.floor((seconds % big) / small) + sub;
            }
        }
    }

    function text(value, unit) {
        if (unit === "s") {
            return duration(value);
        }
        const words = value.toLocaleString(history.language, {maximumFractionDigits: value < 10 ? 2 : 1});
        return unit === "%" ? words + " %" : words;
    }

    // Beside an axis there is little room: 150,000 is 150K, or 15만 in Korean.
    function tickText(value, unit) {
        if (unit === "s" || unit === "%" || value < 10000) {
            return text(value, unit);
        }
        return value.toLocaleString(history.language, {notation: "compact", maximumFractionDigits: 2});
    }

    function hatched(plot, kind) {
        if (!HATCHES[kind]) {
            return colourOf(kind);
        }
        const [size, falls] = HATCHES[kind];
        const tile = document.createElement("canvas");
        const side = Math.round(size * uPlot.pxRatio * 1.4);
        tile.width = tile.height = side;
        const pen = tile.getContext("2d");
        pen.fillStyle = colourOf(kind);
        pen.fillRect(0, 0, side, side);
        pen.strokeStyle = colour("--body-bg");
        pen.globalAlpha = 0.65;
        pen.lineWidth = 1.4 * uPlot.pxRatio;
        for (const shift of [-side, 0, side]) {
            pen.beginPath();
            pen.moveTo(shift, falls ? 0 : side);
            pen.lineTo(shift + side, falls ? side : 0);
            pen.stroke();
        }
        return plot.ctx.createPattern(tile, "repeat");
    }

    // Whole parts, one at least.
    function wholeParts(plot, min, max) {
        const from = Math.floor((min - FIRST) / PART + 1e-6);
        const to = Math.max(from + 1, Math.ceil((max - FIRST) / PART - 1e-6));
        return [FIRST + from * PART, FIRST + to * PART];
    }

    function fromZero(plot, min, max) {
        return [0, (max || 1) * 1.06];
    }

    function powersOfTen(plot, min, max) {
        if (!(min > 0)) {
            return [0.1, 1];
        }
        const low = Math.floor(Math.log10(min) + 1e-9);
        return [Math.pow(10, low), Math.pow(10, Math.max(low + 1, Math.ceil(Math.log10(max) - 1e-9)))];
    }

    // Each value on those before it; the bands leave these out of its bar.
    function stacked(series) {
        return series.map((one, place) =>
            one.values.map((_, at) => series.slice(0, place + 1).reduce((sum, other) => sum + (other.values[at] || 0), 0))
        );
    }

    function alone(values) {
        return values.flatMap((value, at) =>
            value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null ? [at] : []
        );
    }

    function line(one) {
        return {
            width: 2,
            stroke: () => colourOf(one.kind),
            dash: DASHES[one.kind],
            points: {show: true, size: 5, filter: () => alone(one.values)},
        };
    }

    function pile(one) {
        return {
            width: 0,
            fill: (plot) => hatched(plot, one.kind),
            paths: uPlot.paths.bars({size: [0.8], gap: 0}),
            points: {show: false},
        };
    }

    function timeLabels(plot, ticks, axis, space, step) {
        return ticks.map(function (time) {
            const date = atZone(time);
            return step < DAY && clock(date) !== "00:00" ? clock(date) : day(date);
        });
    }

    function options(given, figure) {
        const label = () => colour("--body-quiet-color");
        const font = "11px " + window.getComputedStyle(figure).fontFamily;
        const ranges = {log: powersOfTen, lines: fromZero, bars: fromZero};
        const axis = {stroke: label, font: font, ticks: {show: false}};
        const powers = given.shape === "log" ? {filter: (plot, ticks) => ticks.map(wholePower)} : {};
        const isStacked = given.shape === "bars";
        return {
            width: Math.max(160, figure.clientWidth),
            height: HEIGHT,
            padding: [8, 18, 0, 0],
            legend: {show: false},
            tzDate: atZone,
            cursor: {
                y: false,
                points: {show: !isStacked, size: 6},
                drag: {x: true, y: false},
                sync: {key: "jobqueue", setSeries: false, filters: {pub: (type) => type.startsWith("mousemove")}},
            },
            scales: {
                x: {time: true, range: wholeParts},
                y: {distr: given.shape === "log" ? 3 : 1, range: ranges[given.shape]},
            },
            series: [{}].concat(given.series.map(isStacked ? pile : line)),
            bands: isStacked ? given.series.slice(1).map((_, at) => ({series: [at + 2, at + 1]})) : [],
            axes: [
                Object.assign({size: 26, gap: 6, space: 70, grid: {show: false}, values: timeLabels}, axis),
                Object.assign({
                    size: AXIS,
                    gap: 6,
                    space: 34,
                    grid: Object.assign({stroke: () => colour("--hairline-color"), width: 1}, powers),
                    values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : tickText(tick, given.unit))),
                }, powers, axis),
            ],
            hooks: {setCursor: [tell], setScale: [follow]},
        };
    }

    function wholePower(tick) {
        return Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-6 ? tick : null;
    }

    // The figures under the cursor, which all charts share.
    function tell(plot) {
        const chart = charts.find((one) => one.plot === plot);
        const at = plot.cursor.idx;
        if (!chart) {
            return;
        }
        const said = [];
        if (at !== null && at !== undefined && plot.cursor.left >= 0) {
            said.push(instant(history.times[at]));
            chart.given.series.forEach(function (one) {
                const value = one.values[at];
                said.push(one.name + " " + (value === null ? "-" : text(value, chart.given.unit)));
            });
        }
        chart.readout.replaceChildren(...said.map(function (words) {
            const part = document.createElement("span");
            part.textContent = words;
            return part;
        }));
    }

    // All charts show the same time.
    function follow(plot, key) {
        if (key !== "x" || zooming) {
            return;
        }
        zooming = true;
        const {min, max} = plot.scales.x;
        charts.forEach(function (one) {
            if (one.plot !== plot) {
                one.plot.setScale("x", {min: min, max: max});
            }
        });
        zooming = false;
        const whole = min <= FIRST && max >= FIRST + history.times.length * PART;
        bar.classList.toggle("jobqueue-is-zoomed", !whole);
        zoomed.textContent = whole ? "" : instant(min) + " \u2013 " + instant(max);
    }

    function reset() {
        charts[0].plot.setScale("x", {min: FIRST, max: FIRST + history.times.length * PART});
    }

    function draw(panel) {
        const given = history.charts[panel.dataset.jobqueueChart];
        const figure = panel.querySelector(".jobqueue-chart");
        const plain = figure && figure.querySelector(".jobqueue-plot");
        if (!given || !plain) {
            return;
        }
        const host = document.createElement("div");
        const readout = document.createElement("p");
        host.className = "jobqueue-canvas";
        readout.className = "jobqueue-readout";
        host.setAttribute("aria-hidden", "true");
        readout.setAttribute("aria-hidden", "true");
        plain.after(host, readout);
        const values = given.shape === "bars" ? stacked(given.series) : given.series.map((one) => one.values);
        const plot = new uPlot(options(given, figure), [CENTRES].concat(values), host);
        figure.classList.add("jobqueue-drawn");
        charts.push({plot: plot, given: given, readout: readout, figure: figure});
    }

    function redraw() {
        charts.forEach((one) => one.plot.redraw(false, true));
    }

    document.querySelectorAll("[data-jobqueue-chart]").forEach(draw);
    if (!charts.length) {
        return;
    }
    bar.hidden = false;
    bar.querySelector("[data-jobqueue-reset]").addEventListener("click", reset);
    const watch = new ResizeObserver(function () {
        charts.forEach(function (one) {
            const width = Math.max(160, one.figure.clientWidth);
            if (width !== one.plot.width) {
                one.plot.setSize({width: width, height: HEIGHT});
            }
        });
    });
    charts.forEach((one) => watch.observe(one.figure));
    new MutationObserver(redraw).observe(document.documentElement, {attributeFilter: ["data-theme"]});
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
