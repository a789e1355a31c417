// A client in Node.js: node client.js DIRECTORY PORT, with @grpc/grpc-js below DIRECTORY. Prints
// what it saw as JSON. Messages are bytes here, so no .proto is needed.
const [, , directory, port] = process.argv;
const grpc = require(require.resolve("@grpc/grpc-js", { paths: [directory] }));

const same = (bytes) => bytes;
const client = new grpc.Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure());
const call = (path, message, metadata = new grpc.Metadata()) =>
  new Promise((resolve) => {
    const options = { deadline: Date.now() + 10000 };
    client.makeUnaryRequest(path, same, same, message, metadata, options, (error, answer) =>
      resolve(error ? { code: error.code, details: error.details } : answer.toString("hex")),
    );
  });
const field = (number, bytes) =>
  Buffer.concat([Buffer.from([(number << 3) | 2, bytes.length]), bytes]);
const request = (value) => {
  const entry = Buffer.concat([field(1, Buffer.from("a")), field(2, Buffer.from(value))]);
  return Buffer.concat([field(1, Buffer.from("edge")), field(2, field(1, entry))]);
};

(async () => {
  const decide = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
  const many = await Promise.all(
    [...Array(500).keys()].map((number) => call(decide, request(`v${number % 10}`))),
  );
  const seen = {
    allowed: many.filter((answer) => answer.startsWith("0801")).length,
    denied: many.filter((answer) => answer.startsWith("0802")).length,
    bad: await call(decide, Buffer.from([255])),
    unknown: await call("/no.such/Method", Buffer.alloc(0)),
    health: await call("/grpc.health.v1.Health/Check", Buffer.alloc(0)),
  };
  console.log(JSON.stringify(seen));
  client.close();
})();
