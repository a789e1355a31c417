// What the listener is asked: with the browser's session, and with its second secret for changes.

let csrf = "";

/** What went wrong, in the listener's words. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function asked(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, credentials: "same-origin", redirect: "error" });
  } catch {
    throw new Refused(0, "the service does not answer");
  }
  let said = {};
  try {
    said = await answer.json();
  } catch {
    // not ours; the status says it all
  }
  if (!answer.ok) throw new Refused(answer.status, said.error || `status ${answer.status}`);
  return said;
}

/** Begins or resumes the session; returns who we are. */
export async function session(token) {
  const options = token === undefined ? {} : sent("POST", { token });
  const said = await asked("/session", options);
  csrf = said.csrf;
  return said;
}

export const get = (path, query) => asked(query ? `${path}?${new URLSearchParams(query)}` : path);

/** Changes something; a session that is over is begun anew, once. */
export async function change(method, path, body) {
  try {
    return await asked(path, sent(method, body));
  } catch (error) {
    if (error.status !== 403) throw error;
    await session();
    return asked(path, sent(method, body));
  }
}

function sent(method, body) {
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": csrf };
  return { method, headers, body: JSON.stringify(body || {}) };
}
