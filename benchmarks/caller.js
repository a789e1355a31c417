// node caller.js DIRECTORY PORT RATE: as caller.py, with Node's client (@grpc/grpc-js below DIRECTORY).
const [, , directory, port, rate] = process.argv;
const grpc = require(require.resolve("@grpc/grpc-js", { paths: [directory] }));

const CONNECTIONS = 4;
const LATE_SECONDS = 0.02;
const WARM_SECONDS = 2; // a client's own start is not the service's doing
const USERS = 10000;
const PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const now = () => Number(process.hrtime.bigint()) / 1e9; // the monotonic clock, as in Python

const same = (bytes) => bytes;
const clients = [...Array(CONNECTIONS).keys()].map(
  () =>
    new grpc.Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure(), {
      "grpc.use_local_subchannel_pool": 1,
    }),
);
const field = (number, bytes) =>
  Buffer.concat([Buffer.from([(number << 3) | 2, bytes.length]), bytes]);
const request = (user) => {
  const entry = Buffer.concat([field(1, Buffer.from("user")), field(2, Buffer.from(user))]);
  return Buffer.concat([field(1, Buffer.from("demo")), field(2, field(1, entry))]);
};

const record = { calls: 0, late: 0, failed: [] };
const start = now();
let sent = 0;
const timer = setInterval(() => {
  for (; sent < (now() - start) * rate; sent++) {
    const due = start + sent / rate;
    const started = now();
    const options = { deadline: Date.now() + 5000 };
    clients[sent % CONNECTIONS].makeUnaryRequest(
      PATH,
      same,
      same,
      request(String(sent % USERS)),
      new grpc.Metadata(),
      options,
      (error) => {
        record.calls += 1;
        const judged = due - start > WARM_SECONDS;
        record.late += judged && now() - due > LATE_SECONDS ? 1 : 0;
        if (error) record.failed.push([started, `${error.code} ${error.details}`]);
      },
    );
  }
}, 1);
process.stdin.resume();
process.stdin.on("end", () => {
  clearInterval(timer);
  setTimeout(() => {
    process.stdout.write(JSON.stringify(record) + "\n", () => process.exit(0));
  }, 500);
});
