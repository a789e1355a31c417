-- The end of the script that Redis runs: reads what is charged, settles it, writes the changes.
-- KEYS: the counter of each hit, request after request. ARGV: the time in microseconds, or "" for
-- Redis' own; then the hits packed: for each request the number of its hits (2 bytes), for each
-- hit limit, window, addend, algorithm, and mode with flags (4 count_denied, 8 refund).
-- Returns flat integers: now, then for each hit over (0/1), left, reset, counted.
-- Requests are settled one after the other, each seeing what those before have counted.
-- Everything is read before the first write, so an error before it has changed nothing.

local MAX_STATE = 4503599627370496 -- 2^52

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
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

local packed, at, index = ARGV[2], 1, 0
local changed, reply = {}, { now }
while at <= #packed do
  local hits, count = {}, nil
  count, at = struct.unpack(">I2", packed, at)
  for number = 1, count do
    local hit = { key = KEYS[index + number] }
    local algorithm, flags
    hit.limit, hit.window, hit.addend, algorithm, flags, at = struct.unpack(">I4dI4BB", packed, at)
    hit.algorithm = algorithm
    hit.mode = flags % 4
    hit.count_denied = flags % 8 >= 4
    hit.refund = flags >= 8
    hits[number] = hit
  end

  local steps, changes = settle(hits, read, now)

  for key, step in pairs(changes) do
    states[key] = step.state
    changed[key] = step
  end
  for number, step in ipairs(steps) do
    local place = (index + number) * 4 - 2
    reply[place] = step.passed and 0 or 1
    reply[place + 1] = step.left
    reply[place + 2] = step.reset
    reply[place + 3] = step.counted
  end
  index = index + count
end

-- Expiry is garbage collection, never meaning: a second of slack for clocks that step back.
for key, step in pairs(changed) do
  redis.call("SET", key, string.format("%.0f", step.state), "PX", math.ceil(step.reset / 1000) + 1000)
end

return reply
