// node client.js ADDRESS DOMAIN DESCRIPTOR...: asks the service once. A descriptor is written as
// user=alice,path=/search. The exit status is 0 if the request may go on, 1 if it may not, and 2 if
// nobody answered.
const path = require("path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const DEADLINE_MS = 1000;

// The client is made of the .proto file when the program starts.
const definition = loader.loadSync(path.join(__dirname, "ratelimit.proto"), {
  enums: String,
  longs: Number,
  defaults: true,
});
const { RateLimitService } = grpc.loadPackageDefinition(definition).envoy.service.ratelimit.v3;

const [address, domain, ...texts] = process.argv.slice(2);
if (!texts.length) {
  console.error("node client.js ADDRESS DOMAIN DESCRIPTOR...");
  process.exit(2);
}
const descriptors = texts.map((text) => ({
  entries: text.split(",").map((each) => {
    const [key, ...value] = each.split("=");
    return { key, value: value.join("=") };
  }),
}));

// One client is enough for a program.
const client = new RateLimitService(address, grpc.credentials.createInsecure());
const deadline = Date.now() + DEADLINE_MS;
client.shouldRateLimit({ domain, descriptors }, { deadline }, (error, answer) => {
  client.close();
  if (error) {
    // Here you decide: let it pass, or deny it.
    console.error(error.message);
    process.exitCode = 2;
    return;
  }
  answer.statuses.forEach(({ code, currentLimit, limitRemaining, durationUntilReset }, place) => {
    if (!currentLimit) {
      console.log(`${code} ${texts[place]} no limit`);
      return;
    }
    const wait = code === "OVER_LIMIT" ? "come back in" : "resets in";
    const left = `${limitRemaining} of ${currentLimit.requestsPerUnit} left`;
    console.log(`${code} ${texts[place]} ${left}, ${wait} ${durationUntilReset.seconds} s`);
  });
  process.exitCode = answer.overallCode === "OVER_LIMIT" ? 1 : 0;
});
