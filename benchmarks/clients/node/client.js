// node client.js DIRECTORY ADDRESS NAME=NUMBER...: calls the service with @grpc/grpc-js, which is
// below DIRECTORY. docs/real-clients.md says what the names mean and what is printed. Messages are
// bytes here, so no .proto is needed.
const http2 = require("http2");

const CONNECTIONS = 2;
const KEYS = 500;
const PATIENCE_MS = 10000;
const PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const [, , directory, address, ...rest] = process.argv;
const given = Object.fromEntries(
  rest.map((each) => each.split("=")).map(([name, number]) => [name, Number(number)]),
);
const option = (name) => given[name] ?? 0;

if ("table" in given) {
  // grpc-js has no option for it.
  const connect = http2.connect;
  http2.connect = (authority, options, listener) => {
    const settings = { ...options.settings, headerTableSize: given.table };
    return connect(authority, { ...options, settings }, listener);
  };
}
const grpc = require(require.resolve("@grpc/grpc-js", { paths: [directory] }));

const same = (bytes) => bytes;
const field = (number, bytes) =>
  Buffer.concat([Buffer.from([(number << 3) | 2, bytes.length]), bytes]);
const message = (key) => {
  const entry = Buffer.concat([field(1, Buffer.from("key")), field(2, Buffer.from(String(key)))]);
  return Buffer.concat([field(1, Buffer.from("clients")), field(2, field(1, entry))]);
};
const pause = () =>
  new Promise((resolve) => (option("pause") ? setTimeout(resolve, option("pause")) : resolve()));

const call = (client, number) =>
  new Promise((resolve) => {
    const dice = (number * 7919) % 1000;
    const hurry = option("cancel") + option("deadline");
    const cancelled = dice < option("cancel");
    const hurried = !cancelled && dice < hurry;
    const oversized = dice >= hurry && dice < hurry + option("oversized");
    const delayMs = (100 + ((number * 104729) % 3000)) / 1000;
    const metadata = new grpc.Metadata();
    for (let place = 0; place < option("headers"); place++) {
      const value = String(place % 2 === 0 ? place : number);
      metadata.set(`x-extra-${place}`, value.padStart(option("header_bytes"), "0"));
    }
    if (oversized) metadata.set("x-oversized", "x".repeat(20000));
    const options = { deadline: Date.now() + (hurried ? Math.ceil(delayMs) : PATIENCE_MS) };
    const ended = (error, answer) => {
      if (!error) {
        const text = answer.toString("latin1");
        if (text.includes(`<${number % KEYS}>`)) return resolve("right");
        return resolve(text.includes("<") ? "wrong" : hurried ? "late" : "policy");
      }
      if (cancelled && error.code === grpc.status.CANCELLED) return resolve("cancelled");
      if (hurried && error.code === grpc.status.DEADLINE_EXCEEDED) return resolve("late");
      if (oversized) return resolve("refused");
      return resolve(`failed: ${grpc.status[error.code]} ${error.details}`);
    };
    const asked = message(number % KEYS);
    const calling = client.makeUnaryRequest(PATH, same, same, asked, metadata, options, ended);
    if (cancelled) setTimeout(() => calling.cancel(), delayMs);
  });

let over = false;
process.stdin.resume();
process.stdin.on("end", () => (over = true));

const tally = {};
let next = 0;
const clients = [...Array(CONNECTIONS).keys()].map(
  () =>
    new grpc.Client(address, grpc.credentials.createInsecure(), {
      "grpc.use_local_subchannel_pool": 1,
    }),
);
const caller = async (client) => {
  while (!over && next < option("calls")) {
    const outcome = await call(client, next++);
    tally[outcome] = (tally[outcome] ?? 0) + 1;
    await pause();
  }
};
const callers = [...Array(option("concurrency")).keys()].map((place) =>
  caller(clients[place % CONNECTIONS]),
);
Promise.all(callers).then(() =>
  process.stdout.write(JSON.stringify(tally) + "\n", () => process.exit(0)),
);
