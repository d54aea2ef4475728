"""A line plot as SVG, from Python's standard library: linear or logarithmic axes, a legend, light and dark."""
import math

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7f7f7f", "#8c564b", "#17becf")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 420, 70, 40, 200, 50


def escape(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def number(value):
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:g}"


def ticks(low, high, log):
    if log:
        steps = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = [m * 10.0 ** s for s in steps for m in ((1, 2, 5) if len(steps) < 4 else (1,))]
    else:
        step = 10.0 ** math.floor(math.log10((high - low) / 4))
        step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 6)
        marks = [round(i * step, 12) for i in range(math.floor(low / step), math.ceil(high / step) + 1)]
    return [m for m in marks if low * (1 - 1e-9) <= m <= high * (1 + 1e-9)]


def plot(title, x_title, y_title, series, log_x=False, log_y=False):
    """series: (name, [(x, y), ..]) each. Returns the text of the file."""
    series = [(name, sorted(points)) for name, points in series if points]
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys), max(ys)
    if low_x == high_x:
        low_x, high_x = low_x * 0.9, high_x * 1.1 + 1e-9
    pad = (high_y / low_y) ** 0.05 if log_y else (high_y - low_y) * 0.05 or abs(high_y) * 0.05 or 1.0
    low_y, high_y = (low_y / pad, high_y * max(pad, 1.01)) if log_y else (low_y - pad, high_y + pad)

    def place(value, low, high, begin, end, log):
        part = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
        return round(begin + part * (end - begin), 1)

    def at_x(x):
        return place(x, low_x, high_x, LEFT, WIDTH - RIGHT, log_x)

    def at_y(y):
        return place(y, low_y, high_y, HEIGHT - BOTTOM, TOP, log_y)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
           f'aria-label="{escape(title)}" font-family="sans-serif" font-size="12">',
           "<style>.t{fill:#222}.g{stroke:#bbb}.b{fill:#fff}"
           "@media(prefers-color-scheme:dark){.t{fill:#ddd}.g{stroke:#555}.b{fill:#161616}}</style>",
           f'<rect class="b" width="{WIDTH}" height="{HEIGHT}"/>',
           f'<text class="t" x="{LEFT}" y="22" font-size="15">{escape(title)}</text>']
    for x in ticks(low_x, high_x, log_x):
        out.append(f'<path class="g" d="M{at_x(x)} {TOP}V{HEIGHT - BOTTOM}" stroke-width=".5"/>'
                   f'<text class="t" x="{at_x(x)}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number(x)}</text>')
    for y in ticks(low_y, high_y, log_y):
        out.append(f'<path class="g" d="M{LEFT} {at_y(y)}H{WIDTH - RIGHT}" stroke-width=".5"/>'
                   f'<text class="t" x="{LEFT - 6}" y="{at_y(y) + 4}" text-anchor="end">{number(y)}</text>')
    out.append(f'<text class="t" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
               f'{escape(x_title)}</text>')
    out.append(f'<text class="t" transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
               f'text-anchor="middle">{escape(y_title)}</text>')
    for i, (name, points) in enumerate(series):
        colour, dash = COLOURS[i % len(COLOURS)], ' stroke-dasharray="5 3"' if i >= len(COLOURS) else ""
        path = " ".join(f"{at_x(x)},{at_y(y)}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        out += [f'<circle cx="{at_x(x)}" cy="{at_y(y)}" r="2.6" fill="{colour}"/>' for x, y in points]
        row = TOP + 8 + 18 * i
        out.append(f'<path d="M{WIDTH - RIGHT + 12} {row}h20" stroke="{colour}" stroke-width="2.5"{dash}/>'
                   f'<text class="t" x="{WIDTH - RIGHT + 38}" y="{row + 4}">{escape(name)}</text>')
    return "\n".join(out) + "\n</svg>\n"
