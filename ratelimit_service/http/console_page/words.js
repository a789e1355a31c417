// Descriptors and durations as people type them.

/** Entries of `key=value,key=value`; a backslash takes the meaning from `,`, `=` and itself. */
export function entriesOf(text) {
  const entries = [];
  let parts = [""];
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (char === "\\" && at + 1 < text.length) parts[parts.length - 1] += text[(at += 1)];
    else if (char === "=" && parts.length === 1) parts.push("");
    else if (char === ",") {
      entries.push(parts);
      parts = [""];
    } else parts[parts.length - 1] += char;
  }
  entries.push(parts);
  if (entries.some(([key]) => !key)) throw new Error("write key=value,key=value");
  return entries.map(([key, value]) => [key, value ?? ""]);
}

/** Entries as they are typed. */
export function typed(entries) {
  const plain = (text) => text.replace(/[\\,=]/g, "\\$&");
  return entries.map(([key, value]) => (value ? `${plain(key)}=${plain(value)}` : plain(key))).join(",");
}

/** A time to come in its two largest units, rounded up: `53 s`, `14 h 41 min`. */
export function lasting(seconds) {
  const whole = Math.ceil(seconds);
  for (const [unit, name, small, part] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (whole < 2 * unit) continue;
    const parts = Math.ceil(whole / small);
    const rest = parts % (unit / small);
    return `${Math.floor((parts * small) / unit)} ${name}${rest ? ` ${rest} ${part}` : ""}`;
  }
  return `${whole} s`;
}

const SECONDS = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };

/** Seconds of `2h` or `1d12h`. */
export function secondsOf(text) {
  const parts = [...text.matchAll(/(\d+)([smhdw])/g)];
  if (parts.map(([part]) => part).join("") !== text) throw new Error("write a duration as 90s, 2h or 1d12h");
  return parts.reduce((sum, [, number, unit]) => sum + number * SECONDS[unit], 0);
}

/** Times as the service says them elsewhere, too: in UTC. */
export const clock = (time) => `${time.slice(11, 19)} UTC`;
export const moment = (time) => `${time.slice(0, 10)} ${clock(time)}`;

/** An override in words: what it does, until when, who made it and why. */
export function overrideText({ kind, id, domain, entries, requests, hits, limit, until, who, reason }) {
  const number = requests !== undefined ? `, ${requests} requests` : hits !== undefined ? `, ${hits} hits` : "";
  const parts = [limit ? `, limit ${limit}` : "", until ? `, until ${moment(until)}` : "", who ? `, by ${who}` : "", reason ? `: ${reason}` : ""];
  return `${kind} ${id}: ${domain} ${typed(entries)}${number}${parts.join("")}`;
}
