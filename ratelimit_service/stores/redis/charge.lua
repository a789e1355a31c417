-- The end of the script that Redis runs: reads what is charged, settles it, writes the changes.
-- KEYS: the counter of each hit. ARGV: the time in microseconds, or "" for Redis' own; then for
-- each hit six values: limit, window, addend, algorithm, mode, flags (1 count_denied, 2 refund).
-- Returns flat integers: now, then for each hit over (0/1), left, reset, counted.
-- Everything is read before the first write, so an error before it has changed nothing.

local MAX_STATE = 4503599627370496 -- 2^52

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end

local hits = {}
for index, key in ipairs(KEYS) do
  local at = index * 6 - 4
  local flags = tonumber(ARGV[at + 5])
  hits[index] = {
    key = key,
    limit = tonumber(ARGV[at]),
    window = tonumber(ARGV[at + 1]),
    addend = tonumber(ARGV[at + 2]),
    algorithm = ARGV[at + 3],
    mode = tonumber(ARGV[at + 4]),
    count_denied = flags % 2 == 1,
    refund = flags >= 2,
  }
end

-- A value that is no state (somebody else's, or damage) counts as a new counter. pcall: GET
-- fails on a key of another type, and SET replaces it.
local states = {}
local function read(key)
  if states[key] == nil then
    local value = redis.pcall("GET", key)
    local state = type(value) == "string" and string.match(value, "^%d+$") and tonumber(value)
    states[key] = state and state < MAX_STATE and state or false
  end
  return states[key]
end

local steps, changes = settle(hits, read, now)

-- Expiry is garbage collection, never meaning: a second of slack for clocks that step back.
for key, step in pairs(changes) do
  redis.call("SET", key, string.format("%.0f", step.state), "PX", math.ceil(step.reset / 1000) + 1000)
end

local reply = { now }
for index, step in ipairs(steps) do
  local at = index * 4 - 2
  reply[at] = step.passed and 0 or 1
  reply[at + 1] = step.left
  reply[at + 2] = step.reset
  reply[at + 3] = step.counted
end
return reply
